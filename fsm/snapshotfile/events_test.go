package snapshotfile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// textEvents are events as they are written to a file.
type textEvents string

func (e textEvents) Write(_ context.Context, w io.Writer) (fsm.EventsWritten, error) {
	_, err := io.WriteString(w, string(e))
	return fsm.EventsWritten{Conversations: 1, Number: 2, Bytes: uint64(len(e))}, err
}

func (e textEvents) Close() error { return nil }

// TestFile_HasItsEvents: they are behind the state, verified with it, and skipped by who does not ask.
func TestFile_HasItsEvents(t *testing.T) {
	t.Parallel()
	const text = "what is behind the state"
	s := seeded(t).Snapshot()
	s.Events = textEvents(text)
	p, err := Pack(t.Context(), testInfo(), s, &memory{})
	if err != nil {
		t.Fatal(err)
	}
	b := bytesOf(t, p)
	m, _, err := Load(bytes.NewReader(b))
	if err != nil || m.Events == nil || m.Events.Number != 2 || len(m.Parts) != 2 {
		t.Fatalf("%+v %v", m, err)
	}
	read := func(b []byte) (got string, err error) {
		f, err := Open(bytes.NewReader(b))
		if err != nil {
			return "", err
		}
		f.Events = func(r io.Reader) error {
			raw, err := io.ReadAll(r)
			got = string(raw)
			return err
		}
		err = f.Verify()
		return got, err
	}
	if got, err := read(b); got != text || err != nil {
		t.Errorf("%q %v", got, err)
	}
	damaged := bytes.Replace(b, []byte(text), []byte(strings.ToUpper(text)), 1)
	if bytes.Equal(damaged, b) {
		t.Fatal("events are not stored as they are")
	}
	if _, err := read(damaged); !errors.Is(err, ErrDamaged) {
		t.Errorf("damaged events: %v", err)
	}
	if _, _, err := Load(bytes.NewReader(damaged)); !errors.Is(err, ErrDamaged) {
		t.Errorf("damaged events, skipped: %v", err)
	}
	for n := range cuts(len(b)) {
		if _, err := read(b[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are believed", n, len(b))
		}
	}
}
