package raftfsm

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

func TestCommands_JoinAndSplit(t *testing.T) {
	t.Parallel()
	for _, commands := range [][]string{
		{"a{}"}, {"a{}", "b{}"}, {strings.Repeat("x", 1<<20), "b{}", strings.Repeat("y", 300)},
	} {
		var raw [][]byte
		for _, c := range commands {
			raw = append(raw, []byte(c))
		}
		entry := JoinCommands(raw)
		back, err := SplitCommands(entry)
		if err != nil || !slices.EqualFunc(raw, back, bytes.Equal) {
			t.Errorf("%d commands came back as %d, %v", len(raw), len(back), err)
		}
		if len(commands) == 1 {
			continue
		}
		for cut := range min(len(entry), 400) {
			if back, err := SplitCommands(entry[:len(entry)-1-cut]); err == nil && slices.EqualFunc(raw, back, bytes.Equal) {
				t.Errorf("without its last %d bytes the batch is still whole", cut+1)
			}
		}
	}
	for _, bad := range []string{
		"\x01",
		"\x01\x00",
		"\x01\x01x",
		"\x01\x02x",
		"\x01\x01x\x00",
		"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"\x01\x01x\xff",
	} {
		if got, err := SplitCommands([]byte(bad)); err == nil {
			t.Errorf("%q was taken for %q", bad, got)
		}
	}
}

// FuzzDecodeEntry: whatever stands in the log is refused or read, and what is
// read was joined from its parts.
func FuzzDecodeEntry(f *testing.F) {
	f.Add([]byte(`settings.put{"id":"x","type":"settings.put","time":"2026-01-01T00:00:00Z","user_id":"u","body":{}}`))
	f.Add(JoinCommands([][]byte{
		[]byte(`settings.put{"id":"x","type":"settings.put","time":"2026-01-01T00:00:00Z","user_id":"u","body":{}}`),
		[]byte(`sandbox.pause{"id":"y","type":"sandbox.pause","time":"2026-01-01T00:00:00Z","user_id":"u",` +
			`"body":{"sandbox_id":"s"}}`),
	}))
	f.Add([]byte("\x01\x00"))
	inBinary, err := fsm.NewCommand("x", time.Unix(1, 0), "u", &fsm.SandboxPauseBody{ID: "s"}).EncodeBinary()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(inBinary)
	f.Add(JoinCommands([][]byte{inBinary, inBinary}))
	f.Fuzz(func(t *testing.T, entry []byte) {
		commands, err := DecodeEntry(entry)
		if err != nil {
			return
		}
		parts, err := SplitCommands(entry)
		if err != nil || len(parts) != len(commands) {
			t.Fatalf("%d commands of %d parts, %v", len(commands), len(parts), err)
		}
		again, err := SplitCommands(JoinCommands(parts))
		if err != nil || !slices.EqualFunc(parts, again, bytes.Equal) {
			t.Errorf("joined again it is another entry: %q", entry)
		}
	})
}
