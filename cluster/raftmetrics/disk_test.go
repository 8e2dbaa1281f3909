package raftmetrics

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// The first entry of a log that was never compacted is the bootstrap's, which has no time.
func TestOldestEntry_SkipsTheBootstrap(t *testing.T) {
	t.Parallel()
	logs := raft.NewInmemStore()
	if at := oldestEntry(logs); !at.IsZero() {
		t.Errorf("an empty log: %s", at)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, when := range []time.Time{{}, at, at.Add(time.Hour)} {
		if err := logs.StoreLog(&raft.Log{Index: uint64(i + 1), Term: 1, AppendedAt: when}); err != nil {
			t.Fatal(err)
		}
	}
	if got := oldestEntry(logs); !got.Equal(at) {
		t.Errorf("the oldest entry is of %s, want %s", got, at)
	}
}
