// Package raftstore keeps a node's Raft state in its data directory: the log, the stable
// store (term, vote and Bivouac's own keys) and the snapshots.
//
//	DIR/raft.db      stable store
//	DIR/wal/         the log; an older program kept it in raft.db, and Open moves it (move.go)
//	DIR/snapshots/   by hashicorp/raft, with a checksum of the metadata beside each
//
// Each store lies below checks: every log entry, every value and every snapshot carries a
// checksum that is verified whenever it is read, and Open reads all of it once. A damaged
// file is an error that names the file and the way out; it never reaches Raft. The first
// error of a write is the last operation: a failed fsync can't be repeated.
//
// The package knows nothing of members or commands. Package cluster opens it.
package raftstore

import (
	"errors"
	"fmt"
	"io"
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

// Bivouac's keys in the stable store. Package cluster owns the values of the exported ones.
const (
	KeyNodeID  = "bivouac_node_id"
	KeyPromise = "bivouac_promise"
	KeyStarts  = "bivouac_starts"
	KeyWitness = "bivouac_witness"
	KeyProofs  = "bivouac_proofs"

	keyMark     = "bivouac_log_mark"
	keyRecovery = "bivouac_recovery"
	keyPlace    = "bivouac_place"
)

const (
	// snapshotsKept is how many snapshots stay on disk.
	snapshotsKept = 2
	// lockTimeout is how long opening waits for another process that has the
	// data directory.
	lockTimeout = time.Second
	// slowOpen is how long opening may take before it is logged.
	slowOpen = 10 * time.Second
)

// Options say how Open opens a data directory.
type Options struct {
	Logger *slog.Logger
	// Library is the logger of hashicorp/raft's stores.
	Library hclog.Logger
	// Entry and State, if set, judge each log entry and the newest snapshot. Their errors are Open's,
	// before Raft sees the directory.
	Entry func(*raft.Log) error
	State func(io.Reader) error
	// at and every are a move's, for tests.
	at    func(step string) error
	every time.Duration
}

// Store is an opened data directory. A test may build one of stores in memory, without
// checks; Check puts the checks over stores in memory.
type Store struct {
	Logs      raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	// Close releases all of it. The node calls it when Raft has stopped.
	Close func() error

	// watchdog watches the files, mark the end of the log; arm has a damaged snapshot stop
	// the node; sizes are of the log's entries. All are nil for stores without checks.
	watchdog *Watchdog
	mark     *logMark
	arm      func()
	sizes    *logSizes
	// judgeEntry and judgeState are Options.Entry and Options.State.
	judgeEntry func(*raft.Log) error
	judgeState func(io.Reader) error
}

// Open opens or creates everything under dir and verifies all of it. It waits a second for
// another process that has the directory.
func Open(dir string, o Options) (Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Store{}, fmt.Errorf("making data directory: %w", err)
	}
	slow := time.AfterFunc(slowOpen, func() {
		o.Logger.Error("cluster: opening the data directory takes long: is the disk all right?", "path", dir, "duration",
			slowOpen)
	})
	defer slow.Stop()
	w := newWatchdog(dir, o.Logger)
	if err := w.checkDir(); err != nil {
		return Store{}, err
	}
	s := Store{watchdog: w, judgeEntry: o.Entry, judgeState: o.State}
	var err error
	// The libraries panic on some damaged files.
	if panicked := Contain(func() error { err = s.open(dir, o); return nil }); panicked != nil {
		return Store{}, w.damaged(dir, "%v", panicked)
	}
	return s, err
}

// Watchdog gives the watchdog of the data directory; nil for stores without checks, and
// a nil Watchdog reports no trouble.
func (s *Store) Watchdog() *Watchdog { return s.watchdog }

// Arm has a damaged snapshot stop the node. The node calls it when Raft runs: until then
// Raft takes an older snapshot instead.
func (s *Store) Arm() {
	if s.arm != nil {
		s.arm()
	}
}

// open opens the stable store, and the rest over it.
func (s *Store) open(dir string, o Options) error {
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
		return fmt.Errorf("opening %s: %w; %s", path, err, s.watchdog.advice(err))
	}
	s.Close = bolt.Close
	if err := s.openOver(dir, path, bolt, o); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// openOver opens the snapshots and the log, and verifies all stores.
func (s *Store) openOver(dir, path string, bolt *raftboltdb.BoltStore, o Options) error {
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, o.Library)
	if err != nil {
		return fmt.Errorf("opening snapshots: %w; %s", err, s.watchdog.advice(err))
	}
	sums := snapshotDir(filepath.Join(dir, "snapshots"))
	stores := Stores{Logs: bolt, Stable: bolt, Snapshots: files, Sums: sums}
	return s.check(stores, path, string(sums),
		func(logs *checkedLogs, verify func() error) error { return s.openLog(dir, logs, o, verify) })
}

// Stores are the parts of a Store before its checks.
type Stores struct {
	Logs      raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	Sums      SnapshotSums
}

// SnapshotSums keeps a checksum beside each snapshot of a store.
type SnapshotSums interface {
	// Put stores the checksum of a snapshot that is still being written.
	Put(id, sum string) error
	// Get gives the checksum of a complete snapshot; os.ErrNotExist if it has none.
	Get(id string) (string, error)
	// IDs gives the ids of all complete snapshots, readable or not.
	IDs() ([]string, error)
}

// Check puts the checks of Open over stores that lie in no data directory, and verifies
// their contents. The tests of a cluster in one process use it.
func Check(stores Stores, logger *slog.Logger) (Store, error) {
	s := Store{watchdog: newWatchdog("memory", logger), Close: func() error { return nil }}
	err := s.check(stores, "memory", "memory", func(*checkedLogs, func() error) error { return nil })
	return s, err
}

// check puts the checks over the stores, which lie at path, snapshots at dir, and
// verifies them. open may replace the log, and may have it verified before.
func (s *Store) check(stores Stores, path, dir string, open func(*checkedLogs, func() error) error) error {
	stable := &checkedStable{inner: stores.Stable, watchdog: s.watchdog, path: path}
	s.Stable = stable
	if err := s.loadMark(stable); err != nil {
		return err
	}
	logs := &checkedLogs{inner: stores.Logs, watchdog: s.watchdog, path: path, mark: s.mark}
	snapshots := &checkedSnapshots{
		SnapshotStore: stores.Snapshots,
		sums:          stores.Sums,
		watchdog:      s.watchdog,
		dir:           dir,
		mark:          s.mark,
	}
	verify := func() error {
		if err := s.finishRecovery(snapshots); err != nil {
			return err
		}
		return s.verify(logs, snapshots)
	}
	if err := open(logs, verify); err != nil {
		return err
	}
	s.Logs, s.sizes = newLogCache(logs), &logs.sizes
	s.Snapshots = snapshots
	s.arm = func() { snapshots.armed.Store(true) }
	if err := verify(); err != nil {
		return err
	}
	stable.armed.Store(true)
	logs.armed.Store(true)
	return nil
}

// Get reads a key of the stable store; a missing key is "".
func Get(s raft.StableStore, key string) (string, error) {
	b, err := s.Get([]byte(key))
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return "", nil
	}
	return string(b), err
}

// GetUint64 reads a number of Raft's own; a missing key is 0.
func GetUint64(s raft.StableStore, key string) (uint64, error) {
	n, err := s.GetUint64([]byte(key))
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return 0, nil
	}
	return n, err
}

// Set stores a key of the stable store; an empty value deletes nothing but reads as "".
func Set(s raft.StableStore, key, value string) error { return s.Set([]byte(key), []byte(value)) }
