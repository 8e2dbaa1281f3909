package httpapi

import (
	"context"
	"io"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/backup"
	"bivouac.dev/bivouac/fsm"
)

// Cluster is how the API reads and changes what the cluster believes.
// *cluster.Node implements it. Every method is safe for concurrent use and
// reports failures as *fsm.Error.
type Cluster interface {
	// Propose returns when this node's own store has the command, or with the
	// reason why it has not; CodeOutcomeUnknown when it may yet apply.
	Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error)
	// View gives a read-only picture. A stale one never waits or fails for want
	// of a leader.
	View(ctx context.Context, c cluster.Consistency) (*fsm.View, error)
	// Status is this node's own word on the cluster.
	Status() cluster.Status
	// Ready is nil when this node can serve.
	Ready() error
}

// States gives out the whole state. *cluster.Node implements it.
type States interface {
	// StateSnapshot gives the state at one index, as new as View's. It fails as
	// View does.
	StateSnapshot(ctx context.Context, c cluster.Consistency) (*fsm.Snapshot, error)
}

// Surroundings compares a state that was restored with the world. cmd implements
// it.
type Surroundings interface {
	// Differences looks once; what can't be looked at is one of its Problems.
	Differences(ctx context.Context, v *fsm.View) Differences
}

// Backups tells of the backups that leaders make by themselves. *backup.Runner
// implements it.
type Backups interface {
	Backups(ctx context.Context) (backup.Report, error)
}

// Restorer replaces the whole state. *cluster.Node implements it.
type Restorer interface {
	// Restore puts the state of a snapshot file in place of the cluster's.
	Restore(ctx context.Context, file io.ReadSeeker, o cluster.RestoreOptions) (cluster.Restored, error)
}

// Membership is how operators see and change who is a member. *cluster.Node
// implements it. Failures are *fsm.Error.
type Membership interface {
	// Members asks every member how it is; those that do not answer carry an Error.
	Members(ctx context.Context) []cluster.Member
	// TransferLeadership has the named voter lead next; with "" any.
	TransferLeadership(ctx context.Context, to string) error
	// RemoveServer takes a member out for good.
	RemoveServer(ctx context.Context, name string, o cluster.RemoveOptions) error
	// ReplaceServer has newName vote in the place of oldName, which is removed.
	ReplaceServer(ctx context.Context, oldName, newName string, o cluster.RemoveOptions) error
}

// Secrets keeps secret values. cmd adapts the secrets package: a store that is
// sealed or away is an *fsm.Error with CodeSecretStore.
type Secrets interface {
	// Write stores a new version of the entry at path and refers to it.
	Write(ctx context.Context, path string, data map[string]string) (fsm.SecretRef, error)
	// Read gives one version, which never changes; CodeNotFound when it is
	// gone.
	Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error)
	// Delete removes the entry with all its versions; absent is fine.
	Delete(ctx context.Context, path string) error
}

// Activity hears of the traffic to sandboxes, so that one in use is not taken
// for idle. It is called often and from many goroutines and must not block.
type Activity interface {
	// Touched says that there is traffic to or from a sandbox right now.
	Touched(sandboxID string)
	// Talked says that a message has just been given to a conversation in a
	// sandbox; there is such a conversation.
	Talked(sandboxID, conversationID string)
}

// Logs reads what sandboxes' tasks wrote. cmd adapts the runner.
type Logs interface {
	// Logs gives a stream, "stdout" or "stderr", of a sandbox's newest task from
	// tail bytes before its end; with follow it goes on until ctx ends, the task
	// has ended or the caller closes it. Nothing to read is CodeNotFound, a
	// backend that is away CodeScheduler.
	Logs(ctx context.Context, clusterID, sandboxID, stream string, tail int64, follow bool) (io.ReadCloser, error)
}

// Agents asks agent servers. scheduler/agent implements it.
type Agents interface {
	// ExecutionStatuses gives the execution status (api-contract.md A.0.7, lower
	// case) of each conversation the agent server at baseURL knows. ids are 32
	// hex characters, as are the keys of the answer; unknown ones are left out.
	ExecutionStatuses(ctx context.Context, baseURL, key string, ids []string) (map[string]string, error)
	// SendMessage gives a conversation a message. An answer other than 2xx is an
	// *AgentError with its status.
	SendMessage(ctx context.Context, baseURL, key, conversationID string, msg fsm.Message) error
}

// AgentError is an agent server's refusal or failure.
type AgentError struct {
	// Status is that of its answer, 0 when it gave none.
	Status int
	// Cause is for the log.
	Cause error
}

// Error implements error.
func (e *AgentError) Error() string { return e.Cause.Error() }

// Unwrap gives the cause.
func (e *AgentError) Unwrap() error { return e.Cause }
