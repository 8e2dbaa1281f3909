package scheduler

import (
	"context"
	"fmt"
	"io"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// Runner runs sandboxes: scheduler/nomad on Nomad, scheduler/process as local processes. Every
// call is idempotent and is made by the leader only. An unavailable backend is an *fsm.Error with
// CodeScheduler.
type Runner interface {
	// Start makes the sandbox's job run. It creates the workspace if the job never had one, then
	// reverts to job.RevertTo or registers the job. It returns when the backend has accepted
	// that, not when the task runs. A failure that a retry can't repair is a *Failure. A running
	// job that is Spare is changed in place to one that is not, unless job is Deferred.
	Start(ctx context.Context, job Job) error
	// Stop stops the job and keeps its workspace. A job that is stopped or gone is not an error.
	// A job with another modify index than job.ModifyIndex is left alone, with CodeConflict.
	Stop(ctx context.Context, job Job) error
	// Remove purges the job and, unless job.KeepWorkspace, deletes the workspace that is job's by
	// its birth. Absent things are not an error. A job that is not ours is left alone, and so is,
	// with CodeConflict, one with another modify index than job.ModifyIndex.
	Remove(ctx context.Context, job Job) error
	// List returns every job of this cluster that the backend has, stopped ones included, and
	// every workspace of this cluster without a job.
	List(ctx context.Context, clusterID string) ([]Observed, error)
	// Watch calls fn, from one goroutine, with the newest observation of each job of this cluster
	// that changes. It returns nil when ctx ends, and an error when the stream breaks; the caller
	// then lists and watches again. Events may be repeated, late or lost: List corrects that.
	Watch(ctx context.Context, clusterID string, fn func(Observed)) error
}

// Workspaces deletes workspaces that have no job.
type Workspaces interface {
	// RemoveWorkspace deletes the workspace if its id and birth are those of w. An absent one is
	// not an error, and another one of the same name is left alone. One that a job of this
	// cluster has is CodeConflict.
	RemoveWorkspace(ctx context.Context, w Workspace) error
}

// Marks keeps the mark that leaders leave in the backend; see fsm.Mark. Only a leader of this
// installation writes it.
type Marks interface {
	// ReadMark returns the mark and the number that the next write must name. Without a mark
	// found is false and cas 0. An unreadable mark is an error: CodeScheduler, and *Denied where
	// a permission is missing.
	ReadMark(ctx context.Context) (mark fsm.Mark, cas uint64, found bool, err error)
	// WriteMark replaces the mark that was read with cas, and creates it where cas is 0. It is
	// CodeConflict when another write came first.
	WriteMark(ctx context.Context, mark fsm.Mark, cas uint64) error
}

// Backend is all that the scheduler needs of what runs sandboxes.
type Backend interface {
	Runner
	Workspaces
	Marks
}

// Denied says that the backend refuses a call for lack of a permission. It unwraps to a
// CodeScheduler error.
type Denied struct {
	// Path is the path that needs the permission and Capability the permission, both as the
	// backend's policies name them.
	Path, Capability string
	// Detail is the backend's response.
	Detail string
}

// Error implements error.
func (d *Denied) Error() string {
	return fmt.Sprintf("the capability %s is missing for %s (%s): the token must be valid and its policy must have it",
		d.Capability, d.Path, d.Detail)
}

// Unwrap returns the CodeScheduler error for callers that don't distinguish Denied.
func (d *Denied) Unwrap() error { return fsm.Errorf(fsm.CodeScheduler, "%s", d.Error()) }

// ClientAway says that a step needs a client that the backend can't reach now. It unwraps to a
// CodeScheduler error.
type ClientAway struct{ NodeID, Detail string }

// Error implements error.
func (a *ClientAway) Error() string {
	return "the client " + a.NodeID + " is away, and the sandbox's workspace with it: " + a.Detail
}

// Unwrap returns the CodeScheduler error for callers that don't distinguish ClientAway.
func (a *ClientAway) Unwrap() error { return fsm.Errorf(fsm.CodeScheduler, "%s", a.Error()) }

// Workspace names one workspace, as List returned it.
type Workspace struct {
	SandboxID string
	ClusterID string
	// Birth is Observed.Birth, "" for a workspace that carries none.
	Birth string
	// ID is Observed.WorkspaceID; "" matches each workspace with this birth that Keep does not list.
	ID   string
	Keep []string
	// Lost is as Job.Lost.
	Lost []string
	// NodeID and Current are set by Carrier.
	NodeID  string
	Current bool
}

// Carrier copies and moves workspaces; scheduler/nomad implements it beside Runner. The stream is
// package archive's.
type Carrier interface {
	// ListWorkspaces lists the sandbox's workspaces, the oldest first. After a move, or a try of one,
	// there are several. Current is set for the one that the sandbox runs with.
	ListWorkspaces(ctx context.Context, job Job) ([]Workspace, error)
	// NewWorkspace makes another, empty workspace for the sandbox, on a client that has room and that
	// avoid does not list. Without such a client it returns a *Failure with fsm.ReasonNoCapacity.
	NewWorkspace(ctx context.Context, job Job, avoid []string) (Workspace, error)
	// Export writes the workspace to out. known lists files whose content is not needed again.
	Export(ctx context.Context, job Job, w Workspace, known io.Reader, out io.Writer) error
	// Import fills an empty workspace from in. It returns nil only if all of it is on the disk.
	Import(ctx context.Context, job Job, w Workspace, in io.Reader) error
	// EndLeft ends what ListWorkspaces does not show: the backend's jobs of exports and imports that this
	// process does not run, of sandboxes whose birth is ours. A leader that died has left them.
	EndLeft(ctx context.Context, clusterID string, ours func(birth string) bool) (ended int, err error)
}

// CapacityReader knows the backend's capacity for sandboxes; scheduler/nomad implements it beside
// Runner.
type CapacityReader interface {
	Capacity(ctx context.Context) (Capacity, error)
}

// Capacity is that of the clients that take sandboxes together, and what of it is free: CPU in MHz,
// memory in MiB.
type Capacity struct {
	Clients                          int
	CPU, CPUFree, Memory, MemoryFree int64
}

// Client is a client of the backend, as the backend knows it.
type Client struct {
	ID, Name string
	// Status is the backend's word, "" for a client that it has forgotten.
	Status string
	// Eligible: it takes new jobs.
	Eligible bool
	// CPU is in MHz and Memory in MiB; what is free is known of eligible clients only.
	CPU, CPUFree, Memory, MemoryFree int64
	// Sandboxes are those whose workspace is there.
	Sandboxes []string
}

// Copies is the store of the workspaces' copies; scheduler/copies implements it. A copy that is not
// what was stored is archive.ErrDamaged.
type Copies interface {
	// Save makes a copy that builds on base, nil for none. export writes the workspace to out, without
	// the content of what it finds in known. gone counts the objects of base that the store has lost; the
	// new copy has their content again.
	Save(ctx context.Context, cluster, sandbox string, base *fsm.Copy,
		export func(ctx context.Context, known io.Reader, out io.Writer) error) (made fsm.Copy, uploaded int64, gone int,
		err error)
	// Load writes a copy to out.
	Load(ctx context.Context, cluster, sandbox string, c fsm.Copy, out io.Writer) error
	// Collect deletes what the newest copies, keep of them up to current, don't need.
	Collect(ctx context.Context, cluster, sandbox string, current fsm.Copy, keep int) error
	CopyChecker
	CopyRemover
}

// CopyChecker looks at copies without reading their content.
type CopyChecker interface {
	// Check looks whether everything that a copy needs is there.
	Check(ctx context.Context, cluster, sandbox string, c fsm.Copy) error
	// Ready returns an error for a store that has nothing of the cluster.
	Ready(ctx context.Context, cluster string) error
}

// CopyRemover deletes the copies of sandboxes that are gone.
type CopyRemover interface {
	// Remove deletes every copy of a sandbox's workspace.
	Remove(ctx context.Context, cluster, sandbox string) error
	// Unused returns the sandboxes that have copies, are not known, and whose newest object was written
	// before a time by the store's clock.
	Unused(ctx context.Context, cluster string, before time.Time, known func(sandbox string) bool) ([]string, error)
}

// Job is what a Runner needs to know about a sandbox.
type Job struct {
	SandboxID string
	ClusterID string
	Template  fsm.Template
	// Birth is the text of the sandbox's birth, "" below protocol version 3. The registered job
	// and the new workspace carry it. Only a workspace with this birth is the sandbox's: another
	// one of the same name is neither mounted nor deleted.
	Birth string
	// Unstamped says that the sandbox is older than births: a workspace without a birth is its
	// own, too.
	Unstamped bool
	// CreatedAt is when the sandbox was requested, by a leader's clock.
	CreatedAt time.Time
	// KeepWorkspace makes Remove leave the workspace. Keep are the ids of workspaces that it leaves in
	// any case: orphans on record of clients that were lost.
	KeepWorkspace bool
	Keep          []string
	// Rotations is the sandbox's. The registered job carries it: it says which key the job has.
	Rotations uint64
	// KeyRef names the sandbox's key in the secret store. Nomad's template reads it with the
	// task's workload identity; the process runner uses Secrets.
	KeyRef fsm.SecretRef
	// ModifyIndex is the job's modify index as last observed, 0 for "there must be no such job".
	// Every call enforces it, so a late call of a deposed leader fails with CodeConflict. The
	// caller then plans again.
	ModifyIndex uint64
	// New says that no start of the sandbox was tried yet, so Start need not look for remains of
	// an earlier try. It is a hint: Start still fails with CodeConflict against a job that
	// exists.
	New bool
	// TakeOver makes Start move the modify index of a running job and leave its task as it is.
	// Any earlier call for the job then fails, above all a Stop.
	TakeOver bool
	// RevertTo is the job version to revert to; HasVersion says whether there is one. When the
	// revert is refused, Start registers from Template.
	RevertTo   uint64
	HasVersion bool
	// Volume is the workspace of a sandbox that was moved, "" for the one that it began with.
	Volume string
	// Avoid are the clients that operators have marked: none of them gets a new workspace.
	Avoid []string
	// Lost are the clients that operators gave up for good: what they have is deleted without them.
	Lost []string
	// HasWorkspace says that the sandbox was RUNNING before. A missing workspace is then a
	// Failure even where there is no version to revert to.
	HasWorkspace bool
	// Deferred starts a member of a warm pool. The agent server gets OH_DEFERRED_INIT=1 and, from
	// KeyRef's entry, OH_SECRET_KEY alone (member "secret_key") and no session key. It comes up
	// dormant, and does so again whenever its process restarts in place; the leader then binds it
	// again (POST /api/init with the member's secret_key). A version that is started or reverted
	// to with Deferred false has the key in its environment and is never dormant.
	Deferred bool
}

// Owns reports whether a workspace with the sandbox's name and this birth is the sandbox's.
func (j Job) Owns(birth string) bool {
	return birth == j.Birth || birth == "" && j.Unstamped
}

// Logs reads the output of a sandbox's task; scheduler/nomad and scheduler/process implement it
// beside Runner.
type Logs interface {
	// Logs returns a part of what the sandbox's task wrote. The backend bounds old output. A
	// sandbox without a job, without logs or without an earlier run is CodeNotFound. The caller
	// closes the reader; only job.SandboxID and job.ClusterID are needed.
	Logs(ctx context.Context, job Job, part LogPart) (io.ReadCloser, error)
}

// LogPart says which part of a task's output is read.
type LogPart struct {
	// Stream is "stdout" or "stderr".
	Stream string
	// Tail is where the part begins, in bytes before the end: 0 from the end, negative for all that
	// is kept.
	Tail int64
	// Follow continues until the context ends, the task has ended and all is read, or the caller
	// closes the reader. Without it the part ends at the present end.
	Follow bool
	// Previous is the run before the newest one: each start of the sandbox is a run.
	Previous bool
}

// Observed is what a Runner sees of one job.
type Observed struct {
	SandboxID string
	// Exists is false when the job is gone. Foreign is true when a job of that name is not this
	// cluster's; then nothing else is set.
	Exists  bool
	Foreign bool
	// Stopped: the job exists and has desired state stopped.
	Stopped     bool
	ModifyIndex uint64
	// Version is the job version that the placed allocation runs; it has no meaning while
	// Placement is nil.
	Version uint64
	// Live counts allocations that run or may still run. LiveOn has their clients, sorted and
	// separated by spaces.
	Live   int
	LiveOn string
	// Placement is that of the newest live allocation, nil when there is none.
	Placement *fsm.Placement
	// Up: the backend reports that the placed task runs. It comes late, and only sandboxes with
	// fsm.ReadinessAllocation wait for it.
	Up bool
	// Failure says why the job can't run without a new start (its task failed for good, its
	// allocation is lost). It is nil otherwise.
	Failure *Failure
	// Rotations is Job.Rotations of the job that exists.
	Rotations uint64
	// Spare says that the job gives way to users' starts, as jobs of warm pool members do.
	Spare bool
	// Waiting says why the job is not up yet while the backend still tries: no client with room,
	// an image pull, a secret. It is nil when there is nothing to report.
	Waiting *Failure
	// Client is the state of the client that has the job's workspace, as the backend reports it.
	// ClientDetail describes it, "" when the client is well. Home is its id, "" when it is not known.
	Client       ClientState
	ClientDetail string
	Home         string
	// Workspace is set by List for a workspace of this cluster without a job. WorkspaceID names
	// it in the backend, and NodeID is its client.
	Workspace   bool
	WorkspaceID string
	NodeID      string
	// Birth is that of the job, or of a workspace without a job, as stored in the backend; ""
	// when it carries none. That of a workspace is set by List only.
	Birth string
}

// ClientState is the state of a client that runs sandboxes.
type ClientState string

// The states of a client; "" is well, or not known.
const (
	// ClientAwayNow: the backend can't reach it.
	ClientAwayNow ClientState = "away"
	// ClientDraining: an operator drains it, and what runs there has to stop.
	ClientDraining ClientState = "draining"
	// ClientClosed: it takes no new jobs, and what runs there continues.
	ClientClosed ClientState = "closed"
)

// Failure is a reason (one of fsm's Reason constants) and its description.
type Failure struct {
	Reason string
	Detail string
	// Progress: the backend still works on what the sandbox waits for, such as an image pull, and
	// ends that itself when it makes no more progress.
	Progress bool
	// unreported: the backend has not confirmed the address, which is no fault of the sandbox.
	unreported bool
}

// Error implements error.
func (f *Failure) Error() string { return f.Detail }

// withWaiting adds the backend's report to why a sandbox failed.
func withWaiting(f, waiting *Failure) *Failure {
	if waiting == nil || waiting.Detail == "" {
		return f
	}
	return &Failure{Reason: f.Reason, Detail: waiting.Detail + ": " + f.Detail}
}

// Agents talks to agent servers; scheduler/agent implements it. The implementation bounds the
// time of every call.
type Agents interface {
	AgentProbes
	AgentMembers
	AgentFiles
}

// AgentProbes asks agent servers for their state and use.
type AgentProbes interface {
	// Health is nil when the agent server at baseURL serves.
	Health(ctx context.Context, baseURL string) error
	// Prove is nil when the server accepts the key and refuses a call without one. An error that
	// wraps agent.ErrNotOurs or agent.ErrUnauthorized means that another server answers there. With
	// builtIn a server that does not prove that it has the key is not shown it: agent.ErrUnproven.
	// challenged says that it proved that.
	Prove(ctx context.Context, baseURL, key string, builtIn bool) (challenged bool, err error)
	// PauseAll pauses running conversations, so that they can continue after a stop. With resumes they
	// do so by themselves.
	PauseAll(ctx context.Context, baseURL, key string, resumes bool) (agent.Paused, error)
	// ServerInfo returns how long the server was idle, by its own account.
	ServerInfo(ctx context.Context, baseURL string) (agent.ServerInfo, error)
	// Busy reports whether a conversation runs.
	Busy(ctx context.Context, baseURL, key string) (bool, error)
}

// AgentMembers gives the members of warm pools their keys.
type AgentMembers interface {
	// InitState returns the initialisation state of a deferred server. One that is not deferred
	// is agent.ErrNotDeferred.
	InitState(ctx context.Context, baseURL string) (string, error)
	// Init makes a dormant server accept the keys of req. It is agent.ErrNotDormant when it was
	// initialised before.
	Init(ctx context.Context, baseURL, initKey string, req agent.InitRequest) error
}

// AgentFiles reads and writes files in sandboxes.
type AgentFiles interface {
	// Upload writes a file and creates its directories.
	Upload(ctx context.Context, baseURL, key, path string, content []byte) error
	// Download reads a file; agent.ErrNoFile when there is none.
	Download(ctx context.Context, baseURL, key, path string) ([]byte, error)
}

// EventFetch keeps the events of a sandbox's conversations that the cluster lacks.
// cmd/internal/eventfetch implements it.
type EventFetch interface {
	// Fetch asks the agent server at url, which accepts the key. An error says what could not be fetched.
	Fetch(ctx context.Context, sb *fsm.Sandbox, url, key string) error
}

// Store is where the scheduler reads the replicated state; *fsm.Store implements it.
type Store interface {
	// View returns the newest read-only view of this node.
	View() *fsm.View
}

// Cluster proposes changes of the replicated state, with cluster.Node.ProposeHere.
type Cluster interface {
	// Propose returns without an error only when the Store has the command, so that it is a fence.
	Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error)
}

