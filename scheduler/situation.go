package scheduler

import (
	"time"

	"bivouac.dev/bivouac/fsm"
)

// Step is what one pass does to the backend.
type Step string

// The steps. A pass takes at most one.
const (
	StepNone   Step = ""
	StepStart  Step = "start"
	StepStop   Step = "stop"
	StepRemove Step = "remove"
	// StepStopOrphan and StepRemoveOrphan end a job or workspace of ours without a sandbox.
	StepStopOrphan   Step = "stop_orphan"
	StepRemoveOrphan Step = "remove_orphan"
	// StepAdopt sets the row's desired state to running under a hold, because the job runs.
	StepAdopt Step = "adopt"
	// StepRaise gives the job of a claimed pool member a user's priority, so that it no longer
	// gives way to others.
	StepRaise Step = "raise"
	// StepTakeOver moves the modify index of a running job that was not started for the present
	// generation: a stop for an earlier one may be under way.
	StepTakeOver Step = "take_over"
)

// Situation is all that Plan decides from.
type Situation struct {
	// Sandbox is the row, nil when there is none.
	Sandbox *fsm.Sandbox
	// Known is true after the first listing of this term.
	Known    bool
	Observed Observed
	// UnplacedSince is the time since which the job waits for a client with room; zero when it
	// does not.
	UnplacedSince time.Time
	// StoppingSince is the time since which the job is stopped and its task is not; zero when
	// that is not so.
	StoppingSince time.Time
	// Mark is what an operator said of the client that has the workspace: one of fsm's marks. Observed
	// is as the marks make it. MoveFailure is why the last try of a move failed.
	Mark        string
	MoveFailure string
	// Held: there is a hold, and no request for the sandbox came since.
	Held bool
	// Holding: there is a hold, so no workspace is copied or moved.
	Holding bool
	// Unsure: the mark in the backend can't be read, or is not this history's.
	Unsure bool
	// Stranger: the observed job was born outside this history, and not as this sandbox's.
	Stranger bool
	// OrphanSince is the time since which Observed has no sandbox; zero when it has one.
	OrphanSince time.Time
	// Orphan is what the state says about it.
	Orphan OrphanFacts
	// ProgressAt is when Observed.Waiting last had Progress; zero for never.
	ProgressAt time.Time
	// FailedSince is the time since which Observed.Failure is set; zero when it is not.
	FailedSince time.Time
	// Away is why the backend can't be reached; nil when it can.
	Away *Failure
	// Attempted is the generation for which this leader's last Start or take-over was accepted.
	Attempted uint64
	// StepFailed is why Start for this generation can't work at all, nil otherwise.
	StepFailed *Failure
	// TakeOverRefused: the backend refused to take over the job for this generation.
	TakeOverRefused bool
	Probe           ProbeResult
	Now             time.Time
	Limits          Limits
}

// ProbeResult is the result of the last probe of an agent server.
type ProbeResult struct {
	// AllocID and URL say what was probed; a result for another placement than the present one is
	// ignored.
	AllocID string
	URL     string
	// KeyRef is the key the sandbox had; zero for a member of a pool.
	KeyRef fsm.SecretRef
	// Answering: the last health call succeeded. Proven: the server proved to be ours, and its
	// workspace to be the sandbox's.
	Answering bool
	Proven    bool
	// Challenged: the server proved that it has the key without being shown it.
	Challenged bool
	// Deferred: the running job was started without a key, so a resume must not revert to it.
	// Marker is SandboxStatus.Workspace as found or made, "" for a member of a pool.
	Deferred bool
	Marker   string
	// Acceptance is the Sandbox.Acceptance that the marker was written for.
	Acceptance uint64
	// Failures counts failed probes in a row, FailingSince is the first's time.
	Failures     int
	FailingSince time.Time
	// Failure says what is missing for RUNNING, nil when nothing is.
	Failure *Failure
}

// Limits are the durations and times that Plan decides by.
type Limits struct {
	// Start bounds STARTING where the template does not.
	Start time.Duration
	// Progress bounds STARTING while the backend makes progress; Start counts from the last
	// progress within that bound.
	Progress time.Duration
	// Stop bounds how long a pause may take before it is an ERROR.
	Stop time.Duration
	// Orphan is how long something must have been without a sandbox before it is recorded as an
	// orphan.
	Orphan time.Duration
	// Retention is how long a workspace stays an orphan before it is removed.
	Retention time.Duration
	// Placement is how long no client may have room before it is an ERROR.
	Placement time.Duration
	// Retry is the pause before another start of a task whose key could not be fetched.
	Retry time.Duration
	// Health is how long, and HealthFailures how often in a row, probes of a RUNNING sandbox fail
	// before it is an ERROR.
	Health         time.Duration
	HealthFailures int
	// TermStart is when this leader's term began. A sandbox whose deadline passed while there was
	// no leader gets a quarter of it again.
	TermStart time.Time
	// Released is when this leader saw a hold end; zero for never.
	Released time.Time
}

// Decision is the result of Plan.
type Decision struct {
	Step Step
	// Observe says that Status is to be proposed if it differs from the row's.
	Observe bool
	Status  fsm.SandboxStatus
	// Probe is the placement to probe, nil for none.
	Probe *fsm.Placement
	// Note is the orphan to record, nil for none.
	Note *fsm.Orphan
	// Wake is when to plan again without an event; zero for never.
	Wake time.Time
}
