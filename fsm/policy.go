package fsm

import "time"

// Policy says when the leader pauses or deletes a sandbox by itself. In each
// field 0 means "not set here", to be inherited, and a negative one "never".
type Policy struct {
	// IdleTimeout pauses a running sandbox that nobody used and whose agent did
	// nothing for so long.
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
	// MaxRunning pauses a sandbox that has been running for so long.
	MaxRunning time.Duration `json:"max_running,omitempty"`
	// DeletePausedAfter deletes a sandbox that has been paused for so long.
	DeletePausedAfter time.Duration `json:"delete_paused_after,omitempty"`
}

// Over gives the policy in which p's set fields win over base's.
func (p Policy) Over(base Policy) Policy {
	pick := func(mine, other time.Duration) time.Duration {
		if mine != 0 {
			return mine
		}
		return other
	}
	return Policy{
		IdleTimeout:       pick(p.IdleTimeout, base.IdleTimeout),
		MaxRunning:        pick(p.MaxRunning, base.MaxRunning),
		DeletePausedAfter: pick(p.DeletePausedAfter, base.DeletePausedAfter),
	}
}

// Limits bound what sandboxes may use; 0 is no limit. Members of warm pools
// count for nobody until they are claimed, except that the installation's CPU
// and memory include theirs.
type Limits struct {
	// Running counts sandboxes that should run, those that start or fail
	// included.
	Running int `json:"running,omitempty"`
	// Total counts sandboxes that are not being deleted.
	Total int `json:"total,omitempty"`
	// StartsPerMinute counts accepted creations and resumes of any sixty
	// seconds of command time; at most MaxStartsPerMinute.
	StartsPerMinute int `json:"starts_per_minute,omitempty"`
	// CPU (MHz) and Memory (MiB) sum the templates of those that should run.
	CPU    int `json:"cpu,omitempty"`
	Memory int `json:"memory,omitempty"`
}

// MaxStartsPerMinute bounds Limits.StartsPerMinute: that many times are kept.
const MaxStartsPerMinute = 10000

// The names of limits, for Error.Limit: a scope followed by what is limited.
const (
	LimitOfUser         = "user_"
	LimitOfInstallation = "installation_"

	LimitRunning = "running_sandboxes"
	LimitTotal   = "total_sandboxes"
	LimitStarts  = "starts_per_minute"
	LimitCPU     = "cpu"
	LimitMemory  = "memory"
)

// OnLimit says what a start over a user's limit of running sandboxes does.
type OnLimit string

// The choices; "" is OnLimitRefuse.
const (
	OnLimitRefuse OnLimit = "refuse"
	// OnLimitPauseOldest pauses the user's sandboxes that were started first
	// until the new one fits (api-contract.md A.8). Other limits still refuse.
	OnLimitPauseOldest OnLimit = "pause_oldest"
)

// Installation is the configuration all nodes share: that of the first leader's
// file, until an operator configures another.
type Installation struct {
	Policy Policy `json:"policy,omitzero"`
	// PerUser holds for each user without limits of their own; Overall for all
	// users together.
	PerUser Limits  `json:"per_user,omitzero"`
	Overall Limits  `json:"overall,omitzero"`
	OnLimit OnLimit `json:"on_limit,omitempty"`
}

// Bounds of policies and limits.
const (
	maxPolicy = 100 * 365 * 24 * time.Hour
	maxLimit  = 1 << 40
)

// policy checks a policy; of names whose it is.
func (r *rules) policy(of string, p Policy) {
	for _, d := range []time.Duration{p.IdleTimeout, p.MaxRunning, p.DeletePausedAfter} {
		r.check(d <= maxPolicy, "%s: a policy's time is longer than a hundred years", of)
	}
}

// limits checks limits; of names whose they are.
func (r *rules) limits(of string, l Limits) {
	for _, n := range []int{l.Running, l.Total, l.CPU, l.Memory} {
		r.check(n >= 0 && n <= maxLimit, "%s: a limit must be between 0 (none) and %d", of, maxLimit)
	}
	r.check(l.StartsPerMinute >= 0 && l.StartsPerMinute <= MaxStartsPerMinute,
		"%s: starts_per_minute must be between 0 (none) and %d", of, MaxStartsPerMinute)
}

// Installation gives the configuration that is in force.
func (v *View) Installation() Installation { return v.meta.Installation }

// Configured reports whether the configuration was ever set: the first leader
// sets it from its file, and from then on only an operator changes it.
func (v *View) Configured() bool {
	return v.meta.Configured || v.meta.Installation != (Installation{})
}

// PolicyOf gives the policy a sandbox is under: its user's over its template's
// over the installation's.
func (v *View) PolicyOf(sb *Sandbox) Policy {
	p := sb.Template.Policy.Over(v.meta.Installation.Policy)
	if u := v.User(sb.UserID); u != nil && u.Policy != nil {
		p = u.Policy.Over(p)
	}
	return p
}

// LimitsOf gives the limits a user is under.
func (v *View) LimitsOf(userID string) Limits {
	if u := v.User(userID); u != nil && u.Limits != nil {
		return *u.Limits
	}
	return v.meta.Installation.PerUser
}

// The actions of View.Expiry and sandbox.expire.
const (
	ExpirePause  = "pause"
	ExpireDelete = "delete"
)

// Expiry tells what becomes of a sandbox by its policy when nothing happens
// before: at which time (the clocks of those who proposed), whether it is
// paused or deleted, and why. ok is false when nothing will, and for a sandbox
// on its way to another state. It depends on the store alone, so that every
// leader comes to the same answer.
func (v *View) Expiry(sb *Sandbox) (at time.Time, action, reason string, ok bool) {
	if sb.Member() || sb.Status.Generation != sb.Generation {
		return time.Time{}, "", "", false
	}
	p := v.PolicyOf(sb)
	// A wish that came true without a change of state counts anew too: a claim,
	// a pause taken back.
	since := later(sb.Status.Since, sb.DesiredAt)
	consider := func(d time.Duration, from time.Time, then, why string) {
		if t := from.Add(d); d > 0 && (!ok || t.Before(at)) {
			at, action, reason, ok = t, then, why, true
		}
	}
	switch {
	case sb.Desired == DesiredRunning && sb.Status.State == SandboxRunning:
		consider(p.IdleTimeout, later(since, sb.Status.LastActive), ExpirePause, PausedByIdle)
		consider(p.MaxRunning, since, ExpirePause, PausedByMaxRunning)
	case sb.Desired == DesiredPaused && sb.Status.State == SandboxPaused:
		consider(p.DeletePausedAfter, since, ExpireDelete, ReasonPausedTooLong)
	}
	return at, action, reason, ok
}

// later gives the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
