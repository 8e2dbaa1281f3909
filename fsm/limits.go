package fsm

import (
	"fmt"
	"slices"
	"time"
)

// limitRetry is the RetryAfter when only the end of another sandbox can free the capacity.
const limitRetry = 30 * time.Second

// demand is what a start needs beyond what is already counted.
type demand struct {
	user string
	// mine is added to the user's usage, theirs to the installation's.
	mine, theirs Usage
	// noted: the recent starts already include this one.
	noted bool
	// grow is what the state grows by, in bytes; 0 when it was admitted before.
	grow int
}

// demandOf computes what storing next in place of old needs. A start task's reservation is already
// counted.
func (t *transaction) demandOf(old, next *Sandbox, promised *Reservation) demand {
	was, is := resourceUseOf(&t.meta, old), next.resourceUse()
	if was.user != is.user {
		was.mine = Usage{}
	}
	has := promised.usage()
	d := demand{
		user:   is.user,
		mine:   is.mine.minus(was.mine).minus(has),
		theirs: is.theirs.minus(was.theirs).minus(has),
		noted:  promised != nil,
	}
	switch {
	case promised != nil:
	case old != nil && old.UserID != next.UserID: // a claim
		d.grow = growthOf(&t.meta, nil, next)
	default:
		d.grow = growthOf(&t.meta, old, next)
	}
	return d
}

// admit decides whether a start fits the limits. It returns the sandboxes that must be paused for
// it (OnLimitPauseOldest), and before them paused ones whose jobs have to stop now. It changes nothing.
func (t *transaction) admit(d demand) ([]*Sandbox, *Error) {
	mine, theirs := usageOf(t.txn, d.user), usageOf(t.txn, "")
	limits, in := t.limitsOf(d.user), &t.meta.Installation
	var oldest []*Sandbox
	for s := range withPrefix[Sandbox](t.txn, tableSandboxes, indexLingering, prefixOf(d.user)) {
		if exceeded(LimitOfUser, limits, mine, d.mine) == nil {
			break
		}
		oldest = append(oldest, s)
		mine, theirs = mine.minus(s.freed()), theirs.minus(s.freed())
	}
	stopped := len(oldest)
	if over := mine.Running + d.mine.Running - limits.Running; in.OnLimit == OnLimitPauseOldest && limits.Running > 0 &&
		d.mine.Running > 0 && over > 0 {
		for s := range withPrefix[Sandbox](t.txn, tableSandboxes, indexRunning, prefixOf(d.user)) {
			if len(oldest)-stopped == over {
				break
			}
			if t.meta.active(VersionRoom) && t.starting(s) {
				continue // an accepted start has its sandbox until it ends
			}
			oldest = append(oldest, s)
			mine, theirs = mine.minus(s.freed()), theirs.minus(s.freed())
		}
	}
	for s := range withPrefix[Sandbox](t.txn, tableSandboxes, indexLingering, nil) {
		if exceeded(LimitOfInstallation, in.Overall, theirs, d.theirs) == nil {
			break
		}
		if !slices.Contains(oldest[:stopped], s) {
			oldest = append(oldest, s)
			theirs = theirs.minus(s.freed())
		}
	}
	if err := exceeded(LimitOfUser, limits, mine, d.mine); err != nil {
		return nil, err
	}
	if err := exceeded(LimitOfInstallation, in.Overall, theirs, d.theirs); err != nil {
		return nil, err
	}
	if err := t.mayGrow(d.user, d.grow); err != nil {
		return nil, err
	}
	if d.noted {
		return oldest, nil
	}
	if err := t.tooFast(LimitOfUser, d.user, limits.StartsPerMinute); err != nil {
		return nil, err
	}
	if err := t.tooFast(LimitOfInstallation, "", in.Overall.StartsPerMinute); err != nil {
		return nil, err
	}
	return oldest, nil
}

// freed is what a sandbox that counts as running frees by its pause.
func (s *Sandbox) freed() Usage {
	return Usage{Running: 1, CPU: s.Template.CPU, Memory: s.Template.Memory}
}

// start stores a sandbox that is to run in place of old (nil when new), if the limits allow it, and
// pauses sandboxes to make room. promised is the reservation of the current start task; the caller
// stores the task without it.
func (t *transaction) start(old, next *Sandbox, promised *Reservation) *Error {
	if err := t.makeRoom(t.demandOf(old, next, promised)); err != nil {
		return err
	}
	put(t, tableSandboxes, old, next)
	return nil
}

