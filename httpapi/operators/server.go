// Package operators has the API's routes for operators: keys, users, specs, members, the cluster's
// configuration, snapshots, holds, orphans, Nomad clients, and what a node shows of itself. Package
// httpapi has their table, and those to the sandboxes and conversations of users.
package operators

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/request"
)

// Node is what the routes of operators need of the node.
type Node struct {
	Cluster Cluster
	Secrets request.Secrets
	Log     *slog.Logger
	// ReadEntry returns an entry of the secret store that a row refers to.
	ReadEntry func(ctx context.Context, ref fsm.SecretRef) (map[string]string, error)
	// Installation is the configuration that the node works by.
	Installation func(*fsm.View) fsm.Installation
	// MaxUpload limits the size of a restored file now, in bytes.
	MaxUpload func() int64
	// Draining reports whether the node stops.
	Draining func() bool
}

// Server serves the routes of operators.
type Server struct {
	cfg Config
	Node
	// packing holds a token for each snapshot being sent.
	packing chan struct{}
}

// New creates a Server.
func New(cfg Config, node Node) *Server {
	return &Server{cfg: cfg, Node: node, packing: make(chan struct{}, max(1, cfg.Snapshots.AtATime))}
}

// Sending is how many snapshots are being sent.
func (s *Server) Sending() int { return len(s.packing) }

// Config configures the routes of operators.
type Config struct {
	// Clients knows the machines that run sandboxes; nil if this installation has none.
	Clients Clients
	// OrphanRetention is how long an orphaned workspace is kept. The API only reports it.
	OrphanRetention time.Duration
	// Differs lists the settings in which this node's configuration differs from the cluster's; nil
	// for none.
	Differs func(*fsm.View) []string
	// Report is what this node says of itself beyond Raft; nil where it says nothing.
	Report func() *cluster.Report
	// Observer asks nodes about themselves; nil disables those routes.
	Observer Observer
	// Membership serves the routes about members; nil disables them.
	Membership Membership
	// Snapshots configures saving and restoring the whole state.
	Snapshots SnapshotConfig
	// Backups lists the backups; nil when this node makes none.
	Backups Backups
}

// SnapshotConfig configures saving and restoring the whole state.
type SnapshotConfig struct {
	// States reads the state; nil disables saving.
	States States
	// Restorer replaces the state; nil disables restoring.
	Restorer Restorer
	// Surroundings compares the restored state with what runs; nil skips that.
	Surroundings Surroundings
	// MaxUpload limits the size of a restored file, in bytes.
	MaxUpload int64
	// Dir holds the compressed file while it is transferred; "" is the system's directory for
	// temporary files.
	Dir string
	// Version is this program's version, for the file's manifest.
	Version string
	// AtATime limits the concurrent downloads; further ones get 503.
	AtATime int
	// Slack and BytesPerSecond limit slow transfers: a transfer may take Slack plus its length at
	// that rate.
	Slack          time.Duration
	BytesPerSecond int
}

// DefaultSnapshots returns the documented defaults.
func DefaultSnapshots() SnapshotConfig {
	return SnapshotConfig{MaxUpload: 16 << 30, AtATime: 2, Slack: time.Minute, BytesPerSecond: 64 << 10}
}

// Validate returns an error for the first invalid field.
func (c SnapshotConfig) Validate() error {
	if c.MaxUpload < 1 {
		return fmt.Errorf("Snapshots.MaxUpload (%d) must be positive", c.MaxUpload)
	}
	if c.AtATime < 1 || c.Slack <= 0 || c.BytesPerSecond < 1 {
		return fmt.Errorf("Snapshots.AtATime (%d), Slack (%s) and BytesPerSecond (%d) must be positive", c.AtATime, c.Slack,
			c.BytesPerSecond)
	}
	return nil
}
