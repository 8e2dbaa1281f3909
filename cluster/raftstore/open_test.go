package raftstore

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestOpen_OneProcessAtATime(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := mustOpen(t, dir)
	if _, err := Open(dir, testOptions()); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("opened twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestCopied(t *testing.T) {
	noted := map[string]fileIdentity{"raft.db": {7, 100}, "wal": {8, 101}}
	for name, test := range map[string]struct {
		found map[string]fileIdentity
		want  string
	}{
		"the same":             {map[string]fileIdentity{"raft.db": {7, 100}, "wal": {8, 101}}, ""},
		"another inode":        {map[string]fileIdentity{"raft.db": {9, 100}, "wal": {8, 101}}, "raft.db"},
		"made at another time": {map[string]fileIdentity{"raft.db": {7, 100}, "wal": {8, 900}}, "wal"},
		"no birth time":        {map[string]fileIdentity{"raft.db": {9, 0}, "wal": {10, 0}}, ""},
		"nothing":              {nil, ""},
		"before the log moved": {map[string]fileIdentity{"raft.db": {7, 100}}, ""},
	} {
		if got := copied(noted, test.found); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	if got := copied(nil, noted); got != "" {
		t.Errorf("nothing noted: %q", got)
	}
}
