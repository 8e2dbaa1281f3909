package raftstore

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
)

// A node that stopped between sealing a full file of the write-ahead log and
// noting that in its metadata, or while it sealed the file, goes on behind it.
func TestOpen_RotationThatWasCutOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // 150 MiB are more than some machines have in memory
	s := mustOpen(t, dir)
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
	for i := uint64(1); len(files()) == 1; i++ { // the second is there when the next append begins
		if err := s.Logs.StoreLog(&raft.Log{Index: i, Term: 1, Data: bytes.Repeat([]byte{byte(i)}, 4<<20)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(files()[1]); err != nil {
		t.Fatal(err)
	}
	full := files()[0]
	whole, err := os.ReadFile(full)
	if err != nil {
		t.Fatal(err)
	}
	index, end := indexOf(t, meta, before)
	for name, cut := range map[string]struct {
		at    int
		short bool
		last  uint64
	}{
		"not noted":                {at: len(whole), last: end},
		"header of the index":      {at: index - 5, last: end - 1},
		"index":                    {at: index, last: end - 1},
		"half the index":           {at: index + 9, last: end - 1},
		"end of the file":          {at: index, short: true, last: end - 1},
		"end of the file, half on": {at: index + 9, short: true, last: end - 1},
	} {
		t.Run(name, func(t *testing.T) {
			content := slices.Clone(whole)
			clear(content[cut.at:])
			if cut.short {
				content = content[:cut.at]
			}
			err := errors.Join(os.WriteFile(full, content, 0o600), os.WriteFile(meta, before, 0o600))
			for _, file := range files()[1:] {
				err = errors.Join(err, os.Remove(file))
			}
			if err != nil {
				t.Fatal(err)
			}
			goesOn(t, dir, cut.last)
		})
	}
}

// indexOf gives where the index of the one file begins and its last entry, with
// its metadata as they were.
func indexOf(t *testing.T, meta string, before []byte) (at int, last uint64) {
	t.Helper()
	if err := os.WriteFile(meta, before, 0o600); err != nil {
		t.Fatal(err)
	}
	var db metadb.BoltMetaDB
	state, err := db.Load(filepath.Dir(meta))
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	file, err := segment.NewFiler(filepath.Dir(meta), fs.New()).RecoverTail(state.Segments[0])
	if err != nil {
		t.Fatal(err)
	}
	sealed, start, err := file.Sealed()
	last = file.LastIndex()
	if err = errors.Join(err, file.Close()); err != nil || !sealed {
		t.Fatalf("the file is not sealed (%v)", err)
	}
	return int(start), last
}

// goesOn opens a log that ends with last, appends an entry, and finds it again.
func goesOn(t *testing.T, dir string, last uint64) {
	t.Helper()
	s := mustOpen(t, dir)
	got, err := s.Logs.LastIndex()
	if err != nil || got != last {
		t.Errorf("the log ends with %d (%v), want %d", got, err, last)
	}
	if err := errors.Join(s.Logs.StoreLog(logEntry(got+1)), s.Close()); err != nil {
		t.Fatal(err)
	}
	wantLog(t, dir, 1, last+1)
}
