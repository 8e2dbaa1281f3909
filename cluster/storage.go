package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
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
	// openPatience is how long opening may take before it is said.
	openPatience = 10 * time.Second
)

// Storage is where a node keeps Raft's state. New opens the real one; tests hand
// in stores in memory, with or without the checks (see CheckedStorage).
type Storage struct {
	Logs raft.LogStore
	// Stable keeps Raft's vote, and the node's id and promise (formation.go).
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	// Close releases all of it; Run calls it when Raft has stopped.
	Close func() error

	// disk watches over the files, mark over the end of the log, and arm is
	// called when Raft runs; all nil for stores in memory.
	disk *disk
	mark *logMark
	arm  func()
}

// openStorage opens or makes everything under dir and verifies all of it:
//
//	dir/raft.db      votes, the node id, and the log unless it is a WAL
//	dir/wal/         the log, with LogStoreWAL
//	dir/snapshots/   by hashicorp/raft, with our checksums
func openStorage(dir, logStore string, logger *slog.Logger) (Storage, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Storage{}, fmt.Errorf("making data directory: %w", err)
	}
	slow := time.AfterFunc(openPatience, func() {
		logger.Error("cluster: opening the data directory takes long: is the disk all right?", "path", dir, "duration", openPatience)
	})
	defer slow.Stop()
	d := newDisk(dir, logger)
	if err := d.checkPlace(); err != nil {
		return Storage{}, err
	}
	s := Storage{disk: d}
	var err error
	// What a library makes of a damaged file is an error, if only by panicking.
	contain := contained(func() error { err = s.open(dir, logStore, raftLogger(logger)); return nil })
	if contain != nil {
		return Storage{}, d.damaged(dir, "%v", contain)
	}
	return s, err
}

// open opens the stores, each below its checks.
func (s *Storage) open(dir, logStore string, logger hclog.Logger) error {
	path := filepath.Join(dir, "raft.db")
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		// Without the freelist on disk an append writes less (10 to 25 % more
		// appends per second); opening scans the file instead.
		BoltOptions: &bbolt.Options{Timeout: lockTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("opening %s: another process uses this data directory", path)
	}
	if err != nil {
		return fmt.Errorf("opening %s: %w; %s", path, err, s.disk.advice(err))
	}
	s.Close = bolt.Close
	if err := s.openOver(dir, path, logStore, bolt, logger); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// openOver opens what needs the stable store, and verifies.
func (s *Storage) openOver(dir, path, logStore string, bolt *raftboltdb.BoltStore, logger hclog.Logger) error {
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, logger)
	if err != nil {
		return fmt.Errorf("opening snapshots: %w; %s", err, s.disk.advice(err))
	}
	sums := snapshotDir(filepath.Join(dir, "snapshots"))
	return s.check(Stores{Logs: bolt, Stable: bolt, Snapshots: files, Sums: sums}, path, string(sums), func(logs *checkedLogs) error {
		return s.openLog(dir, logStore, logs, logger)
	})
}

// Stores are what a Storage consists of before its checks.
type Stores struct {
	Logs      raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	Sums      SnapshotSums
}

// SnapshotSums keeps a checksum beside each snapshot of a store.
type SnapshotSums interface {
	// Put keeps that of a snapshot which is still being written.
	Put(id, sum string) error
	// Get gives that of a complete one; os.ErrNotExist if it has none.
	Get(id string) (string, error)
	// IDs gives the ids of all complete snapshots, whole or not.
	IDs() ([]string, error)
}

// CheckedStorage puts the checks of New over stores that are in no data directory,
// and verifies what is in them. The cluster's tests use it.
func CheckedStorage(stores Stores, logger *slog.Logger) (Storage, error) {
	s := Storage{disk: newDisk("memory", logger), Close: func() error { return nil }}
	err := s.check(stores, "memory", "memory", func(*checkedLogs) error { return nil })
	return s, err
}

// check puts the checks over the stores, which are at path, snapshots at dir, and
// verifies them. open may choose another log.
func (s *Storage) check(stores Stores, path, dir string, open func(*checkedLogs) error) error {
	stable := &checkedStable{inner: stores.Stable, disk: s.disk, path: path}
	s.Stable = stable
	if err := s.loadMark(stable); err != nil {
		return err
	}
	logs := &checkedLogs{inner: stores.Logs, disk: s.disk, path: path, mark: s.mark}
	if err := open(logs); err != nil {
		return err
	}
	cached, err := raft.NewLogCache(logCacheEntries, logs)
	if err != nil {
		return fmt.Errorf("caching log: %w", err)
	}
	s.Logs = cached
	snapshots := &checkedSnapshots{SnapshotStore: stores.Snapshots, sums: stores.Sums, disk: s.disk, dir: dir, mark: s.mark}
	s.Snapshots = snapshots
	s.arm = func() { snapshots.armed.Store(true) }
	if err := s.finishRecovery(snapshots); err != nil {
		return err
	}
	if err := s.verify(logs, snapshots); err != nil {
		return err
	}
	stable.armed.Store(true)
	logs.armed.Store(true)
	return nil
}

// openLog chooses the log store. Changing the kind under a node would lose its
// log, so finding the other kind is an error.
func (s *Storage) openLog(dir, logStore string, logs *checkedLogs, logger hclog.Logger) error {
	if logStore == LogStoreWAL {
		return s.openWAL(dir, logs, logger)
	}
	if _, err := os.Stat(filepath.Join(dir, "wal")); err == nil {
		return fmt.Errorf("data directory %s holds a %q log; set the log store back, or start with an empty directory and let the node join again", dir, LogStoreWAL)
	}
	return nil
}

// The keys of ours in the stable store.
var (
	keyNodeID   = []byte("bivouac_node_id")
	keyPromise  = []byte("bivouac_promise")
	keyMark     = []byte("bivouac_log_mark")
	keyRecovery = []byte("bivouac_recovery")
	keyStarts   = []byte("bivouac_starts")
	keyWitness  = []byte("bivouac_witness")
	keyPlace    = []byte("bivouac_place")
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
