package raftstore

import (
	"errors"
	"math"
	"testing"
)

// TestOpen_DeletingFromAnEmptyLog: Raft compacts a log that a snapshot from the
// leader has emptied, from its first entry, 0, on. The note of where the log ends
// must not become the number before that: the node would never start again.
func TestOpen_DeletingFromAnEmptyLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := mustOpen(t, dir)
	for i := uint64(1); i <= 5; i++ {
		if err := s.Logs.StoreLog(logEntry(i)); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(s.mark.store(), s.Logs.DeleteRange(1, 5), s.Logs.DeleteRange(0, 3), s.MarkEnd(), s.Close())
	if err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, dir)
	if s.mark.stored.Last != 0 {
		t.Errorf("the log is noted to end with %d", s.mark.stored.Last)
	}
	// What an earlier program noted is not damage.
	record := s.mark.stored
	record.Last = math.MaxUint64
	if err := errors.Join(s.mark.write(record), s.Close()); err != nil {
		t.Fatal(err)
	}
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Error(err)
	}
}