// Secrets reads and writes the secret store; cmd adapts the secrets package. An unavailable store
// is an *fsm.Error with CodeSecretStore.
type Secrets interface {
	// Write stores a new version of the entry at path, check-and-set, with the current birth, and
	// returns its reference.
	Write(ctx context.Context, path string, data map[string]string) (fsm.SecretRef, error)
	// Read returns one version; CodeNotFound when it is gone.
	Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error)
	// Delete removes the entry with all its versions; an absent one is not an error.
	Delete(ctx context.Context, path string) error
	// Collect calls judge for every version below the configured prefix that is older than the
	// grace period, and acts on the verdict.
	Collect(ctx context.Context, judge func(SecretEntry) SecretVerdict) (SecretsCollected, error)
}

// SecretEntry is one version as Secrets.Collect passes it.
type SecretEntry struct {
	// Ref.Version is 0 for an entry of which no version is left. SecretUnreferenced then makes
	// the store forget its version numbers.
	Ref fsm.SecretRef
	// Birth is zero for a version from below protocol version 3, and for one that Bivouac did not
	// write.
	Birth fsm.Birth
	// DeletedAt is when the version was deleted; zero when it is readable.
	DeletedAt time.Time
	// Due is what SecretUnreferenced would do to it now.
	Due SecretDue
}

