package clustertest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/cluster/raftstore"
)

// disk is what survives a node's restart: stores in memory below production's checks.
type disk struct {
	logs      *logs
	snapshots *snapshots
	events    *vfs.MemFS
}

func newDisk() *disk {
	return &disk{
		logs: &logs{raftstore.NewInmem()}, snapshots: &snapshots{sums: map[string]string{}}, events: vfs.NewCrashableMem(),
	}
}

// openEvents opens the store of events.
func (d *disk) openEvents(logger *slog.Logger) (*eventstore.Store, error) {
	return eventstore.Open("events", eventstore.Options{
		FS: d.events, Logger: logger, CacheBytes: 1 << 20, MemTableBytes: 256 << 10,
	})
}

// storage opens the disk with production's checks and verifies it.
func (d *disk) storage(logger *slog.Logger) (raftstore.Store, error) {
	return raftstore.Check(
		raftstore.Stores{Logs: d.logs, Stable: d.logs, Snapshots: d.snapshots, Sums: d.snapshots}, logger,
	)
}

// logs is a log without gaps, as raft-wal requires.
type logs struct{ *raftstore.Inmem }

// StoreLog implements raft.LogStore.
func (l *logs) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l *logs) StoreLogs(entries []*raft.Log) error {
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if last > 0 && e.Index != last+1 {
			return fmt.Errorf("entry %d does not follow entry %d", e.Index, last)
		}
		last = e.Index
	}
	return l.Inmem.StoreLogs(entries)
}

// DeleteRange implements raft.LogStore.
func (l *logs) DeleteRange(first, last uint64) error {
	begin, err := l.FirstIndex()
	if err != nil {
		return err
	}
	end, err := l.LastIndex()
	if err != nil {
		return err
	}
	if first > begin && last < end {
		return errors.New("entries from within the log can't be deleted")
	}
	return l.Inmem.DeleteRange(first, last)
}

// snapshots holds the newest snapshot and its checksum. Raft's own in-memory store lists a snapshot
// while it is being written; a file store does not.
type snapshots struct {
	mu       sync.Mutex
	meta     *raft.SnapshotMeta
	contents []byte
	sums     map[string]string
}

// Create implements raft.SnapshotStore.
func (s *snapshots) Create(
	version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	return &sink{store: s, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d", term, index), Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}}, nil
}

// List implements raft.SnapshotStore.
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meta == nil {
		return nil, nil
	}
	meta := *s.meta
	return []*raft.SnapshotMeta{&meta}, nil
}

// Open implements raft.SnapshotStore.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meta == nil || s.meta.ID != id {
		return nil, nil, fmt.Errorf("no snapshot %s", id)
	}
	meta := *s.meta
	return &meta, io.NopCloser(bytes.NewReader(s.contents)), nil
}

// Put implements raftstore.SnapshotSums.
func (s *snapshots) Put(id, sum string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sums[id] = sum
	return nil
}

// Get implements raftstore.SnapshotSums.
func (s *snapshots) Get(id string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum, ok := s.sums[id]
	if !ok {
		return "", os.ErrNotExist
	}
	return sum, nil
}

// IDs implements raftstore.SnapshotSums.
func (s *snapshots) IDs() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meta == nil {
		return nil, nil
	}
	return []string{s.meta.ID}, nil
}

// sink gathers one snapshot.
type sink struct {
	bytes.Buffer
	store *snapshots
	meta  raft.SnapshotMeta
}

// ID implements raft.SnapshotSink.
func (s *sink) ID() string { return s.meta.ID }

// Close implements raft.SnapshotSink. The snapshot becomes visible unless a newer one is there.
func (s *sink) Close() error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.meta.Size = int64(s.Len())
	if now := s.store.meta; now != nil && (now.Term > s.meta.Term || now.Term == s.meta.Term && now.Index > s.meta.Index) {
		return nil
	}
	if s.store.meta != nil && s.store.meta.ID != s.meta.ID {
		delete(s.store.sums, s.store.meta.ID)
	}
	s.store.meta, s.store.contents = &s.meta, s.Bytes()
	return nil
}

// Cancel implements raft.SnapshotSink.
func (s *sink) Cancel() error { return nil }
