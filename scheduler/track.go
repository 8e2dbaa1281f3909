package scheduler

import (
	"time"

	"github.com/cenkalti/backoff/v5"

	"bivouac.dev/bivouac/fsm"
)

// track is what the loop knows of one sandbox beyond the store.
type track struct {
	observed Observed
	// seq is loop.seq when observed came from Watch or a removal, 0 when it came from a
	// listing.
	seq           uint64
	unplacedSince time.Time
	failedSince   time.Time
	stoppingSince time.Time
	// progressAt is when observed ceased to report progress.
	progressAt time.Time
	// orphanSince is the time since which observed has no sandbox.
	orphanSince time.Time
	// grantedAt is when the removal of an orphan was granted.
	grantedAt time.Time
	// settle is set after a step until the backend shows it.
	settle *settling
	// attempted is the generation for which a Start or a take-over was accepted. failed is why a
	// Start for generation failedFor can't work.
	attempted uint64
	failed    *Failure
	failedFor uint64
	// moveFailure is why the last try of a move of the workspace failed.
	moveFailure string
	// takeOverRefused is the generation for which the backend refused a take-over.
	takeOverRefused uint64
	// away is why the last step could not reach the backend.
	away      *Failure
	retry     *backoff.ExponentialBackOff
	notBefore time.Time
	// stops are the leader's own stops of a sandbox that should run.
	stops stops
	// awayFailures counts the removals in a row that failed because a client is away.
	awayFailures int

	// fresh: the row was added in this term, and no start was tried.
	fresh    bool
	pause    *gracefulPause
	probe    ProbeResult
	prober   *prober
	starting bool
	placed   bool
}

// settling remembers the observation that a step was planned from.
type settling struct {
	from  Observed
	until time.Time
}

func (l *loop) trackLocked(id string) *track {
	t := l.tracks[id]
	if t == nil {
		t = &track{
			observed: Observed{SandboxID: id}, retry: newBackoff(l.s.cfg.BackoffMin, l.s.cfg.BackoffMax),
		}
		l.tracks[id] = t
	}
	return t
}

// setObserved stores a new observation and reports whether it differs.
func (t *track) setObserved(o Observed) bool {
	same := observedEqual(t.observed, o)
	if t.awayFailures > 0 && (o.Live != t.observed.Live || o.Client != t.observed.Client) {
		t.tryNow() // the client may be back
	}
	if progresses(t.observed) {
		t.progressAt = time.Now()
	}
	t.observed = o
	t.noteStopping()
	if unplaced := o.Waiting != nil && o.Waiting.Reason == fsm.ReasonNoCapacity; !unplaced {
		t.unplacedSince = time.Time{}
	} else if t.unplacedSince.IsZero() {
		t.unplacedSince = time.Now()
	}
	if o.Failure == nil {
		t.failedSince = time.Time{}
	} else if t.failedSince.IsZero() {
		t.failedSince = time.Now()
	}
	if t.settle != nil && settled(t.settle.from, o) {
		t.settle = nil
	}
	return !same
}

// tryNow ends the wait for the next try of a step and resets its back-off.
func (t *track) tryNow() {
	t.awayFailures, t.notBefore = 0, time.Time{}
	t.retry.Reset()
}

// progressed returns when the backend last reported progress: now, while it does.
func (t *track) progressed() time.Time {
	if progresses(t.observed) {
		return time.Now()
	}
	return t.progressAt
}

// progresses reports whether the backend still works on what the sandbox waits for.
func progresses(o Observed) bool { return o.Waiting != nil && o.Waiting.Progress }

// settled reports whether the job has changed in the backend since a step.
func settled(from, now Observed) bool {
	return from.Exists != now.Exists || from.Stopped != now.Stopped || from.ModifyIndex != now.ModifyIndex
}

func observedEqual(a, b Observed) bool {
	if !a.Placement.Equal(b.Placement) || !failureEqual(a.Failure, b.Failure) ||
		!failureEqual(a.Waiting, b.Waiting) {
		return false
	}
	a.Placement, a.Failure, a.Waiting = nil, nil, nil
	b.Placement, b.Failure, b.Waiting = nil, nil, nil
	return a == b
}

func failureEqual(a, b *Failure) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// noteStopping updates the time since which the job is stopped and its task is not.
func (t *track) noteStopping() {
	switch o := t.observed; {
	case o.Exists && !o.Stopped || o.Live == 0:
		t.stoppingSince = time.Time{}
	case t.stoppingSince.IsZero():
		t.stoppingSince = time.Now()
	}
}

// stops counts the stops of one generation of a sandbox that should run, and says when it may start
// again. A sandbox that is placed where it can't stay would start and stop as fast as the backend can.
type stops struct {
	generation uint64
	count      int
	startAt    time.Time
}

// The first start after a stop is not delayed: a drain may end at once. From the second on the pause
// doubles from restartMin to restartMax, until restartCalm has passed without a stop.
const restartMin, restartMax, restartCalm = 5 * time.Second, 2 * time.Minute, 10 * time.Minute

// noteStop notes a stop. One that a request or a late key asks for does not count: a new key, what is
// left of an earlier generation, and a task without its key, which has a pace of its own.
func (t *track) noteStop(sb *fsm.Sandbox, o Observed) {
	if sb == nil || sb.Desired != fsm.DesiredRunning || o.Rotations != sb.Rotations || t.attempted < sb.Generation ||
		o.Failure != nil && o.Failure.Reason == fsm.ReasonSecretStore {
		return
	}
	now, s := time.Now(), &t.stops
	if s.generation != sb.Generation || now.Sub(s.startAt) > restartCalm {
		*s = stops{generation: sb.Generation}
	}
	s.startAt = now
	if s.count > 0 {
		s.startAt = now.Add(min(restartMin<<min(s.count-1, 8), restartMax))
	}
	s.count++
}

// startAfter is when the sandbox may start, zero for now.
func (t *track) startAfter(sb *fsm.Sandbox) time.Time {
	if sb == nil || t.stops.generation != sb.Generation {
		return time.Time{}
	}
	return t.stops.startAt
}
