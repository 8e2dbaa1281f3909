package fsm

import (
	"fmt"
	"time"
)

// limitRetry is what a client is told to wait when only another's end can free
// what it asks for.
const limitRetry = 30 * time.Second

// demand is what a start asks for beyond what is counted already.
type demand struct {
	user string
	// mine is added to the user's usage, theirs to the installation's.
	mine, theirs Usage
	// noted: the start is among the recent ones already.
	noted bool
}

// demandOf tells what storing next in place of old asks for. What was promised
// to a start task is counted already.
func demandOf(old, next *Sandbox, promised *Coming) demand {
	was, is := burdenOf(old), next.burden()
	if was.user != is.user {
		was.mine = Usage{}
	}
	has := promised.usage()
	return demand{is.user, is.mine.minus(was.mine).minus(has), is.theirs.minus(was.theirs).minus(has), promised != nil}
}

// admit decides whether a start fits the limits, and gives the sandboxes that
// must be paused for it (OnLimitPauseOldest). It changes nothing.
func (t *transaction) admit(d demand) ([]*Sandbox, *Error) {
	mine, theirs := usageOf(t.txn, d.user), usageOf(t.txn, "")
	limits, in := t.limitsOf(d.user), &t.meta.Installation
	var oldest []*Sandbox
	if over := mine.Running + d.mine.Running - limits.Running; in.OnLimit == OnLimitPauseOldest && limits.Running > 0 && d.mine.Running > 0 && over > 0 {
		for s := range withPrefix[Sandbox](t.txn, tableSandboxes, indexRunning, prefixOf(d.user)) {
			if len(oldest) == over {
				break
			}
			oldest = append(oldest, s)
			freed := Usage{Running: 1, CPU: s.Template.CPU, Memory: s.Template.Memory}
			mine, theirs = mine.minus(freed), theirs.minus(freed)
		}
	}
	if err := exceeded(LimitOfUser, limits, mine, d.mine); err != nil {
		return nil, err
	}
	if err := exceeded(LimitOfInstallation, in.Overall, theirs, d.theirs); err != nil {
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

// start stores a sandbox that is to run in place of old (nil when new), if the
// limits let it, and pauses what has to make room for it. promised is the one
// that the start task in hand has coming; the caller stores the task without
// it.
func (t *transaction) start(old, next *Sandbox, promised *Coming) *Error {
	if err := t.makeRoom(demandOf(old, next, promised)); err != nil {
		return err
	}
	put(t, tableSandboxes, old, next)
	return nil
}

// makeRoom takes a start into account, if the limits let it, and pauses what
// has to make room for it. Nothing may fail after it.
func (t *transaction) makeRoom(d demand) *Error {
	oldest, err := t.admit(d)
	if err != nil {
		return err
	}
	for _, s := range oldest {
		t.desire(s, DesiredPaused, PausedByLimit)
	}
	if !d.noted {
		t.noteStart(d.user, t.limitsOf(d.user).StartsPerMinute)
		t.noteStart("", t.meta.Installation.Overall.StartsPerMinute)
	}
	return nil
}

// promise gives what a start task has coming: the sandbox of the default spec,
// with the user's settings as they are now.
func (t *transaction) promise(user string) *Coming {
	spec, err := t.specOrDefault("")
	if err != nil {
		return &Coming{} // there is none to start: the task will say so
	}
	template := spec.Template.resolve(t.settingsOf(user))
	return &Coming{CPU: template.CPU, Memory: template.Memory}
}

// demand gives what promising it to a user asks for.
func (c *Coming) demand(user string) demand {
	return demand{user: user, mine: c.usage(), theirs: c.usage()}
}

// limitsOf gives the limits a user is under.
func (t *transaction) limitsOf(user string) Limits {
	if u := first[User](t.txn, tableUsers, indexID, []byte(user)); u != nil && u.Limits != nil {
		return *u.Limits
	}
	return t.meta.Installation.PerUser
}

// exceeded finds the first limit that more on top of what is in use breaks. A
// limit that is not asked of more is not looked at: one that was lowered does
// not stand in the way of what needs nothing of it.
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

// tooFast refuses a start when limit others lie less than a minute before it,
// or after it. The latter because proposers' clocks differ: whatever order the
// log has them in, no sixty seconds of command time hold more than limit
// starts.
func (t *transaction) tooFast(scope, user string, limit int) *Error {
	kept := usageOf(t.txn, user).starts
	if limit == 0 || kept < limit {
		return nil
	}
	// The limit was lowered when more are kept.
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

// noteStart remembers a start in one scope, and of all its starts the latest
// limit ones: an earlier one can't decide anything any more.
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
