package raftstore

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

func TestOpen_RefusesTheOtherKindOfLog(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ first, second string }{{BoltDB, WAL}, {WAL, BoltDB}} {
		dir := filepath.Join(t.TempDir(), "data")
		s, err := Open(dir, testOptions(test.first))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Logs.StoreLog(&raft.Log{Index: 1, Term: 1, Data: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, testOptions(test.first)); err == nil || !strings.Contains(err.Error(), "another process") {
			t.Errorf("%s: opened twice: %v", test.first, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, testOptions(test.second)); err == nil || !strings.Contains(err.Error(), "holds a") {
			t.Errorf("%s after %s: %v", test.second, test.first, err)
		}
		if s, err = Open(dir, testOptions(test.first)); err != nil {
			t.Fatalf("%s again: %v", test.first, err)
		}
		if last, err := s.Logs.LastIndex(); err != nil || last != 1 {
			t.Errorf("%s: last index %d, %v", test.first, last, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCopied(t *testing.T) {
	noted := map[string]fileIdentity{"raft.db": {7, 100}, "wal": {8, 101}}
	for name, test := range map[string]struct {
		found map[string]fileIdentity
		want  string
	}{
		"the same":                 {map[string]fileIdentity{"raft.db": {7, 100}, "wal": {8, 101}}, ""},
		"another inode":            {map[string]fileIdentity{"raft.db": {9, 100}, "wal": {8, 101}}, "raft.db"},
		"made at another time":     {map[string]fileIdentity{"raft.db": {7, 100}, "wal": {8, 900}}, "wal"},
		"no birth time":            {map[string]fileIdentity{"raft.db": {9, 0}, "wal": {10, 0}}, ""},
		"nothing":                  {nil, ""},
		"a log of the other store": {map[string]fileIdentity{"raft.db": {7, 100}}, ""},
	} {
		if got := copied(noted, test.found); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	if got := copied(nil, noted); got != "" {
		t.Errorf("nothing noted: %q", got)
	}
}