// makeRoom admits a start if the limits allow it, counts it, and pauses sandboxes to make room.
// Nothing may fail after it.
func (t *transaction) makeRoom(d demand) *Error {
	if t.view().disabled(d.user) {
		return Errorf(CodeConflict, "the user %s is disabled: enable the user first", d.user)
	}
	oldest, err := t.admit(d)
	if err != nil {
		return err
	}
	for _, s := range oldest {
		if s.lingers() {
			t.stopNow(s)
			continue
		}
		t.desire(s, DesiredPaused, PausedByLimit)
	}
	if !d.noted {
		t.noteStart(d.user, t.limitsOf(d.user).StartsPerMinute)
		t.noteStart("", t.meta.Installation.Overall.StartsPerMinute)
	}
	return nil
}

// reserve returns the reservation of a start task: the resources of the default spec with the
// user's current settings.
func (t *transaction) reserve(user string) *Reservation {
	spec, err := t.specOrDefault("")
	if err != nil {
		return &Reservation{} // there is no spec to start: the task reports it
	}
	template := spec.Template.resolve(t.settingsOf(user))
	return &Reservation{CPU: template.CPU, Memory: template.Memory}
}

// demand returns what the reservation needs for a user.
func (c *Reservation) demand(user string) demand {
	return demand{user: user, mine: c.usage(), theirs: c.usage()}
}

// limitsOf returns the limits that apply to a user.
func (t *transaction) limitsOf(user string) Limits {
	if u := first[User](t.txn, tableUsers, indexID, []byte(user)); u != nil && u.Limits != nil {
		return *u.Limits
	}
	return t.meta.Installation.PerUser
}

// exceeded finds the first limit that more breaks on top of used. It skips a resource of which more
// needs nothing, so that a lowered limit does not refuse it.
func exceeded(scope string, l Limits, used, more Usage) *Error {
	for _, c := range []struct {
		name              string
		limit, used, more int
		what              string
	}{
		{LimitRunning, l.Running, used.Running, more.Running, "running sandboxes (%d)"},
		{LimitTotal, l.Total, used.Total, more.Total, "sandboxes (%d)"},
		{LimitCPU, l.CPU, used.CPU, more.CPU, "CPU (%d MHz)"},
		{LimitMemory, l.Memory, used.Memory, more.Memory, "memory (%d MiB)"},
	} {
		if c.limit > 0 && c.more > 0 && c.used+c.more > c.limit {
			return overLimit(scope, c.name, fmt.Sprintf(c.what, c.limit), limitRetry)
		}
	}
	return nil
}

// overLimit makes the error of a limit.
func overLimit(scope, name, what string, retry time.Duration) *Error {
	whose, advice := "your", "pause or delete a sandbox, or try again later"
	if scope == LimitOfInstallation {
		whose, advice = "the installation's", "try again later"
	}
	if name == LimitStarts {
		advice = "try again later"
	}
	return &Error{
		Code: CodeLimit, Message: fmt.Sprintf("%s limit of %s is reached: %s", whose, what, advice),
		RetryAfter: retry, Limit: scope + name,
	}
}

// tooFast refuses a start when limit others are less than a minute before or after it. After it,
// because proposers' clocks differ: in any log order, no sixty seconds of command time hold more
// than limit starts.
func (t *transaction) tooFast(scope, user string, limit int) *Error {
	kept := usageOf(t.txn, user).starts
	if limit == 0 || kept < limit {
		return nil
	}
	// More are kept than the limit if it was lowered.
	skip := kept - limit
	for s := range withPrefix[recentStart](t.txn, tableRecentStarts, indexID, prefixOf(user)) {
		if skip > 0 {
			skip--
			continue
		}
		if wait := s.Time.Add(time.Minute).Sub(t.now); wait > 0 {
			return overLimit(scope, LimitStarts, fmt.Sprintf("starts per minute (%d)", limit), wait)
		}
		break
	}
	return nil
}

// noteStart records a start in one scope and keeps the latest limit starts of that scope. Earlier
// ones can't affect a decision.
func (t *transaction) noteStart(user string, limit int) {
	if limit > 0 {
		start := &recentStart{UserID: user, Time: t.now, Index: t.index}
		// One log entry may hold several starts of the same microsecond.
		for first[recentStart](t.txn, tableRecentStarts, indexID, start.key()) != nil {
			start.Time = start.Time.Add(time.Microsecond)
		}
		put(t, tableRecentStarts, nil, start)
	}
	for usageOf(t.txn, user).starts > limit {
		drop(t, tableRecentStarts, firstWithPrefix[recentStart](t.txn, tableRecentStarts, indexID, prefixOf(user)))
	}
}
