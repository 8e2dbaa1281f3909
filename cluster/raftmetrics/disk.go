package raftmetrics

import (
	"context"
	"fmt"
	"time"

	"bivouac.dev/bivouac/cluster/raftstore"
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// diskInterval is how often a node looks at what Raft keeps on the disk. A scrape does not wait for
// the disk.
const diskInterval = 10 * time.Second

// disk is what was last seen of it.
type disk struct {
	oldest        time.Time
	snapshotAt    time.Time
	snapshotBytes int64
	snapshotIndex uint64
}

// WatchDisk looks at what Raft keeps on the disk until ctx ends.
func (m *Metrics) WatchDisk(ctx context.Context, s *raftstore.Store) {
	tick := time.NewTicker(diskInterval)
	defer tick.Stop()
	for {
		m.disk.Store(look(s))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look reads the first entry of the log, and the newest snapshot's description.
func look(s *raftstore.Store) *disk {
	now := disk{oldest: oldestEntry(s.Logs)}
	if s.Snapshots != nil {
		if list, err := s.Snapshots.List(); err == nil && len(list) > 0 {
			now.snapshotBytes, now.snapshotIndex = list[0].Size, list[0].Index
			now.snapshotAt = snapshotTime(list[0].ID)
		}
	}
	return &now
}

// undatedEntries is how many entries at the begin of a log may have no time: those of a bootstrap
// have none.
const undatedEntries = 8

// oldestEntry returns when the first entry with a time was appended.
func oldestEntry(logs raft.LogStore) time.Time {
	first, err := logs.FirstIndex()
	if err != nil || first == 0 {
		return time.Time{}
	}
	for index := first; index < first+undatedEntries; index++ {
		var entry raft.Log
		// Raft may delete the entry in this moment: then the next look finds another.
		if err := logs.GetLog(index, &entry); err == nil && !entry.AppendedAt.IsZero() {
			return entry.AppendedAt
		}
	}
	return time.Time{}
}

// snapshotTime returns when a snapshot was begun, zero if its id does not say so. Raft's ids are
// "term-index-milliseconds".
func snapshotTime(id string) time.Time {
	var term, index, at int64
	if n, err := fmt.Sscanf(id, "%d-%d-%d", &term, &index, &at); err != nil || n != 3 {
		return time.Time{}
	}
	return time.UnixMilli(at)
}

// TimeLogs measures the writes of a log store.
func (m *Metrics) TimeLogs(logs raft.LogStore) raft.LogStore { return timedLogs{logs, m.LogWrite} }

// timedLogs measures the writes of a log store.
type timedLogs struct {
	raft.LogStore
	took prometheus.Observer
}

// StoreLog implements raft.LogStore.
func (l timedLogs) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l timedLogs) StoreLogs(entries []*raft.Log) error {
	begin := time.Now()
	err := l.LogStore.StoreLogs(entries)
	l.took.Observe(time.Since(begin).Seconds())
	return err
}

// IsMonotonic implements raft.MonotonicLogStore.
func (l timedLogs) IsMonotonic() bool {
	m, ok := l.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}
