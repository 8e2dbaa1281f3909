package clustertest

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
)

// disk is what survives a node's restart.
type disk struct {
	logs      *raft.InmemStore
	snapshots *snapshots
}

func newDisk() *disk {
	return &disk{logs: raft.NewInmemStore(), snapshots: &snapshots{}}
}

func (d *disk) storage() cluster.Storage {
	return cluster.Storage{Logs: d.logs, Stable: d.logs, Snapshots: d.snapshots, Close: func() error { return nil }}
}

// snapshots keeps the newest snapshot. Raft's own in-memory store shows a
// snapshot while it is still being written, which no file store does.
type snapshots struct {
	mu       sync.Mutex
	meta     *raft.SnapshotMeta
	contents []byte
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

// sink gathers one snapshot.
type sink struct {
	bytes.Buffer
	store *snapshots
	meta  raft.SnapshotMeta
}

// ID implements raft.SnapshotSink.
func (s *sink) ID() string { return s.meta.ID }

// Close implements raft.SnapshotSink: the snapshot appears.
func (s *sink) Close() error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.meta.Size = int64(s.Len())
	s.store.meta, s.store.contents = &s.meta, s.Bytes()
	return nil
}

// Cancel implements raft.SnapshotSink.
func (s *sink) Cancel() error { return nil }
