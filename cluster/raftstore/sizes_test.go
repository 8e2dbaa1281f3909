package raftstore

import (
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// TestLogSizes_AreThoseOfTheLog compares the sizes with a log in memory, over any sequence of what
// Raft does with a log.
func TestLogSizes_AreThoseOfTheLog(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		store, sizes := raft.NewInmemStore(), &logSizes{}
		next := uint64(1)
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			first, _ := store.FirstIndex()
			last, _ := store.LastIndex()
			switch rapid.IntRange(0, 4).Draw(r, "what") {
			case 0: // compaction
				if last > 0 {
					to := rapid.Uint64Range(first, last).Draw(r, "compacted")
					remove(r, store, sizes, first, to)
				}
			case 1: // another leader's entries
				if last > 0 {
					from := rapid.Uint64Range(first, last).Draw(r, "cut")
					remove(r, store, sizes, from, last)
					next = from
				}
			case 2: // a leader's snapshot
				if last > 0 {
					remove(r, store, sizes, first, last)
				}
				next += uint64(rapid.IntRange(1, 5).Draw(r, "gap"))
			default:
				l := &raft.Log{Index: next, Data: make([]byte, rapid.IntRange(0, 1000).Draw(r, "size"))}
				if err := store.StoreLog(l); err != nil {
					r.Fatal(err)
				}
				sizes.add(l)
				next++
			}
			total, tail, newest := int64(0), int64(rapid.IntRange(0, 5000).Draw(r, "tail")), uint64(0)
			first, _ = store.FirstIndex()
			last, _ = store.LastIndex()
			for i := last; i >= first && i > 0; i-- {
				var l raft.Log
				if err := store.GetLog(i, &l); err != nil {
					r.Fatal(err)
				}
				if total += int64(sizeOf(&l)); total <= tail {
					newest++
				}
			}
			if got := sizes; got.total != total || got.newest(tail) != max(newest, 1) {
				r.Fatalf("%d bytes, %d entries within %d; want %d and %d", got.total, got.newest(tail), tail, total, newest)
			}
		}
	})
}

func remove(r *rapid.T, store *raft.InmemStore, sizes *logSizes, first, last uint64) {
	if err := store.DeleteRange(first, last); err != nil {
		r.Fatal(err)
	}
	sizes.remove(first, last)
}

// TestLogCache_IsBoundedInBytes: entries of 1 MiB leave the memory, small ones stay, and what left is
// read from the store.
func TestLogCache_IsBoundedInBytes(t *testing.T) {
	t.Parallel()
	c := newLogCache(raft.NewInmemStore())
	for i := range uint64(300) {
		size := 10
		if i > 200 {
			size = 1 << 20
		}
		if err := c.StoreLog(&raft.Log{Index: i + 1, Data: make([]byte, size)}); err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, l := range c.byID {
			sum += len(l.Data)
		}
		if sum != c.bytes || sum > logCacheBytes || len(c.byID) > logCacheEntries || c.byID[i+1] == nil {
			t.Fatalf("after entry %d: %d entries, %d bytes, counted %d", i+1, len(c.byID), sum, c.bytes)
		}
		if i == 200 && len(c.byID) != logCacheEntries {
			t.Errorf("%d small entries are kept", len(c.byID))
		}
	}
	var l raft.Log
	if err := c.GetLog(250, &l); err != nil || len(l.Data) != 1<<20 || c.byID[250] != nil {
		t.Errorf("entry 250: %v", err)
	}
	if err := c.DeleteRange(290, 300); err != nil || len(c.byID) != 0 || c.bytes != 0 {
		t.Errorf("after a deletion: %v, %d entries", err, len(c.byID))
	}
	if err := c.GetLog(300, &l); err == nil {
		t.Error("a deleted entry is there")
	}
}
