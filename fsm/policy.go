package fsm

import "time"

// Policy says when the leader pauses or deletes a sandbox on its own. In each field 0 means "not
// set here", so that it is inherited, and a negative value means "never".
type Policy struct {
	// IdleTimeout pauses a running sandbox that was not used, and whose agent did not work, for this
	// long.
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
	// MaxRunning pauses a sandbox that has been running for this long.
	MaxRunning time.Duration `json:"max_running,omitempty"`
	// DeletePausedAfter deletes a sandbox that has been paused for this long.
	DeletePausedAfter time.Duration `json:"delete_paused_after,omitempty"`
}

// Over returns base, overridden by the fields that p sets.
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

// Limits bound what a user may use; 0 is no limit, except of bytes. Members of warm pools do
// not count until they are claimed, except in the installation's CPU and memory.
type Limits struct {
	// Running counts sandboxes with DesiredRunning, including those that are starting or have failed, and
	// those whose jobs run on after a pause.
	Running int `json:"running,omitempty"`
	// Total counts sandboxes that are not being deleted.
	Total int `json:"total,omitempty"`
	// StartsPerMinute counts accepted creations, resumes and, from VersionAccess on, starts in a
	// running sandbox, in any sixty seconds of command time. It is at most MaxStartsPerMinute.
	StartsPerMinute int `json:"starts_per_minute,omitempty"`
	// CPU (MHz) and Memory (MiB) sum the templates of the sandboxes that Running counts.
	CPU    int `json:"cpu,omitempty"`
	Memory int `json:"memory,omitempty"`
	// StateBytes bounds what is kept in the state, in bytes (state_bytes.go). 0 is the default and not
	// "no limit". It is enforced from VersionAccess on.
	StateBytes int `json:"state_bytes,omitempty"`
	// EventBytes bounds a user's stored events, in bytes. 0 is the default and not "no limit". It is kept
	// from VersionEvents on, and there is none for all users together.
	EventBytes int `json:"event_bytes,omitempty"`
}

// DefaultUserEventBytes bounds the events of one user, in bytes, where Limits.EventBytes is 0.
const DefaultUserEventBytes = 10 << 30

// keptAt returns the limits without what nodes at the protocol version of m may not know.
func (l Limits) keptAt(m *meta) Limits {
	if !m.active(VersionAccess) {
		l.StateBytes = 0
	}
	if !m.active(VersionEvents) {
		l.EventBytes = 0
	}
	return l
}

// MaxStartsPerMinute bounds Limits.StartsPerMinute, because the store keeps that many start times.
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
	LimitState   = "state_bytes"
	LimitEvents  = "event_bytes"
)

// OnLimit says what a start does that exceeds a user's limit of running sandboxes.
type OnLimit string

// The choices. "" means OnLimitRefuse.
const (
	OnLimitRefuse OnLimit = "refuse"
	// OnLimitPauseOldest pauses the user's sandboxes that started first until the new one fits
	// (API.md, "Limits"). Other limits still refuse.
	OnLimitPauseOldest OnLimit = "pause_oldest"
)

// Bounds of policies and limits.
const (
	maxPolicy = 100 * 365 * 24 * time.Hour
	maxLimit  = 1 << 40
)

// policy checks a policy. of names its owner in messages.
func (r *rules) policy(of string, p Policy) {
	for _, d := range []time.Duration{p.IdleTimeout, p.MaxRunning, p.DeletePausedAfter} {
		r.check(d <= maxPolicy, "%s: a policy's time is longer than a hundred years", of)
	}
}

// limits checks limits. of names their owner in messages.
func (r *rules) limits(of string, l Limits) {
	for _, n := range []int{l.Running, l.Total, l.CPU, l.Memory} {
		r.check(n >= 0 && n <= maxLimit, "%s: a limit must be between 0 (none) and %d", of, maxLimit)
	}
	r.check(l.StartsPerMinute >= 0 && l.StartsPerMinute <= MaxStartsPerMinute,
		"%s: starts_per_minute must be between 0 (none) and %d", of, MaxStartsPerMinute)
	r.check(l.StateBytes == 0 || l.StateBytes >= MinStateBytes && l.StateBytes <= maxLimit,
		"%s: state_bytes must be 0 (the default) or between %d and %d", of, MinStateBytes, maxLimit)
	r.check(l.EventBytes >= 0 && l.EventBytes <= maxLimit,
		"%s: event_bytes must be 0 (the default) or at most %d", of, maxLimit)
}

// PolicyOf returns the policy of a sandbox: its user's over its template's over the installation's.
func (v *View) PolicyOf(sb *Sandbox) Policy {
	p := sb.Template.Policy.Over(v.meta.Installation.Policy)
	if u := v.User(sb.UserID); u != nil && u.Policy != nil {
		p = u.Policy.Over(p)
	}
	return p
}

// LimitsOf returns the limits that apply to a user.
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

// Expiry returns what the policy does to a sandbox next if nothing else happens: the time (in
// proposers' clocks), whether it is paused or deleted, and the reason. ok is false when nothing
// will happen, and for a sandbox between two states. The result depends on the store alone, so that
// every leader computes the same.
func (v *View) Expiry(sb *Sandbox) (at time.Time, action, reason string, ok bool) {
	if sb.Member() || sb.Status.Generation != sb.Generation {
		return time.Time{}, "", "", false
	}
	p := v.PolicyOf(sb)
	// A change of Desired without a change of state starts the time again too: a claim, or a pause
	// that was taken back.
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

// RunningEnd returns when a running sandbox reaches the MaxRunning of its policy, whatever it does.
// It returns false when there is no such bound.
func (v *View) RunningEnd(sb *Sandbox) (time.Time, bool) {
	p := v.PolicyOf(sb)
	if p.MaxRunning <= 0 || sb.Member() || sb.Status.Generation != sb.Generation ||
		sb.Desired != DesiredRunning || sb.Status.State != SandboxRunning {
		return time.Time{}, false
	}
	return later(sb.Status.Since, sb.DesiredAt).Add(p.MaxRunning), true
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
