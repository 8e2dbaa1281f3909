package bash

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
)

// Output in single bytes, as under load or from a chatty command, makes few events and splits no
// character.
func TestBash_ManySmallWrites_FewEvents(t *testing.T) {
	c := &command{done: make(chan struct{})}
	const text, looks, n = "é€😀x", 10, 3 * chunkBytes / len("é€😀x")
	for i := range n {
		for _, stderr := range []bool{false, true} {
			for j := range len(text) {
				if _, err := (outputWriter{c, stderr}).Write([]byte(text[j : j+1])); err != nil {
					t.Fatal(err)
				}
				if i%(n/looks) == 0 && j == i%len(text) {
					c.mu.Lock()
					c.seal(false)
					c.mu.Unlock()
				}
			}
		}
	}
	c.finish(0, "")
	var out, errs strings.Builder
	for _, e := range c.outputs {
		for _, s := range []*string{e.Stdout, e.Stderr} {
			if s != nil && !utf8.ValidString(*s) {
				t.Errorf("event %d breaks a character", e.Order)
			}
		}
		if e.Stdout != nil {
			out.WriteString(*e.Stdout)
		}
		if e.Stderr != nil {
			errs.WriteString(*e.Stderr)
		}
	}
	if want := strings.Repeat(text, n); out.String() != want || errs.String() != want {
		t.Errorf("%d and %d bytes of %d came through", out.Len(), errs.Len(), len(want))
	}
	if most := 4*(looks+2) + 2*n*len(text)/chunkBytes; len(c.outputs) > most {
		t.Errorf("%d events, at most %d are needed", len(c.outputs), most)
	}
}

func TestBash_CloseEndsCommands(t *testing.T) {
	b := New(config.Config{Environ: os.Environ(), Logger: slog.New(slog.DiscardHandler)}, nil, func() {})
	c, err := b.start("sleep 1000", nil, defaultTimeout, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	<-c.done
	if _, err := b.start("true", nil, defaultTimeout, nil); err == nil {
		t.Error("a closed bash starts commands")
	}
}

func TestBash_CommandIDsAreBounded(t *testing.T) {
	dir, logs := t.TempDir(), &bytes.Buffer{}
	logger := slog.New(slog.NewTextHandler(logs, nil))
	c := openCommandIDs(dir, logger)
	var last string
	for range maxCommandIDs + 10 {
		last = newHexID()
		c.add(last)
	}
	st, err := os.Stat(c.path)
	if err != nil || st.Size() > maxCommandIDs*commandIDLine || !c.has(last) || len(c.known) != len(c.ids) {
		t.Errorf("%v, %v, %d ids", st, err, len(c.ids))
	}
	if again := openCommandIDs(dir, logger); len(again.ids) != maxCommands+10 || !again.has(last) {
		t.Errorf("read again: %d ids", len(again.ids))
	}
	// A directory that can't be written is ignored.
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	broken := openCommandIDs(file, logger)
	broken.add(last)
	if !broken.has(last) || !strings.Contains(logs.String(), "can't be kept") {
		t.Error("a broken file is not coped with")
	}
}

// TestBash_OutputBeyondTheLimit: the last event says how much of the output is not kept.
func TestBash_OutputBeyondTheLimit(t *testing.T) {
	for written, want := range map[int]int{
		maxCommandBytes: 0, maxCommandBytes + 3: 3, 3 * maxCommandBytes: 2 * maxCommandBytes,
	} {
		c := &command{done: make(chan struct{}), grown: new(wakeup)}
		for _, part := range []int{10, written - 10} {
			if _, err := (outputWriter{c, false}).Write(make([]byte, part)); err != nil {
				t.Fatal(err)
			}
		}
		c.finish(0, "")
		if got := c.outputs[len(c.outputs)-1].DroppedBytes; got != want {
			t.Errorf("of %d bytes %d are said to be dropped, want %d", written, got, want)
		}
	}
}
