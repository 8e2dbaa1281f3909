package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// limit returns how many of total things of a kind may be removed in an hour.
func (s *Scheduler) limit(total int) int {
	if s.cfg.RemovalsPerHour > 0 {
		return s.cfg.RemovalsPerHour
	}
	return atMost(total)
}

// reserve asks for permission to remove one thing of a kind, of which there are total, without a
// user's request. It also is the fence: true means that its store has the grant, and
// everything that was acknowledged before it.
func (s *Scheduler) reserve(ctx context.Context, log *slog.Logger, kind string, total int) (bool, error) {
	now, limit := time.Now(), s.limit(total)
	v := s.store.View()
	limited := limitsRemovals(v, kind, now)
	if v.Hold() != nil || v.Birth().IsZero() || limited && v.Removed(kind, now) >= limit {
		return false, nil
	}
	res, err := s.cluster.Propose(ctx, command(&fsm.RemovalReserveBody{Kind: kind, Want: 1, Limit: limit}))
	if err != nil {
		return false, err
	}
	if res.Granted == 0 && !limited && s.store.View().Hold() == nil {
		log.Warn("removals wait: the limit of an hour is reached (sandboxes { removals_per_hour })", "reason", kind,
			"count", limit)
	}
	return res.Granted > 0, nil
}

// limitsRemovals reports whether the limit delayed removals of a kind within the hour.
func limitsRemovals(v *fsm.View, kind string, now time.Time) bool {
	for _, b := range v.Brakes(now) {
		if b.Kind == kind {
			return true
		}
	}
	return false
}

// removes reports whether a step deletes.
func removes(step Step) bool { return step == StepRemove || step == StepRemoveOrphan }

// clientMissing reports whether a removal failed because a client is away, which may last for
// hours: the error says so, or something runs that can't be stopped.
func clientMissing(o Observed, err error) bool {
	away := (*ClientAway)(nil)
	// A conflict is a concurrent change of the job, and soon over.
	return errors.As(err, &away) || o.Live > 0 && fsm.CodeOf(err) != fsm.CodeConflict
}

// maxAwayPause bounds the pause between two tries to remove what is on a client that is away. The
// backend's event that it is back ends the pause.
const maxAwayPause = 5 * time.Minute

// awayRemovalPause returns the pause after so many failed tries.
func awayRemovalPause(least time.Duration, tries int) time.Duration {
	pause := least
	for ; tries > 0 && pause < maxAwayPause; tries-- {
		pause *= 2
	}
	return min(pause, max(maxAwayPause, least))
}

// removalLine lets a part of the workers remove at a time: a removal may wait for a client that
// is away, and starts must not wait for that.
type removalLine struct {
	mu      sync.Mutex
	free    int
	waiting []string
}

// inTurn takes a step, unless it is a removal that must wait for others.
func (l *loop) inTurn(id string, step Step, take func()) {
	if !removes(step) {
		take()
		return
	}
	if !l.removals.enter(id) {
		// The next in line may have nothing left to do and wake no other, so a timer does.
		l.queue.addAt(id, time.Now().Add(l.s.cfg.BackoffMax))
		return
	}
	take()
	if next := l.removals.leave(); next != "" {
		l.queue.add(next)
	}
}

// removalShare: one worker in so many may remove.
const removalShare = 4

func newRemovalLine(workers int) *removalLine {
	return &removalLine{free: max(workers/removalShare, 1)}
}

// enter reports whether the sandbox may be removed now. If not, leave names it when it is next.
func (r *removalLine) enter(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.free > 0 {
		r.free--
		return true
	}
	if !slices.Contains(r.waiting, id) {
		r.waiting = append(r.waiting, id)
	}
	return false
}

// leave ends a removal and returns the id that is next, "" for none.
func (r *removalLine) leave() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free++
	if len(r.waiting) == 0 {
		return ""
	}
	next := r.waiting[0]
	r.waiting = r.waiting[1:]
	return next
}
