package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/fsm"
)

// The log stores a Config may choose.
const (
	LogStoreBoltDB = "boltdb"
	LogStoreWAL    = "wal"
)

const (
	// maxCommandBytes bounds one encoded command, on the peer port and in the
	// log: a start request with its pictures (2 MiB) and what stands around it.
	// Raft ships 64 entries in one message, so this also bounds memory.
	maxCommandBytes = 2<<20 + 256<<10
	// maxCommandAge bounds how late a command may reach the log, on the
	// leader's clock. The secret collector relies on it: a secret written for a
	// command that was never proposed is unreferenced for good after this.
	maxCommandAge = fsm.MaxCommandAge
	// minTimer is the shortest Raft timer hashicorp/raft accepts.
	minTimer = 5 * time.Millisecond
)

// nodeNamePattern is a DNS label, because the name stands in certificates.
var nodeNamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Config is what a node needs to know. Start from DefaultConfig.
type Config struct {
	// NodeName is unique in the cluster, a DNS label; the node's certificate
	// must carry it.
	NodeName string
	// DataDir holds Raft's log, snapshots and the node's id. One node, one
	// directory.
	DataDir string
	// PeerAddress is host:port to listen on for peers; port 0 picks one.
	PeerAddress string
	// AdvertiseAddress is host:port by which peers reach this node. Empty means
	// PeerAddress; port 0 means the port listened on.
	AdvertiseAddress string
	// Listener, when set, is used instead of listening on PeerAddress. The node
	// closes it.
	Listener net.Listener
	// TLS names the files of the node's certificate and the cluster CA.
	TLS TLSConfig

	// BootstrapExpect is the number of nodes that form the cluster on its first
	// start, the same on each of them; 0 means: only ever join. It has no effect
	// once the node has state.
	BootstrapExpect int
	// Voters is how many voters the cluster is meant to have: dead ones are
	// removed only down to it. 0 means BootstrapExpect.
	Voters int
	// DeadAfter is how long a voter must have been silent before a newcomer takes
	// its place, and the protocol version is raised without it; a nonvoter is just
	// removed. 0 is never. A new leader counts on from what the last one told.
	DeadAfter time.Duration
	// RetryJoin lists peer addresses to find the cluster by. It may contain
	// this node's own.
	RetryJoin []string

	// LogStore is LogStoreBoltDB or LogStoreWAL. A node refuses to start when
	// its data directory holds a log of the other kind.
	LogStore string
	// HeartbeatTimeout, ElectionTimeout and LeaderLeaseTimeout are Raft's
	// timers, the same on every node.
	HeartbeatTimeout   time.Duration
	ElectionTimeout    time.Duration
	LeaderLeaseTimeout time.Duration
	// CommitTimeout is how long, up to twice, a follower waits to hear that an
	// entry is committed when no other entry follows: hashicorp/raft tells it with
	// the next message only. Every write through a follower, and every read on one
	// just after a write, waits for it. The library's 50 ms make that 80 ms; 3 ms
	// cost an idle node 2 % of one core.
	CommitTimeout time.Duration
	// ProposeTimeout bounds one Propose, waiting for a leader included.
	ProposeTimeout time.Duration
	// ReadTimeout bounds one linearizable View; at most MaxReadTimeout.
	ReadTimeout time.Duration
	// SnapshotInterval is how often Raft looks whether SnapshotThreshold
	// entries were written since the last snapshot; TrailingLogs entries stay
	// after one, so that a peer that was away briefly needs no snapshot.
	SnapshotInterval  time.Duration
	SnapshotThreshold uint64
	TrailingLogs      uint64

	// Clock is the node's wall clock, time.Now when nil. Tests move it.
	Clock func() time.Time
	// Logger gets the node's and Raft's own messages. Nil discards them.
	Logger *slog.Logger
	// Registerer gets the bivouac_raft_* metrics for the time of Run; wrap it
	// with a node label when several nodes share one. Nil means none.
	Registerer prometheus.Registerer
}

// TLSConfig names PEM files. The node reads them again when they change.
type TLSConfig struct {
	// CAFile holds the cluster CA's certificates; every peer's must be signed
	// by one of them.
	CAFile string
	// CertFile and KeyFile are the node's own; see Issue.
	CertFile string
	KeyFile  string
}

