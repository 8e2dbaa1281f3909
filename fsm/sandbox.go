package fsm

import (
	"maps"
	"time"
)

// SandboxState is the SandboxStatus of api-contract.md A.0.7.
type SandboxState string

// The sandbox states.
const (
	SandboxStarting SandboxState = "STARTING"
	SandboxRunning  SandboxState = "RUNNING"
	SandboxPaused   SandboxState = "PAUSED"
	SandboxError    SandboxState = "ERROR"
	SandboxMissing  SandboxState = "MISSING"
)

// Desired is what the user wants of a sandbox.
type Desired string

// The desired states.
const (
	DesiredRunning Desired = "running"
	DesiredPaused  Desired = "paused"
	DesiredDeleted Desired = "deleted"
)

// Sandbox is one execution environment. Requests write the fields above
// Status, observations write Status: each field has one writer. A sandbox
// without a user is a member of a warm pool: started and healthy, but nobody's
// until a start claims it.
type Sandbox struct {
	// ID is label- and DNS-safe: [A-Za-z0-9][A-Za-z0-9-]{0,47}; with the prefix
	// "sandbox-" it is also the Nomad job id and the volume name.
	ID        string    `json:"id"`
	UserID    string    `json:"user_id"`
	SpecID    string    `json:"spec_id"`
	CreatedAt time.Time `json:"created_at"`
	// Template is the spec's, resolved with the user's settings at creation.
	Template Template `json:"template"`
	// KeyRef points at the sandbox's own key (member "key"); KeyHash is its
	// SHA-256, hex. Both are zero until a member of a pool is claimed.
	KeyRef  SecretRef `json:"key_ref"`
	KeyHash string    `json:"key_hash"`

	// Pool is the spec whose warm pool the sandbox was made for, "" when it was
	// started cold. It stays after the claim, which Claimed tells.
	Pool    string `json:"pool,omitempty"`
	Claimed bool   `json:"claimed,omitempty"`
	// TemplateHash is Template.Hash, kept for members of pools: one whose spec
	// has another by now is outdated.
	TemplateHash string `json:"template_hash,omitempty"`
	// InitRef points at what the deferred initialisation is authorised with
	// (member "secret_key"), InitHash is its SHA-256, hex. Members of pools
	// only; both stay after the claim.
	InitRef  SecretRef `json:"init_ref,omitzero"`
	InitHash string    `json:"init_hash,omitempty"`
	// WarmKeyRef and WarmKeyHash are the KeyRef and KeyHash that a member of a
	// pool has from its claim on: written before anybody can claim it, known to
	// nobody and accepted nowhere until then. Zero once it is somebody's.
	WarmKeyRef  SecretRef `json:"warm_key_ref,omitzero"`
	WarmKeyHash string    `json:"warm_key_hash,omitempty"`

	Desired Desired `json:"desired"`
	// Generation counts changes of Desired from 1. An observation carries the
	// generation it was made for, and Apply drops it when the sandbox has moved
	// on.
	Generation uint64    `json:"generation"`
	DesiredAt  time.Time `json:"desired_at"`
	// DesiredIndex is the log index at which Desired last changed; 0 for before
	// protocol version 3. A hold leaves alone what changed before it.
	DesiredIndex uint64 `json:"desired_index,omitempty"`
	// KeepWorkspace: it is deleted by a policy, so its workspace stays a while.
	KeepWorkspace bool `json:"keep_workspace,omitempty"`
	// Acceptance counts how often somebody accepted the workspace as it is, and
	// Status.Acceptance is the last one that took effect. AcceptForeign: it was an
	// operator, who also accepts a workspace with another sandbox's marker.
	Acceptance    uint64 `json:"acceptance,omitempty"`
	AcceptForeign bool   `json:"accept_foreign,omitempty"`
	// PausedBy says why the sandbox was paused when its user did not ask for
	// it: one of the PausedBy constants, else "".
	PausedBy string `json:"paused_by,omitempty"`

	// Birth is when the sandbox was made; zero below protocol version 3.
	Birth Birth `json:"birth,omitzero"`

	Status SandboxStatus `json:"status"`
}

// Why a sandbox was paused by itself, for Sandbox.PausedBy; and
// ReasonPausedTooLong, why one is deleted (View.Expiry).
const (
	PausedByIdle        = "idle"
	PausedByMaxRunning  = "max_running"
	PausedByLimit       = "limit"
	ReasonPausedTooLong = "paused_too_long"
)

// Member reports whether the sandbox is in a warm pool and nobody's yet.
func (s *Sandbox) Member() bool { return s.UserID == "" }

// SandboxStatus is what the leader last observed.
type SandboxStatus struct {
	State SandboxState `json:"state"`
	// Reason is one of the Reason constants, empty when all is well; Detail
	// says it in words (the wire's status_detail).
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Generation is the sandbox's generation this status belongs to.
	Generation uint64 `json:"generation"`
	// Since is when State last changed (the proposer's clock).
	Since time.Time `json:"since"`
	// LastActive is when somebody last used the sandbox or its agent last
	// worked; zero when never. Apply keeps it from sandbox.touch; observations
	// leave it alone.
	LastActive time.Time `json:"last_active,omitzero"`
	// Placement is nil until the runner placed it, and after a pause.
	Placement *Placement `json:"placement,omitempty"`
	// Job is what the runner calls it; kept over a pause.
	Job JobRef `json:"job"`
	// Workspace is the token of the marker in the sandbox's workspace; "" until
	// the sandbox was first RUNNING, WorkspaceUnmarked when its agent server can
	// keep none. It is kept for the sandbox's life.
	Workspace string `json:"workspace,omitempty"`
	// Proven is the allocation in which the workspace was last found to be the
	// sandbox's. In it the marker is written again and not asked for: the agent
	// may have cleared it away. Empty below protocol version 3.
	Proven string `json:"proven,omitempty"`
	// Acceptance is the Sandbox.Acceptance that the marker was last written for.
	Acceptance uint64 `json:"acceptance,omitempty"`
}

// WorkspaceUnmarked, for SandboxStatus.Workspace, says that the workspace is in
// use but can't be told from another.
const WorkspaceUnmarked = "unmarked"

// Placement is where a sandbox runs.
type Placement struct {
	// AllocID and NodeID are Nomad's (or the process runner's).
	AllocID string `json:"alloc_id"`
	NodeID  string `json:"node_id"`
	// Address is reachable from our nodes; Ports are the ports there, by name.
	Address string         `json:"address"`
	Ports   map[string]int `json:"ports"`
	// Workspace is the workspace directory as the task sees it, absolute.
	Workspace string `json:"workspace"`
}

// JobRef is the runner's handle of a sandbox.
type JobRef struct {
	// Version is the job version that last ran well, to revert to; Registered
	// says whether there is one.
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
	ReasonHeld          = "held" // not started while the cluster holds
)

// State is what users are shown: the observed state, but STARTING as soon as a
// start or resume was accepted that no observation covers yet.
func (s *Sandbox) State() SandboxState {
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

// Equal reports whether two statuses say the same.
func (s *SandboxStatus) Equal(o *SandboxStatus) bool {
	return s.State == o.State && s.Reason == o.Reason && s.Detail == o.Detail &&
		s.Generation == o.Generation && s.Since.Equal(o.Since) && s.LastActive.Equal(o.LastActive) && s.Job == o.Job &&
		s.Workspace == o.Workspace && s.Proven == o.Proven && s.Acceptance == o.Acceptance &&
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
