package fsm

import (
	"maps"
	"time"
)

// SandboxState is upstream's SandboxStatus (API.md, "Enumerations").
type SandboxState string

// The sandbox states.
const (
	SandboxStarting SandboxState = "STARTING"
	SandboxRunning  SandboxState = "RUNNING"
	SandboxPaused   SandboxState = "PAUSED"
	SandboxError    SandboxState = "ERROR"
	SandboxMissing  SandboxState = "MISSING"
)

// Desired is the state that a sandbox should have.
type Desired string

// The desired states.
const (
	DesiredRunning Desired = "running"
	DesiredPaused  Desired = "paused"
	DesiredDeleted Desired = "deleted"
)

// Sandbox is one execution environment. Requests write the fields above Status, observations write
// Status: each field has one writer. A sandbox without a user is a member of a warm pool: it is
// started and healthy, and has no owner until a start claims it.
type Sandbox struct {
	// ID is safe in labels and DNS: [A-Za-z0-9][A-Za-z0-9-]{0,47}. With the prefix "sandbox-" it is
	// also the Nomad job id and the volume name.
	ID        string    `json:"id"`
	UserID    string    `json:"user_id"`
	SpecID    string    `json:"spec_id"`
	CreatedAt time.Time `json:"created_at"`
	// Template is the spec's, resolved with the user's settings at creation: a job that Nomad has
	// forgotten is registered exactly as it ran, whatever became of the spec. It takes about 1 KiB.
	Template Template `json:"template"`
	// KeyRef points at the sandbox's own key (member "key"). KeyHash is its SHA-256 in hex. Both are
	// zero until a member of a pool is claimed.
	KeyRef  SecretRef `json:"key_ref"`
	KeyHash string    `json:"key_hash"`

	// Rotations counts how often the key was replaced. A job that was started for another count has
	// another key. FormerKeyRef is the key of the copy that may still run; it is zero once an
	// observation covers the last rotation.
	Rotations    uint64    `json:"rotations,omitempty"`
	FormerKeyRef SecretRef `json:"former_key_ref,omitzero"`

	// Pool is the spec for whose warm pool the sandbox was created, "" after a cold start. It stays
	// after the claim, which Claimed records.
	Pool    string `json:"pool,omitempty"`
	Claimed bool   `json:"claimed,omitempty"`
	// TemplateHash is Template.Hash, for members of pools. A member is outdated when its spec's hash
	// is another.
	TemplateHash string `json:"template_hash,omitempty"`
	// InitRef points at the credential of the deferred initialisation (member "secret_key"). InitHash
	// is its SHA-256 in hex. Only members of pools have them; both stay after the claim.
	InitRef  SecretRef `json:"init_ref,omitzero"`
	InitHash string    `json:"init_hash,omitempty"`
	// WarmKeyRef and WarmKeyHash become the KeyRef and KeyHash of a pool member when it is claimed.
	// The key is stored before the member can be claimed, and is valid nowhere until then. They are
	// zero after the claim.
	WarmKeyRef  SecretRef `json:"warm_key_ref,omitzero"`
	WarmKeyHash string    `json:"warm_key_hash,omitempty"`

	Desired Desired `json:"desired"`
	// Generation counts changes of Desired, from 1. An observation carries the generation it was made
	// for; Apply drops it when the sandbox has a newer one.
	Generation uint64    `json:"generation"`
	DesiredAt  time.Time `json:"desired_at"`
	// DesiredIndex is the log index of the last change of Desired, 0 before protocol version 3. A hold
	// does not act on changes before it.
	DesiredIndex uint64 `json:"desired_index,omitempty"`
	// KeepWorkspace: a policy deletes the sandbox, so its workspace is kept for a while.
	KeepWorkspace bool `json:"keep_workspace,omitempty"`
	// Acceptance counts how often the workspace was accepted as it is. Status.Acceptance is the last
	// one that took effect. AcceptForeign: an operator accepted it, which also covers a workspace with
	// another sandbox's marker.
	Acceptance    uint64 `json:"acceptance,omitempty"`
	AcceptForeign bool   `json:"accept_foreign,omitempty"`
	// PausedBy says why the sandbox was paused without a request of its user: one of the PausedBy
	// constants, else "".
	PausedBy string `json:"paused_by,omitempty"`

	// StopAt is when the job of a paused sandbox is stopped; zero for at once. A resume before it finds
	// the job running.
	StopAt time.Time `json:"stop_at,omitzero"`

	// Shares are the permissions for single ports, Redeemed the one-time codes that were used. Those
	// that have expired go with the next change of either.
	Shares   []Share    `json:"shares,omitempty"`
	Redeemed []Redeemed `json:"redeemed,omitempty"`

	// Birth is the sandbox's birth; zero below protocol version 3.
	Birth Birth `json:"birth,omitzero"`

	// Copy is the newest copy of the workspace, nil for none. Home is where the workspace is since it
	// was moved, nil for where it was made. Move is a move that is under way, and Moves counts the
	// tries of all. They are nil and 0 below VersionClients.
	Copy  *Copy  `json:"copy,omitempty"`
	Home  *Home  `json:"home,omitempty"`
	Move  *Move  `json:"move,omitempty"`
	Moves uint64 `json:"moves,omitempty"`

	Status SandboxStatus `json:"status"`
}

// The reasons for an automatic pause, for Sandbox.PausedBy. ReasonPausedTooLong is the reason for
// an automatic deletion (View.Expiry).
const (
	PausedByIdle        = "idle"
	PausedByMaxRunning  = "max_running"
	PausedByLimit       = "limit"
	PausedByDisabled    = "user_disabled"
	ReasonPausedTooLong = "paused_too_long"
)

