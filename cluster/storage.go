package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	// snapshotsKept is how many snapshots stay on disk.
	snapshotsKept = 2
	// logCacheEntries are kept in memory for followers that are nearly there.
	logCacheEntries = 128
	// lockTimeout is how long opening waits for another process that has the
	// data directory.
	lockTimeout = time.Second
)

// Storage is where a node keeps Raft's state. New opens the real one; tests
// hand in raft's in-memory stores.
type Storage struct {
	Logs raft.LogStore
	// Stable keeps Raft's vote, and the node's id and promise (formation.go).
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	// Close releases all of it; Run calls it when Raft has stopped.
	Close func() error
}

// openStorage opens or makes everything under dir:
//
//	dir/raft.db      votes, the node id, and the log unless it is a WAL
//	dir/wal/         the log, with LogStoreWAL
//	dir/snapshots/   by hashicorp/raft
func openStorage(dir, logStore string, logger hclog.Logger) (Storage, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Storage{}, fmt.Errorf("making data directory: %w", err)
	}
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path: filepath.Join(dir, "raft.db"),
		// Without the freelist on disk an append writes less (10 to 25 % more
		// appends per second); opening scans the file instead.
		BoltOptions: &bbolt.Options{Timeout: lockTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return Storage{}, fmt.Errorf("opening %s: another process uses this data directory", filepath.Join(dir, "raft.db"))
	}
	if err != nil {
		return Storage{}, fmt.Errorf("opening %s: %w", filepath.Join(dir, "raft.db"), err)
	}
	s := Storage{Stable: bolt, Close: bolt.Close}
	if err := s.openLog(dir, logStore, bolt, logger); err != nil {
		return Storage{}, errors.Join(err, s.Close())
	}
	if s.Snapshots, err = raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, logger); err != nil {
		return Storage{}, errors.Join(fmt.Errorf("opening snapshots: %w", err), s.Close())
	}
	return s, nil
}

// openLog chooses the log store. Changing the kind under a node would lose its
// log, so finding the other kind is an error.
func (s *Storage) openLog(dir, logStore string, bolt *raftboltdb.BoltStore, logger hclog.Logger) error {
	walDir := filepath.Join(dir, "wal")
	var logs raft.LogStore = bolt
	switch logStore {
	case LogStoreBoltDB:
		if _, err := os.Stat(walDir); err == nil {
			return fmt.Errorf("data directory %s holds a %q log; set the log store back, or start with an empty directory and let the node join again", dir, LogStoreWAL)
		}
	case LogStoreWAL:
		last, err := bolt.LastIndex()
		if err != nil {
			return fmt.Errorf("reading last index: %w", err)
		}
		if last > 0 {
			return fmt.Errorf("data directory %s holds a %q log; set the log store back, or start with an empty directory and let the node join again", dir, LogStoreBoltDB)
		}
		if err := os.MkdirAll(walDir, 0o700); err != nil {
			return fmt.Errorf("making log directory: %w", err)
		}
		w, err := wal.Open(walDir, wal.WithLogger(logger.Named("wal")))
		if err != nil {
			return fmt.Errorf("opening write-ahead log %s: %w", walDir, err)
		}
		logs = w
		s.Close = func() error { return errors.Join(w.Close(), bolt.Close()) }
	}
	cached, err := raft.NewLogCache(logCacheEntries, logs)
	if err != nil {
		return fmt.Errorf("caching log: %w", err)
	}
	s.Logs = cached
	return nil
}

// The keys of ours in the stable store.
var (
	keyNodeID  = []byte("bivouac_node_id")
	keyPromise = []byte("bivouac_promise")
)

// getString reads a key of ours; absent is "".
func getString(s raft.StableStore, key []byte) (string, error) {
	b, err := s.Get(key)
	// The stores have no common sentinel; hashicorp/raft compares the text too.
	if err != nil && err.Error() != "not found" {
		return "", err
	}
	return string(b), nil
}