// SecretDue is what Secrets.Collect does next to an unreferenced version.
type SecretDue int

// What is due for an unreferenced version: nothing, because it was deleted less than the store's
// retention ago; deletion, which can be undone; destruction.
const (
	SecretDueNothing SecretDue = iota
	SecretDueDelete
	SecretDueDestroy
)

// SecretVerdict is what Secrets.Collect does with a SecretEntry.
type SecretVerdict int

// The verdicts.
const (
	// SecretLeave: leave it for now, and don't count it.
	SecretLeave SecretVerdict = iota
	// SecretKeep: it is referenced. Undelete it if it is deleted, and give it the current birth
	// if it has none.
	SecretKeep
	// SecretStranger: its owner is unknown. Leave it alone and count it.
	SecretStranger
	// SecretUnreferenced: it is ours and nothing refers to it. Do what is due.
	SecretUnreferenced
)

// SecretsCollected is what one Secrets.Collect did.
type SecretsCollected struct {
	// Deleted versions can be undeleted, Destroyed ones can't. Undeleted counts versions that
	// were deleted and are referenced. Stamped counts referenced ones that had no birth.
	Deleted, Destroyed, Undeleted, Stamped int
	// Strangers counts what was left alone; StrangerPaths has the first paths.
	Strangers     int
	StrangerPaths []string
}
