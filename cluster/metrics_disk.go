package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// diskNoteInterval is how often a node looks at what Raft keeps on the disk, for the metrics. A
// scrape does not wait for the disk.
const diskNoteInterval = 10 * time.Second

// diskNote is what was last seen.
type diskNote struct {
	oldest        time.Time
	snapshotAt    time.Time
	snapshotBytes int64
	snapshotIndex uint64
}

// noteDisk keeps onDisk current until ctx ends.
func (n *Node) noteDisk(ctx context.Context) {
	n.lookAtDisk()
	every(ctx, diskNoteInterval, n.lookAtDisk)
}

// lookAtDisk reads the first entry of the log, and the newest snapshot's description.
func (n *Node) lookAtDisk() {
	var now diskNote
	if first, err := n.storage.Logs.FirstIndex(); err == nil && first > 0 {
		var entry raft.Log
		// Raft may delete the entry in this moment: then the next look finds another.
		if err := n.storage.Logs.GetLog(first, &entry); err == nil {
			now.oldest = entry.AppendedAt
		}
	}
	if n.storage.Snapshots != nil {
		if list, err := n.storage.Snapshots.List(); err == nil && len(list) > 0 {
			now.snapshotBytes, now.snapshotIndex = list[0].Size, list[0].Index
			now.snapshotAt = snapshotTime(list[0].ID)
		}
	}
	n.onDisk.Store(&now)
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
