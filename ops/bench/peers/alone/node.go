package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"go.etcd.io/bbolt"

	"bivouac.dev/bivouac/cluster"
)

// options are the flags.
type options struct {
	me                         int
	peers                      []string
	dir, store                 string
	heartbeat, election, lease time.Duration
	// product has the defaults of package cluster.
	product cluster.Config
}

// node is one member of the cluster.
type node struct {
	raft   *raft.Raft
	closed func() error
}

// open joins the members and forms the cluster on the first start. All settings are package
// cluster's, except that there is no TLS and that the library does the pipelining: this is the
// limit.
func open(o options) (*node, error) {
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return nil, err
	}
	logger := hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Info})
	stable, logs, closed, err := openLog(o, logger)
	if err != nil {
		return nil, err
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(o.dir, 2, logger)
	if err != nil {
		return nil, err
	}
	address, err := net.ResolveTCPAddr("tcp", o.peers[o.me])
	if err != nil {
		return nil, err
	}
	transport, err := raft.NewTCPTransportWithLogger(o.peers[o.me], address, 3, 5*time.Second, logger)
	if err != nil {
		return nil, err
	}
	conf := raft.DefaultConfig()
	conf.LocalID = memberID(o.me)
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = o.heartbeat, o.election, o.lease
	conf.SnapshotInterval, conf.SnapshotThreshold = o.product.SnapshotInterval, o.product.SnapshotThreshold
	conf.TrailingLogs = o.product.TrailingLogs
	conf.CommitTimeout = o.product.CommitTimeout
	conf.BatchApplyCh = true
	conf.Logger = logger
	conf.NoLegacyTelemetry = true
	r, err := raft.NewRaft(conf, nothing{}, logs, stable, snapshots, transport)
	if err != nil {
		return nil, fmt.Errorf("starting Raft: %w", err)
	}
	var members raft.Configuration
	for i, p := range o.peers {
		members.Servers = append(members.Servers, raft.Server{ID: memberID(i), Address: raft.ServerAddress(p)})
	}
	if err := r.BootstrapCluster(members).Error(); err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return nil, fmt.Errorf("forming the cluster: %w", err)
	}
	return &node{raft: r, closed: closed}, nil
}

func memberID(i int) raft.ServerID { return raft.ServerID("n" + strconv.Itoa(i)) }

// openLog is cluster/raftstore's, with one more store.
func openLog(o options, logger hclog.Logger) (raft.StableStore, raft.LogStore, func() error, error) {
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path: filepath.Join(o.dir, "raft.db"),
		BoltOptions: &bbolt.Options{
			Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		},
	})
	if err != nil {
		return nil, nil, nil, err
	}
	var logs raft.LogStore = bolt
	closed := bolt.Close
	if o.store == "wal" {
		dir := filepath.Join(o.dir, "wal")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, nil, nil, err
		}
		w, err := wal.Open(dir, wal.WithLogger(logger))
		if err != nil {
			return nil, nil, nil, err
		}
		logs = w
		closed = func() error { return errors.Join(w.Close(), bolt.Close()) }
	}
	cached, err := raft.NewLogCache(512, logs)
	if err != nil {
		return nil, nil, nil, err
	}
	return bolt, cached, closed, nil
}

func (n *node) close() {
	_ = n.raft.Shutdown().Error() // the process ends
	_ = n.closed()
}

// nothing is a state machine without state: only Raft is measured.
type nothing struct{}

// Apply implements raft.FSM.
func (nothing) Apply(*raft.Log) any { return nil }

// Snapshot implements raft.FSM.
func (nothing) Snapshot() (raft.FSMSnapshot, error) { return nothing{}, nil }

// Restore implements raft.FSM.
func (nothing) Restore(r io.ReadCloser) error { return r.Close() }

// Persist implements raft.FSMSnapshot.
func (nothing) Persist(sink raft.SnapshotSink) error { return sink.Close() }

// Release implements raft.FSMSnapshot.
func (nothing) Release() {}
