package scheduler

import (
	"context"
	"fmt"
	"io"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// Runner runs sandboxes: scheduler/nomad on Nomad, scheduler/process as local
// processes. Every call is idempotent, is called by the leader only, and wraps
// "the backend is away" as an *fsm.Error with CodeScheduler.
type Runner interface {
	// Start makes the sandbox's job run: it creates the workspace if the job
	// never had one, then reverts to job.RevertTo or registers. It returns when
	// the backend has accepted, not when the task runs. A failure that trying
	// again can't mend is a *Failure. Of a job that runs and is Spare it makes one
	// that is not, in place, unless job is Deferred.
	Start(ctx context.Context, job Job) error
	// Stop stops the job and keeps its workspace. A job that is stopped or
	// gone is fine; one whose modify index is not job.ModifyIndex is left alone,
	// with CodeConflict.
	Stop(ctx context.Context, job Job) error
	// Remove purges the job and, unless job.KeepWorkspace, deletes the workspace
	// that is job's by its birth. Absent things are fine; a job that is not ours
	// is left alone, and so is, with CodeConflict, one whose modify index is not
	// job.ModifyIndex.
	Remove(ctx context.Context, job Job) error
	// List gives every job of this cluster the backend knows, stopped ones
	// included, and every workspace of this cluster without a job.
	List(ctx context.Context, clusterID string) ([]Observed, error)
	// Watch calls fn, from one goroutine, with the newest picture of each job
	// of this cluster that changes, until ctx ends (then nil) or the stream
	// breaks (then the error; the caller lists and watches again). It may
	// repeat, lag or skip: List mends it.
	Watch(ctx context.Context, clusterID string, fn func(Observed)) error
}

// Workspaces deletes workspaces that have no job.
type Workspaces interface {
	// RemoveWorkspace deletes the workspace if its id and birth are those of w.
	// An absent one, and another of the same name, is fine and is left as it is.
	// One that a job of this cluster has is CodeConflict.
	RemoveWorkspace(ctx context.Context, w Workspace) error
}

// Marks keeps the mark that leaders leave in the backend; see fsm.Mark. Nobody
// but a leader of this installation writes it.
type Marks interface {
	// ReadMark gives the mark, and the number that the next write must name.
	// found is false, and cas 0, when there is none. One that can't be read is
	// an error: CodeScheduler, and *Denied where a permission is missing.
	ReadMark(ctx context.Context) (mark fsm.Mark, cas uint64, found bool, err error)
	// WriteMark replaces the mark that was read with cas, and makes it where cas
	// is 0. Whoever was late gets CodeConflict.
	WriteMark(ctx context.Context, mark fsm.Mark, cas uint64) error
}

// Backend is all that what runs sandboxes offers the scheduler.
type Backend interface {
	Runner
	Workspaces
	Marks
}

// Denied says that the backend refuses a call for want of a permission. It is a
// CodeScheduler to whoever does not ask for it.
type Denied struct {
	// Path is what the permission is for, in the words of the backend's
	// policies, and Capability is the permission.
	Path, Capability string
	// Detail is the backend's answer.
	Detail string
}

// Error implements error.
func (d *Denied) Error() string {
	return fmt.Sprintf("the capability %s is missing for %s (%s): the token must be valid and its policy must have it", d.Capability, d.Path, d.Detail)
}

// Unwrap gives the error by which everybody else knows it.
func (d *Denied) Unwrap() error { return fsm.Errorf(fsm.CodeScheduler, "%s", d.Error()) }

// ClientAway says that a step needs a machine that what runs sandboxes can't reach
// now. It is a CodeScheduler to whoever does not ask for it.
type ClientAway struct{ NodeID, Detail string }

// Error implements error.
func (a *ClientAway) Error() string {
	return "the client " + a.NodeID + " is away, and the sandbox's workspace with it: " + a.Detail
}

// Unwrap gives the error by which everybody else knows it.
func (a *ClientAway) Unwrap() error { return fsm.Errorf(fsm.CodeScheduler, "%s", a.Error()) }

// Workspace names one workspace, as List gave it.
type Workspace struct {
	SandboxID string
	ClusterID string
	// Birth is Observed.Birth, "" for a workspace that carries none.
	Birth string
	// ID is Observed.WorkspaceID; "" stands for any with this birth.
	ID string
}

// Job is what a Runner needs to know of a sandbox.
type Job struct {
	SandboxID string
	ClusterID string
	Template  fsm.Template
	// Birth is the text of the sandbox's birth, "" below protocol version 3. A
	// job that is registered and a workspace that is made carry it. Only a
	// workspace with this birth is the sandbox's: another's of the same name is
	// neither mounted nor deleted.
	Birth string
	// Unstamped says that the sandbox is older than births: a workspace without
	// one is its own, too.
	Unstamped bool
	// CreatedAt is when the sandbox was asked for, by a leader's clock.
	CreatedAt time.Time
	// KeepWorkspace has Remove leave the workspace.
	KeepWorkspace bool
	// KeyRef names the sandbox's key in the secret store. Nomad's template
	// reads it itself with the task's workload identity; the process runner
	// asks Secrets.
	KeyRef fsm.SecretRef
	// ModifyIndex is the job's modify index as last observed, 0 for "there must
	// be no such job". Every call enforces it, so that a deposed leader's late one
	// loses; the loser gets CodeConflict and plans anew.
	ModifyIndex uint64
	// New says that nobody has tried to start the sandbox yet, so that Start need
	// not ask what is left of a former try. It promises nothing: Start still
	// loses against a job that is there.
	New bool
	// RevertTo is the job version to revert to; HasVersion says whether there
	// is one. When the revert is refused Start registers from Template.
	RevertTo   uint64
	HasVersion bool
	// HasWorkspace says that the sandbox was RUNNING before, so that a workspace
	// that is missing is a Failure even where there is no version to revert to.
	HasWorkspace bool
	// Deferred starts a member of a warm pool: the agent server is given
	// OH_DEFERRED_INIT=1 and, from KeyRef's entry, OH_SECRET_KEY alone (member
	// "secret_key") and no session key. It comes up dormant, and so it does
	// again whenever its process ends and is restarted in place; whoever owns
	// the sandbox by then binds it again (POST /api/init with the member's
	// secret_key). A version that is started or reverted to with Deferred
	// false has the key in its environment and is never dormant.
	Deferred bool
}

// Owns reports whether a workspace of the sandbox's name, with this birth, is
// the sandbox's.
func (j Job) Owns(birth string) bool {
	return birth == j.Birth || birth == "" && j.Unstamped
}

// Logs reads what a sandbox's task wrote; scheduler/nomad and
// scheduler/process implement it beside Runner.
type Logs interface {
	// Logs gives the newest task's stream, "stdout" or "stderr", from tail bytes
	// before its end (0 from the end, negative everything that is kept). With
	// follow it goes on until ctx ends, the task ended and all was read, or the
	// caller closes it; without, until the end as of now. Old output is
	// bounded by the backend. A sandbox without a job or logs is CodeNotFound.
	// The caller closes the reader; only job.SandboxID and job.ClusterID are
	// needed.
	Logs(ctx context.Context, job Job, stream string, tail int64, follow bool) (io.ReadCloser, error)
}

// Observed is what a Runner sees of one job.
type Observed struct {
	SandboxID string
	// Exists is false when the job is gone; Foreign is true when a job of that
	// name belongs to somebody else (then nothing else is set).
	Exists  bool
	Foreign bool
	// Stopped: the job is there but was told to stop.
	Stopped     bool
	ModifyIndex uint64
	// Version is the job version the placed allocation runs; it means nothing
	// while Placement is nil.
	Version uint64
	// Live counts allocations that are or may yet be running.
	Live int
	// Placement is the newest live allocation's, nil while there is none.
	Placement *fsm.Placement
	// Up is the backend's own word that the placed task runs. It comes late, and
	// only sandboxes with fsm.ReadinessAllocation wait for it.
	Up bool
	// Failure says why the job can't run any more without being started anew
	// (its task failed for good, its allocation is lost), nil when all is well.
	Failure *Failure
	// Spare says that the job gives way to users' starts, as those of the members
	// of warm pools do.
	Spare bool
	// Waiting says why the job is not up yet although the backend is still
	// trying: no client with room, an image being pulled, a secret the task
	// waits for. Nil when there is nothing to say.
	Waiting *Failure
	// Client is how the machine is on which the job was placed last, as far as the
	// backend says.
	Client ClientState
	// Workspace is set by List for a workspace of this cluster that has no
	// job; WorkspaceID names it in the backend, and NodeID the machine it is on.
	Workspace   bool
	WorkspaceID string
	NodeID      string
	// Birth is the job's, or that of a workspace without a job, as it stands in
	// the backend; "" when it carries none. A workspace says it in List only.
	Birth string
}

// ClientState is how a machine that runs sandboxes is.
type ClientState string

// ClientAwayNow is the state that matters: away, as far as the backend can tell.
// "" is fine, or not known.
const ClientAwayNow ClientState = "away"

// Failure is a reason (one of fsm's Reason constants) with its words.
type Failure struct {
	Reason string
	Detail string
	// Progress: the backend is at work on what is waited for, as on pulling an
	// image, and ends that itself when nothing moves any more.
	Progress bool
}

// Error implements error.
func (f *Failure) Error() string { return f.Detail }

// withWaiting adds to why a sandbox failed what the backend has to say of it.
func withWaiting(f, waiting *Failure) *Failure {
	if waiting == nil || waiting.Detail == "" {
		return f
	}
	return &Failure{Reason: f.Reason, Detail: waiting.Detail + ": " + f.Detail}
}

// Agents talks to agent servers; scheduler/agent implements it. Every call is
// bounded by the implementation.
type Agents interface {
	AgentProbes
	AgentMembers
	AgentFiles
}

// AgentProbes asks agent servers how they are and what they do.
type AgentProbes interface {
	// Health is nil when the agent server at baseURL serves.
	Health(ctx context.Context, baseURL string) error
	// Prove is nil when the server accepts the key and refuses a call without
	// one. An error that wraps agent.ErrNotOurs or agent.ErrUnauthorized means
	// that somebody else answers there.
	Prove(ctx context.Context, baseURL, key string) error
	// PauseAll pauses what runs, so that it can be gone on with after a stop.
	PauseAll(ctx context.Context, baseURL, key string) (agent.Paused, error)
	// ServerInfo tells how long nobody has used the server, as it says.
	ServerInfo(ctx context.Context, baseURL string) (agent.ServerInfo, error)
	// Busy reports whether a conversation runs.
	Busy(ctx context.Context, baseURL, key string) (bool, error)
}

// AgentMembers gives the members of warm pools their keys.
type AgentMembers interface {
	// InitState tells what has become of a deferred server. One that is not
	// deferred is agent.ErrNotDeferred.
	InitState(ctx context.Context, baseURL string) (string, error)
	// Init makes a dormant server accept the keys of req; agent.ErrNotDormant
	// when it was initialised before.
	Init(ctx context.Context, baseURL, initKey string, req agent.InitRequest) error
}

// AgentFiles reads and writes files in sandboxes.
type AgentFiles interface {
	// Upload writes a file and makes its directories.
	Upload(ctx context.Context, baseURL, key, path string, content []byte) error
	// Download reads a file; agent.ErrNoFile when there is none.
	Download(ctx context.Context, baseURL, key, path string) ([]byte, error)
}

// Store is where the scheduler reads what the cluster believes; *fsm.Store
// implements it.
type Store interface {
	// View gives the newest read-only picture this node has.
	View() *fsm.View
}

// Cluster is how the scheduler changes what the cluster believes.
// cluster.Node implements it.
type Cluster interface {
	Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error)
}