// Member reports whether the sandbox is in a warm pool and has no owner yet.
func (s *Sandbox) Member() bool { return s.UserID == "" }

// SandboxStatus is what the leader last observed.
type SandboxStatus struct {
	State SandboxState `json:"state"`
	// Reason is one of the Reason constants, "" when there is no problem. Detail is the text for the
	// user (status_detail in the API).
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Generation is the generation of the sandbox that this status belongs to.
	Generation uint64 `json:"generation"`
	// Since is when State last changed (the proposer's clock).
	Since time.Time `json:"since"`
	// LastActive is when the sandbox was last used or its agent last worked; zero for never.
	// sandbox.touch sets it, observations do not.
	LastActive time.Time `json:"last_active,omitzero"`
	// Placement is nil until the runner has placed the sandbox, and after a pause.
	Placement *Placement `json:"placement,omitempty"`
	// Job is the runner's handle. It is kept during a pause.
	Job JobRef `json:"job"`
	// Workspace is the token of the marker in the sandbox's workspace. It is "" until the sandbox was
	// first RUNNING, and WorkspaceUnmarked when its agent server can't keep a marker. It is kept for
	// the sandbox's life.
	Workspace string `json:"workspace,omitempty"`
	// Proven is the allocation in which the workspace was last verified to be the sandbox's. In that
	// allocation the marker is written again and not required, because the agent may have deleted it.
	// It is "" below protocol version 3.
	Proven string `json:"proven,omitempty"`
	// Challenged says that the agent server has answered a challenge. From then on one that answers
	// none is not shown the key. It is kept for the sandbox's life, and is false below VersionRotate.
	Challenged bool `json:"challenged,omitempty"`
	// Acceptance is the Sandbox.Acceptance for which the marker was last written.
	Acceptance uint64 `json:"acceptance,omitempty"`
}

// WorkspaceUnmarked, for SandboxStatus.Workspace, says that the workspace is in use but can't be
// told from another.
const WorkspaceUnmarked = "unmarked"

// Placement is where a sandbox runs.
type Placement struct {
	// AllocID and NodeID are Nomad's (or the process runner's).
	AllocID string `json:"alloc_id"`
	NodeID  string `json:"node_id"`
	// Address is reachable from the cluster's nodes. Ports are the ports there, by name.
	Address string         `json:"address"`
	Ports   map[string]int `json:"ports"`
	// Workspace is the absolute path of the workspace directory as the task sees it.
	Workspace string `json:"workspace"`
}

// JobRef is the runner's handle of a sandbox.
type JobRef struct {
	// Version is the last job version that ran well, to revert to. Registered says whether there is
	// one.
	Version    uint64 `json:"version"`
	Registered bool   `json:"registered"`
}

// Reasons for SandboxStatus.Reason and the failure metric.
const (
	ReasonNoCapacity    = "no_capacity"
	ReasonImage         = "image"
	ReasonDriver        = "driver"
	ReasonCrashed       = "crashed"
	ReasonHealth        = "health"
	ReasonWorkspace     = "workspace"
	ReasonSecretStore   = "secret_store"
	ReasonScheduler     = "scheduler"
	ReasonStartTimeout  = "start_timeout"
	ReasonForeignJob    = "foreign_job"
	ReasonSpec          = "spec"
	ReasonAgentRejected = "agent_rejected"
	ReasonHeld          = "held"   // not started during a hold
	ReasonClient        = "client" // paused because its Nomad client is draining or takes no jobs
)

// lingers reports whether a pause lets the job run on, until the pause is observed. One whose StopAt is
// not after DesiredAt stops at once.
func (s *Sandbox) lingers() bool {
	return s.Desired == DesiredPaused && s.StopAt.After(s.DesiredAt) && s.Status.Generation < s.Generation
}

// CountsAsRunning reports whether limits count the sandbox as running: also while its job runs on after a
// pause, or resumes and pauses by turns would run jobs that nothing counts.
func (s *Sandbox) CountsAsRunning() bool { return s.Desired == DesiredRunning || s.lingers() }

// State returns the state that users see: the observed state, but STARTING from the moment a start
// or resume is accepted until an observation covers it, and PAUSED while a job is yet to be stopped.
func (s *Sandbox) State() SandboxState {
	if s.Desired == DesiredPaused && !s.StopAt.IsZero() && s.Status.State == SandboxRunning {
		return SandboxPaused
	}
	if s.Desired == DesiredRunning && s.Status.Generation < s.Generation {
		return SandboxStarting
	}
	return s.Status.State
}

// Known reports whether the state is one of the sandbox states.
func (s SandboxState) Known() bool {
	switch s {
	case SandboxStarting, SandboxRunning, SandboxPaused, SandboxError, SandboxMissing:
		return true
	}
	return false
}

// Equal reports whether two statuses are the same.
func (s *SandboxStatus) Equal(o *SandboxStatus) bool {
	return s.State == o.State && s.Reason == o.Reason && s.Detail == o.Detail &&
		s.Generation == o.Generation && s.Since.Equal(o.Since) && s.LastActive.Equal(o.LastActive) && s.Job == o.Job &&
		s.Workspace == o.Workspace && s.Proven == o.Proven && s.Challenged == o.Challenged && s.Acceptance == o.Acceptance &&
		s.Placement.Equal(o.Placement)
}

// Equal reports whether two placements, nil ones included, are the same.
func (p *Placement) Equal(o *Placement) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.AllocID == o.AllocID && p.NodeID == o.NodeID && p.Address == o.Address &&
		p.Workspace == o.Workspace && maps.Equal(p.Ports, o.Ports)
}
