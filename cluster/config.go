package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

const (
	// maxCommandAge bounds how late a command may reach the log, by the leader's clock. The secret
	// collector relies on it: a secret of a command that was never proposed is unreferenced after this
	// time.
	maxCommandAge = fsm.MaxCommandAge
	// minTimer is the shortest Raft timer that hashicorp/raft accepts.
	minTimer = 5 * time.Millisecond
)

// EventsDir is the directory of the store of events below Config.DataDir.
const EventsDir = "events"

// Config configures a node. Start from DefaultConfig.
type Config struct {
	// NodeName is a DNS label, unique in the cluster. The node's certificate must have it.
	NodeName string
	// DataDir has Raft's log and snapshots and the node's id. Nodes must not share it.
	DataDir string
	// PeerAddress is host:port to listen on for peers; port 0 picks one.
	PeerAddress string
	// AdvertiseAddress is the host:port at which peers reach this node. Empty means PeerAddress; port
	// 0 means the port it listens on.
	AdvertiseAddress string
	// Listener, if set, replaces PeerAddress. The node closes it.
	Listener net.Listener
	// TLS names the files of the node's certificate and the cluster CA.
	TLS peernet.TLSFiles

	// BootstrapExpect is the number of nodes that form the cluster on its first start, the same on
	// each. 0 only joins. It has no effect once the node has state.
	BootstrapExpect int
	// Voters is the wanted number of voters: dead ones are removed only down to it. 0 means
	// BootstrapExpect.
	Voters int
	// RaiseProtocol has the leader raise the protocol version as soon as all members know a newer one.
	// Without it that happens in a new cluster alone, and an operator does it later (SetProtocol).
	RaiseProtocol bool
	// DeadAfter is how long a voter must be silent before a nonvoter replaces it and the protocol
	// version of a new cluster is raised without it. A nonvoter is removed after the same time. 0
	// means never. Each leader counts anew: late, never early (ops/decisions/0022).
	DeadAfter time.Duration
	// RetryJoin lists peer addresses at which to find the cluster. It may contain this node's own.
	RetryJoin []string

	// HeartbeatTimeout, ElectionTimeout and LeaderLeaseTimeout are Raft's timers, the same on every
	// node.
	HeartbeatTimeout   time.Duration
	ElectionTimeout    time.Duration
	LeaderLeaseTimeout time.Duration
	// CommitTimeout is how often, up to half as often, hashicorp/raft tells each follower what is
	// committed. This node tells them by itself when there is something to tell (replication/announce.go),
	// so it only matters where that message is lost. Each one wakes both nodes.
	CommitTimeout time.Duration
	// ProposeTimeout bounds one Propose, including the wait for a leader.
	ProposeTimeout time.Duration
	// ReadTimeout bounds one linearizable View; at most MaxReadTimeout.
	ReadTimeout time.Duration
	// SnapshotInterval is how often Raft checks for SnapshotThreshold new entries. TrailingLogs
	// entries stay after a snapshot, so that a peer that was briefly away needs no snapshot.
	SnapshotInterval  time.Duration
	SnapshotThreshold uint64
	TrailingLogs      uint64
	// TrailingBytes bounds the log in bytes: above it a snapshot is taken, and entries of at most half
	// of it stay.
	TrailingBytes int64

	// Report makes the node's report but for Ready and Reason, in half a second at most: peers wait
	// for it. It may be nil.
	Report func() Report
	// Observe answers Node.Observe for this node; nil refuses.
	Observe func(ctx context.Context, o Observation) ([]byte, error)

	// OpenEvents opens the store of events at its first use; nil is the one in DataDir, and with NewWith
	// none.
	OpenEvents func() (*eventstore.Store, error)

	// Free is how many bytes the file system of DataDir has left, nil for what the machine says, and with
	// NewWith for enough.
	Free func() (uint64, error)

	// Clock is the node's wall clock, time.Now when nil. Tests move it.
	Clock func() time.Time
	// Logger gets the node's and Raft's own messages. Nil discards them.
	Logger *slog.Logger
	// Registerer gets the bivouac_raft_* metrics while Run runs. Add a node label when several nodes
	// share it. Nil registers none.
	Registerer prometheus.Registerer
}

// DefaultConfig returns the measured defaults (cluster/DESIGN.md, "Decisions and trade-offs"): all
// but names, addresses and files.
func DefaultConfig() Config {
	return Config{
		PeerAddress:        "0.0.0.0:8301",
		HeartbeatTimeout:   500 * time.Millisecond,
		ElectionTimeout:    500 * time.Millisecond,
		LeaderLeaseTimeout: 300 * time.Millisecond,
		CommitTimeout:      150 * time.Millisecond,
		ProposeTimeout:     5 * time.Second,
		ReadTimeout:        5 * time.Second,
		DeadAfter:          time.Hour,
		SnapshotInterval:   30 * time.Second,
		SnapshotThreshold:  8192,
		TrailingLogs:       10240,
		TrailingBytes:      256 << 20,
	}
}

// Advertised is the address that a node with this configuration reports to peers.
func (c Config) Advertised() string {
	listening := c.PeerAddress
	if c.Listener != nil {
		listening = c.Listener.Addr().String()
	}
	address, err := peernet.Advertised(portOptions(c), listening)
	if err != nil {
		return listening
	}
	return address
}

// Validate reports every field that is out of bounds, by name and with its bound.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if !peernet.ValidNodeName(c.NodeName) {
		bad(
			"NodeName %q must be a DNS label: 1 to 63 of a-z, 0-9 and '-', not beginning or ending with '-'",
			c.NodeName,
		)
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
		if host, _, err := net.SplitHostPort(c.AdvertiseAddress); err != nil || peernet.Unspecified(host) {
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
	return errors.Join(append(errs, c.validateTimers()...)...)
}

// validateTimers checks the durations and counts. hashicorp/raft would refuse some later, or panic.
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
		errs = append(errs, fmt.Errorf(
			"ElectionTimeout %v must be at least HeartbeatTimeout %v", c.ElectionTimeout, c.HeartbeatTimeout,
		))
	}
	if c.LeaderLeaseTimeout > c.HeartbeatTimeout {
		errs = append(errs,
			fmt.Errorf(
				"LeaderLeaseTimeout %v must be at most HeartbeatTimeout %v: "+
					"a leader must step down before its followers elect another",
				c.LeaderLeaseTimeout,
				c.HeartbeatTimeout,
			))
	}
	if c.ProposeTimeout > peernet.MaxCallTimeout || c.ReadTimeout > peernet.MaxCallTimeout {
		errs = append(errs, fmt.Errorf(
			"ProposeTimeout %v and ReadTimeout %v must be at most %v", c.ProposeTimeout, c.ReadTimeout,
			peernet.MaxCallTimeout,
		))
	}
	if c.SnapshotThreshold == 0 {
		errs = append(errs, errors.New("SnapshotThreshold 0 must be at least 1"))
	}
	if c.TrailingBytes < minTrailingBytes {
		errs = append(errs, fmt.Errorf("TrailingBytes %d must be at least %d", c.TrailingBytes, minTrailingBytes))
	}
	return errs
}
