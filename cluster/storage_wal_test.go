package cluster

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
)

// A node that stopped between sealing a full file of the write-ahead log and
// noting that in its metadata goes on behind it.
func TestStorage_RotationThatWasCutOff(t *testing.T) {
	dir := memoryDir(t)
	s := mustOpen(t, dir, LogStoreWAL)
	meta := filepath.Join(dir, "wal", "wal-meta.db")
	before, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	files := func() []string {
		list, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(list)
		return list
	}
	last := uint64(0)
	for len(files()) == 1 { // the second is there when the next append begins
		last++
		if err := s.Logs.StoreLog(&raft.Log{Index: last, Term: 1, Data: bytes.Repeat([]byte{byte(last)}, 4<<20)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(files()[1]), os.WriteFile(meta, before, 0o600)); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, dir, LogStoreWAL)
	if last, err = s.Logs.LastIndex(); err != nil || last < 10 {
		t.Fatalf("the log ends with %d (%v)", last, err)
	}
	if err := errors.Join(s.Logs.StoreLog(logEntry(last+1)), s.Close()); err != nil {
		t.Fatal(err)
	}
	wantLog(t, dir, LogStoreWAL, 1, last+1)
}
