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
	// StepStopOrphan and StepRemoveOrphan end what is ours and has no sandbox.
	StepStopOrphan   Step = "stop_orphan"
	StepRemoveOrphan Step = "remove_orphan"
	// StepAdopt makes the row wish what the backend runs, while there is a hold.
	StepAdopt Step = "adopt"
	// StepRaise ends that the job of a member that was claimed gives way to
	// others.
	StepRaise Step = "raise"
)

// Situation is all that Plan decides from.
type Situation struct {
	// Sandbox is the row, nil when there is none.
	Sandbox *fsm.Sandbox
	// Known says whether Observed was ever heard in this term.
	Known    bool
	Observed Observed
	// UnplacedSince is since when the job waits for a client with room; zero
	// when it does not.
	UnplacedSince time.Time
	// Held: there is a hold, and nothing was asked of the sandbox since.
	Held bool
	// Unsure: the mark in the backend can't be read, or is not this history's.
	Unsure bool
	// Stranger: what is observed was born outside this history, and not as this
	// sandbox's.
	Stranger bool
	// OrphanSince is since when Observed has had no sandbox; zero when it has.
	OrphanSince time.Time
	// Orphan is what the state says of it.
	Orphan OrphanFacts
	// ProgressAt is when Observed.Waiting was Progress last; zero for never.
	ProgressAt time.Time
	// FailedSince is since when Observed.Failure is set; zero when it is not.
	FailedSince time.Time
	// Away says that, and why, the backend can't be asked; nil when it can.
	Away *Failure
	// Attempted is the generation for which this leader's Start was accepted.
	Attempted uint64
	// StepFailed is why Start for this generation can't work at all, nil
	// otherwise.
	StepFailed *Failure
	Probe      ProbeResult
	Now        time.Time
	Limits     Limits
}

// ProbeResult is what the agent server last answered.
type ProbeResult struct {
	// AllocID and URL say what was asked; a result for another placement than
	// the present one means nothing.
	AllocID string
	URL     string
	// KeyRef is the key the sandbox had; zero for a member of a pool.
	KeyRef fsm.SecretRef
	// Answering: the last health call succeeded. Proven: the server once
	// proved to be ours, and its workspace to be the sandbox's.
	Answering bool
	Proven    bool
	// Deferred: the job that runs was started without a key, so it is not one
	// to come back to. Marker is SandboxStatus.Workspace as it was found or
	// made, "" for a member of a pool.
	Deferred bool
	Marker   string
	// Acceptance is the Sandbox.Acceptance that the marker was written for.
	Acceptance uint64
	// Failures counts failed probes in a row, FailingSince is the first's time.
	Failures     int
	FailingSince time.Time
	// Failure says what is missing to RUNNING, nil when nothing is.
	Failure *Failure
}

// Limits are the durations Plan decides by.
type Limits struct {
	// Start bounds STARTING where the template does not.
	Start time.Duration
	// Progress bounds STARTING, Start after the last progress does it within that.
	Progress time.Duration
	// Stop bounds how long a pause may take before it is an ERROR.
	Stop time.Duration
	// Orphan is how long something must have been without a sandbox before it
	// is noted as an orphan.
	Orphan time.Duration
	// Retention is how long a workspace stays an orphan before it is removed.
	Retention time.Duration
	// Placement is how long no client may have room before it is an ERROR.
	Placement time.Duration
	// Retry is the pause before a task is started again whose key could not be
	// fetched.
	Retry time.Duration
	// Health is how long, and HealthFailures how often in a row, probes of a
	// RUNNING sandbox fail before it is an ERROR.
	Health         time.Duration
	HealthFailures int
	// TermStart is when this leader began. A sandbox whose deadline passed
	// while nobody led gets a quarter of it again.
	TermStart time.Time
	// Released is when this leader saw a hold end; zero for never.
	Released time.Time
}

// Decision is what Plan answers.
type Decision struct {
	Step Step
	// Observe says that Status is to be proposed if it differs from the row's.
	Observe bool
	Status  fsm.SandboxStatus
	// Probe is the placement to ask, nil for none.
	Probe *fsm.Placement
	// Note is the orphan to record, nil for none.
	Note *fsm.Orphan
	// Wake is when to look again although nothing happened; zero for never.
	Wake time.Time
}