// Secrets reads and writes the secret store. cmd adapts the secrets package:
// an unavailable store is an *fsm.Error with CodeSecretStore.
type Secrets interface {
	// Write stores a new version of the entry at path, check-and-set, with the
	// birth of now, and refers to it.
	Write(ctx context.Context, path string, data map[string]string) (fsm.SecretRef, error)
	// Read gives one version; CodeNotFound when it is gone.
	Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error)
	// Delete removes the entry with all its versions; absent is fine.
	Delete(ctx context.Context, path string) error
	// Collect asks judge about every version older than the grace period, below
	// the configured prefix, and acts on its verdict.
	Collect(ctx context.Context, judge func(SecretEntry) SecretVerdict) (SecretsCollected, error)
}

// SecretEntry is one version as Secrets.Collect shows it.
type SecretEntry struct {
	// Ref.Version is 0 for an entry of which no version is left: SecretUnreferenced
	// lets the store forget its version numbers.
	Ref fsm.SecretRef
	// Birth is zero for a version from below protocol version 3, and for one that
	// is not Bivouac's.
	Birth fsm.Birth
	// DeletedAt is when the version was deleted; zero when it is readable.
	DeletedAt time.Time
	// Due is what SecretUnreferenced would do to it now.
	Due SecretDue
}

// SecretDue is an act of Secrets.Collect.
type SecretDue int

// What becomes of an unreferenced version now: nothing, because it was deleted
// less than the store's retention ago; it is deleted, which can be undone; it is
// destroyed.
const (
	SecretDueNothing SecretDue = iota
	SecretDueDelete
	SecretDueDestroy
)

// SecretVerdict is what becomes of a SecretEntry.
type SecretVerdict int

// The verdicts.
const (
	// SecretLeave: nothing is done with it now, and it is not counted.
	SecretLeave SecretVerdict = iota
	// SecretKeep: it is referenced. It is undeleted if it is deleted, and gets the
	// birth of now if it has none.
	SecretKeep
	// SecretStranger: nobody knows whose it is. It is left alone and counted.
	SecretStranger
	// SecretUnreferenced: it is ours and nothing refers to it: what is due is done.
	SecretUnreferenced
)

// SecretsCollected is what one Secrets.Collect did.
type SecretsCollected struct {
	// Deleted versions can be undeleted, Destroyed ones can't. Undeleted were
	// deleted and are referenced. Stamped were referenced and had no birth.
	Deleted, Destroyed, Undeleted, Stamped int
	// Strangers counts what was left alone; StrangerPaths has the first paths.
	Strangers     int
	StrangerPaths []string
}
