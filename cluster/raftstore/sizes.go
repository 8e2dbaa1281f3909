package raftstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// logSizes are the sizes of the log's entries, in bytes. The zero value is an empty log.
type logSizes struct {
	mu    sync.Mutex
	first uint64
	sizes []uint32
	total int64
}

// sizeOf returns what an entry counts for.
func sizeOf(l *raft.Log) uint32 { return uint32(len(l.Data) + len(l.Extensions) + entryOverhead) }

// entryOverhead is what an entry costs beside its data, in bytes.
const entryOverhead = 64

// add records an entry in place of those from its index on. After a gap the log begins with it.
func (s *logSizes) add(l *raft.Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch end := s.first + uint64(len(s.sizes)); {
	case len(s.sizes) == 0 || l.Index > end || l.Index < s.first:
		s.first, s.sizes, s.total = l.Index, s.sizes[:0], 0
	case l.Index < end:
		s.cut(s.first, l.Index)
	}
	s.sizes = append(s.sizes, sizeOf(l))
	s.total += int64(sizeOf(l))
}

// remove forgets the entries first to last.
func (s *logSizes) remove(first, last uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.first + uint64(len(s.sizes))
	switch {
	case len(s.sizes) == 0 || last < s.first || first >= end:
	case last+1 >= end:
		s.cut(s.first, first)
	default: // Raft deletes at the ends only
		s.cut(last+1, end)
	}
}

// cut keeps the entries from first up to end, without it.
func (s *logSizes) cut(first, end uint64) {
	low, high := max(first, s.first)-s.first, max(end, s.first)-s.first
	for i, n := range s.sizes {
		if uint64(i) < low || uint64(i) >= high {
			s.total -= int64(n)
		}
	}
	kept := make([]uint32, high-low)
	copy(kept, s.sizes[low:high])
	s.first, s.sizes = s.first+low, kept
}

// newest returns how many of the newest entries come to at most bytes, at least one.
func (s *logSizes) newest(bytes int64) (entries uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.sizes) - 1; i >= 0; i-- {
		if bytes -= int64(s.sizes[i]); bytes < 0 {
			break
		}
		entries++
	}
	return max(entries, 1)
}

// LogBytes returns the size of the log in bytes, and how many of its newest entries come to at most
// tail bytes (at least one). ok is false for stores without checks.
func (s *Store) LogBytes(tail int64) (bytes int64, entries uint64, ok bool) {
	if s.sizes == nil {
		return 0, 0, false
	}
	entries = s.sizes.newest(tail)
	s.sizes.mu.Lock()
	defer s.sizes.mu.Unlock()
	return s.sizes.total, entries, true
}

// The bounds of a logCache. One entry is kept whatever its size.
const (
	logCacheEntries = 128
	logCacheBytes   = 16 << 20
)

// logCache keeps the newest entries in memory, for followers that are nearly up to date. It is
// raft.LogCache with a bound in bytes: 128 entries may be 800 MiB.
type logCache struct {
	raft.LogStore

	mu    sync.RWMutex
	byID  map[uint64]*raft.Log
	bytes int
}

func newLogCache(logs raft.LogStore) *logCache {
	return &logCache{LogStore: logs, byID: make(map[uint64]*raft.Log, logCacheEntries)}
}

// IsMonotonic implements raft.MonotonicLogStore.
func (c *logCache) IsMonotonic() bool {
	m, ok := c.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// GetLog implements raft.LogStore.
func (c *logCache) GetLog(index uint64, l *raft.Log) error {
	c.mu.RLock()
	cached := c.byID[index]
	c.mu.RUnlock()
	if cached != nil {
		*l = *cached
		return nil
	}
	return c.LogStore.GetLog(index, l)
}

// StoreLog implements raft.LogStore.
func (c *logCache) StoreLog(l *raft.Log) error { return c.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (c *logCache) StoreLogs(logs []*raft.Log) error {
	if err := c.LogStore.StoreLogs(logs); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range logs {
		c.forget(l.Index)
		c.byID[l.Index] = l
		c.bytes += len(l.Data)
		for i := l.Index - min(l.Index, logCacheEntries); len(c.byID) > 1 &&
			(c.bytes > logCacheBytes || len(c.byID) > logCacheEntries) && i < l.Index; i++ {
			c.forget(i)
		}
	}
	return nil
}

func (c *logCache) forget(index uint64) {
	if l := c.byID[index]; l != nil {
		c.bytes -= len(l.Data)
		delete(c.byID, index)
	}
}

// DeleteRange implements raft.LogStore. It empties the cache.
func (c *logCache) DeleteRange(first, last uint64) error {
	c.mu.Lock()
	clear(c.byID)
	c.bytes = 0
	c.mu.Unlock()
	return c.LogStore.DeleteRange(first, last)
}
