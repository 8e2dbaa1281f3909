package operators

import (
	"context"
	"io"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/backup"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/wire"
)

// Cluster reads and changes the replicated state. *cluster.Node implements it.
type Cluster interface {
	request.Cluster
	// Status is the cluster as this node sees it.
	Status() cluster.Status
	// Ready returns nil when this node can serve writes and linearizable reads.
	Ready() error
}

// States reads the whole state. *cluster.Node implements it.
type States interface {
	// StateSnapshot returns the state at one index, as recent as View's. It fails as View does.
	StateSnapshot(ctx context.Context, c cluster.Consistency) (*fsm.Snapshot, error)
}

// Surroundings compares a restored state with what runs and what the secret store has. cmd
// implements it.
type Surroundings interface {
	// Differences compares once. What it can't inspect is in Differences.Problems.
	Differences(ctx context.Context, v *fsm.View) wire.Differences
}

// Backups lists the backups that leaders make. *backup.Runner implements it.
type Backups interface {
	Backups(ctx context.Context) (backup.Report, error)
}

// Restorer replaces the whole state. *cluster.Node implements it.
type Restorer interface {
	// Restore replaces the cluster's state by that of a snapshot file.
	Restore(ctx context.Context, file io.ReadSeeker, o cluster.RestoreOptions) (cluster.Restored, error)
}

// Observer asks a node about itself: its log, a profile, its metrics, its configuration.
// *cluster.Node implements it. It fails with an *fsm.Error; a name that no member has is
// CodeNotFound, "" is this node.
type Observer interface {
	Observe(ctx context.Context, node string, o cluster.Observation) ([]byte, error)
}

// Membership lists and changes the cluster's members. *cluster.Node implements it. It fails with an
// *fsm.Error.
type Membership interface {
	// Members queries every member. One that does not respond has an Error.
	Members(ctx context.Context) []cluster.Member
	// TransferLeadership moves leadership to the named voter, or to the most advanced follower if
	// to is "".
	TransferLeadership(ctx context.Context, to string) error
	// RemoveServer removes a member for good.
	RemoveServer(ctx context.Context, name string, o cluster.RemoveOptions) error
	// ReplaceServer makes newName vote in place of oldName, which is removed.
	ReplaceServer(ctx context.Context, oldName, newName string, o cluster.RemoveOptions) error
	// SetProtocol raises the protocol version for good. It is refused while a member does not know
	// the version or does not answer.
	SetProtocol(ctx context.Context, version int) error
}

// Clients knows the machines that run sandboxes. cmd adapts the runner.
type Clients interface {
	// Clients lists them, by id, with the sandboxes of this cluster whose workspace each has.
	Clients(ctx context.Context, clusterID string) ([]wire.SandboxClient, error)
	// TryMove is nil when the workspaces of sandboxes could be moved off a client now, to clients that are
	// none of avoid. It leaves nothing, and takes seconds.
	TryMove(ctx context.Context, from string, avoid []string, sandboxes []*fsm.Sandbox) error
}
