package raftstore

import (
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// Inmem is a log and stable store in memory, for tests. It reports a missing key by
// raft-boltdb's error value, as the stable store on disk does.
type Inmem struct{ *raft.InmemStore }

// NewInmem gives an empty Inmem.
func NewInmem() *Inmem { return &Inmem{raft.NewInmemStore()} }

// Get implements raft.StableStore. A missing key is the only error of the library's store.
func (s *Inmem) Get(key []byte) ([]byte, error) {
	value, err := s.InmemStore.Get(key)
	if err != nil {
		return nil, raftboltdb.ErrKeyNotFound
	}
	return value, nil
}
