package clustertest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
)

// disk is what survives a node's restart: what production's checks are put over,
// in memory.
type disk struct {
	logs      *logs
	snapshots *snapshots
}

func newDisk() *disk {
	return &disk{logs: &logs{raft.NewInmemStore()}, snapshots: &snapshots{sums: map[string]string{}}}
}

// storage opens the disk with production's checks, and verifies it.
func (d *disk) storage(logger *slog.Logger) (cluster.Storage, error) {
	return cluster.CheckedStorage(cluster.Stores{Logs: d.logs, Stable: d.logs, Snapshots: d.snapshots, Sums: d.snapshots}, logger)
}

// logs is a log without holes, as raft-wal keeps it.
type logs struct{ *raft.InmemStore }

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
	return l.InmemStore.StoreLogs(entries)
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
	return l.InmemStore.DeleteRange(first, last)
}

// snapshots keeps the newest snapshot, and its checksum. Raft's own in-memory store
// shows a snapshot while it is still being written, which no file store does.
type snapshots struct {
	mu       sync.Mutex
	meta     *raft.SnapshotMeta
	contents []byte
	sums     map[string]string
}

// Create implements raft.SnapshotStore.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration, configurationIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
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

// Put implements cluster.SnapshotSums.
func (s *snapshots) Put(id, sum string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sums[id] = sum
	return nil
}

// Get implements cluster.SnapshotSums.
func (s *snapshots) Get(id string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum, ok := s.sums[id]
	if !ok {
		return "", os.ErrNotExist
	}
	return sum, nil
}

// IDs implements cluster.SnapshotSums.
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

// Close implements raft.SnapshotSink: the snapshot appears, unless a newer one is
// there.
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