// DefaultConfig gives the values that were measured (DESIGN.md): everything
// but names, addresses and files.
func DefaultConfig() Config {
	return Config{
		PeerAddress:        "0.0.0.0:8301",
		LogStore:           LogStoreBoltDB,
		HeartbeatTimeout:   500 * time.Millisecond,
		ElectionTimeout:    500 * time.Millisecond,
		LeaderLeaseTimeout: 300 * time.Millisecond,
		CommitTimeout:      3 * time.Millisecond,
		ProposeTimeout:     5 * time.Second,
		ReadTimeout:        5 * time.Second,
		DeadAfter:          time.Hour,
		SnapshotInterval:   30 * time.Second,
		SnapshotThreshold:  8192,
		TrailingLogs:       10240,
	}
}

// Validate reports every field that is out of bounds, each by name with its
// bound.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if !nodeNamePattern.MatchString(c.NodeName) {
		bad("NodeName %q must be a DNS label: 1 to 63 of a-z, 0-9 and '-', not beginning or ending with '-'", c.NodeName)
	}
	if c.DataDir == "" {
		bad("DataDir must be set")
	}
	if c.Listener == nil {
		if _, _, err := net.SplitHostPort(c.PeerAddress); err != nil {
			bad("PeerAddress %q must be host:port", c.PeerAddress)
		}
	}
	if c.AdvertiseAddress != "" {
		if host, _, err := net.SplitHostPort(c.AdvertiseAddress); err != nil || unspecified(host) {
			bad("AdvertiseAddress %q must be a host:port that peers can reach", c.AdvertiseAddress)
		}
	}
	if c.TLS.CAFile == "" || c.TLS.CertFile == "" || c.TLS.KeyFile == "" {
		bad("TLS.CAFile, TLS.CertFile and TLS.KeyFile must be set: the peer port is always mutual TLS")
	}
	if c.BootstrapExpect < 0 || c.BootstrapExpect > 9 {
		bad("BootstrapExpect %d must be 0 to 9", c.BootstrapExpect)
	}
	if c.BootstrapExpect == 0 && len(c.RetryJoin) == 0 {
		bad("BootstrapExpect 0 needs RetryJoin: the node could neither form a cluster nor find one")
	}
	if c.Voters < 0 || c.Voters > 9 {
		bad("Voters %d must be 0 to 9", c.Voters)
	}
	if c.DeadAfter < 0 {
		bad("DeadAfter %v must not be negative", c.DeadAfter)
	}
	for _, a := range c.RetryJoin {
		if _, _, err := net.SplitHostPort(a); err != nil {
			bad("RetryJoin address %q must be host:port", a)
		}
	}
	if c.LogStore != LogStoreBoltDB && c.LogStore != LogStoreWAL {
		bad("LogStore %q must be %q or %q", c.LogStore, LogStoreBoltDB, LogStoreWAL)
	}
	return errors.Join(append(errs, c.validateTimers()...)...)
}

// validateTimers checks the durations and counts; hashicorp/raft would refuse
// or panic on some of them later.
func (c Config) validateTimers() []error {
	var errs []error
	atLeast := func(name string, d, bound time.Duration) {
		if d < bound {
			errs = append(errs, fmt.Errorf("%s %v must be at least %v", name, d, bound))
		}
	}
	atLeast("HeartbeatTimeout", c.HeartbeatTimeout, minTimer)
	atLeast("LeaderLeaseTimeout", c.LeaderLeaseTimeout, minTimer)
	atLeast("CommitTimeout", c.CommitTimeout, time.Millisecond)
	atLeast("ProposeTimeout", c.ProposeTimeout, minTimer)
	atLeast("ReadTimeout", c.ReadTimeout, minTimer)
	atLeast("SnapshotInterval", c.SnapshotInterval, minTimer)
	if c.ElectionTimeout < c.HeartbeatTimeout {
		errs = append(errs, fmt.Errorf("ElectionTimeout %v must be at least HeartbeatTimeout %v", c.ElectionTimeout, c.HeartbeatTimeout))
	}
	if c.LeaderLeaseTimeout > c.HeartbeatTimeout {
		errs = append(errs, fmt.Errorf("LeaderLeaseTimeout %v must be at most HeartbeatTimeout %v: a leader must step down before its followers elect another", c.LeaderLeaseTimeout, c.HeartbeatTimeout))
	}
	if c.ProposeTimeout > maxCallTimeout || c.ReadTimeout > maxCallTimeout {
		errs = append(errs, fmt.Errorf("ProposeTimeout %v and ReadTimeout %v must be at most %v", c.ProposeTimeout, c.ReadTimeout, maxCallTimeout))
	}
	if c.SnapshotThreshold == 0 {
		errs = append(errs, errors.New("SnapshotThreshold 0 must be at least 1"))
	}
	return errs
}

func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || (ip != nil && ip.IsUnspecified())
}
