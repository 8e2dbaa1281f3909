package scheduler

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/fault"
)

// policies pauses and deletes expired sandboxes, for one term. The deadlines follow from the
// store alone (View.Expiry), so every leader computes the same ones. Only whether an agent works
// is asked in the sandboxes.
type policies struct {
	s       *Scheduler
	log     *slog.Logger
	touches *Touches
	// backend guards the mark in the backend.
	backend *markGuard

	// gate has the slots of the questions, news signals an answer, and asks counts the questions
	// under way.
	gate *gate
	news chan struct{}
	asks sync.WaitGroup

	// lastClockError is the last clock error that was logged.
	lastClockError string
	// agenda says when a sandbox expires or is asked next, as far as the view last has it.
	agenda *agenda
	last   *fsm.View

	mu    sync.Mutex
	asked map[string]*asking
	// unknown counts those whose use is not known.
	unknown int
	// answers are those that no round has taken yet.
	answers []answer
	// away is why the secret store could not be read at awayAt.
	away   error
	awayAt time.Time
}

// policyPause is the least time between two rounds.
const policyPause = time.Second

func newPolicies(s *Scheduler, log *slog.Logger, backend *markGuard, g *gate) *policies {
	return &policies{
		s: s, log: log, touches: NewTouches(s.cluster, log), backend: backend, gate: g, news: make(chan struct{}, 1),
		asked: map[string]*asking{}, agenda: newAgenda(),
	}
}

// run enforces the policies until ctx ends.
func (p *policies) run(ctx context.Context) error {
	defer p.asks.Wait()
	for {
		v := p.s.store.View()
		next := p.round(ctx, v)
		if !sleep(ctx, policyPause) || !awaitChange(ctx, v, next, p.news) {
			return nil
		}
	}
}

// round takes the answers, and looks at the sandboxes that changed, answered or are due. It waits for
// no sandbox. It returns the next time something is due; zero for never.
func (p *policies) round(ctx context.Context, v *fsm.View) (next time.Time) {
	p.takeAnswers()
	p.follow(v)
	if !p.touches.flush(ctx) {
		// While use can't be stored, no sandbox counts as idle.
		return time.Now().Add(policyPause)
	}
	r := &policyRound{p: p, now: time.Now()}
	for _, id := range p.agenda.take(r.now) {
		r.expire(ctx, id)
		if at := p.look(ctx, id, r.now); !at.IsZero() {
			p.agenda.set(id, latest(at, r.again()))
		}
	}
	p.s.metrics.idleUnknown.Set(float64(p.unknownNow()))
	next, _ = p.agenda.next()
	return next
}

// follow makes due what the view changed.
func (p *policies) follow(v *fsm.View) {
	c := v.ChangesSince(p.last)
	p.last = v
	for _, id := range c.Sandboxes {
		p.agenda.set(id, time.Time{})
	}
	if c.All || c.Policies {
		for sb := range v.AllSandboxes() {
			p.agenda.set(sb.ID, time.Time{})
		}
	}
}

// look begins the question to a sandbox if it is due, and returns when to look at the sandbox again;
// zero for when it changes.
func (p *policies) look(ctx context.Context, id string, now time.Time) (next time.Time) {
	v := p.s.store.View()
	sb := v.SandboxAny(id)
	if sb == nil {
		p.forget(id)
		return next
	}
	at, _, reason, ok := v.Expiry(sb)
	_, polled := askPause(v, sb)
	switch {
	case !ok:
		p.forget(id)
		return next
	case !polled:
		p.forget(id)
		return at
	}
	next, unknown := p.askIfDue(ctx, v, sb, reason == fsm.PausedByIdle && !now.Before(at), at)
	if reason == fsm.PausedByIdle && (unknown || next.IsZero()) {
		// An answer makes it due.
		if at, ok = v.RunningEnd(sb); !ok {
			return next
		}
	}
	if next.IsZero() {
		return at
	}
	return earliest(next, at)
}

// policyRound is what one round knows.
type policyRound struct {
	p   *policies
	now time.Time
	// asked: whether the clocks agree was asked, and agreed is the answer. limited: no more deletions
	// are granted.
	asked, agreed, limited bool
}

// again is the least time until the next look at what stays due.
func (r *policyRound) again() time.Time { return r.now.Add(policyPause) }

// expire pauses or deletes the sandbox if it is expired in the present view.
func (r *policyRound) expire(ctx context.Context, id string) {
	p, v := r.p, r.p.s.store.View()
	sb := v.SandboxAny(id)
	if sb == nil || ctx.Err() != nil {
		return
	}
	at, action, reason, ok := v.Expiry(sb)
	if ok && reason == fsm.PausedByIdle && !r.now.Before(at) && !p.saidIdle(v, sb, at, r.now) {
		// Without a report of idleness only the maximum running time ends it.
		reason = fsm.PausedByMaxRunning
		at, ok = v.RunningEnd(sb)
	}
	if !ok || r.now.Before(at) {
		return
	}
	if !r.asked {
		r.asked, r.agreed = true, p.clocksAgree(ctx)
	}
	if !r.agreed || action == fsm.ExpireDelete && !r.mayDelete(ctx, v) {
		return
	}
	body := &fsm.SandboxExpireBody{ID: sb.ID, Generation: sb.Generation, Action: action, Reason: reason}
	if reason == fsm.PausedByIdle {
		body.NotActiveSince = sb.Status.LastActive
	}
	fault.At("before", "expire")
	res, err := p.s.cluster.Propose(ctx, command(body))
	switch {
	case ctx.Err() != nil:
	case err != nil:
		p.log.Warn("pausing or deleting an expired sandbox failed", "sandbox", sb.ID, "reason", reason, "error", err)
	case res.Sandbox != nil:
		p.s.metrics.expired.WithLabelValues(action, reason).Inc()
		p.log.Info("sandbox expired", "sandbox", sb.ID, "reason", reason)
	}
}

// clocksAgree reports whether deadlines can be trusted: their times come from the clocks of
// earlier leaders. Nothing expires under a hold, or while the mark does not confirm that the
// state is the newest.
func (p *policies) clocksAgree(ctx context.Context) bool {
	if p.s.store.View().Hold() != nil || !p.backend.sure() {
		return false
	}
	if p.s.cfg.ClocksAgree == nil {
		return true
	}
	err := p.s.cfg.ClocksAgree(ctx)
	if err == nil {
		p.lastClockError = ""
		return true
	}
	if text := err.Error(); ctx.Err() == nil && text != p.lastClockError {
		p.lastClockError = text
		p.log.Warn("no sandbox is paused or deleted by its policy: the clocks of the nodes differ", "error", err)
	}
	return false
}

// mayDelete asks for one more deletion by a policy within the hour.
func (r *policyRound) mayDelete(ctx context.Context, v *fsm.View) bool {
	if r.limited {
		return false
	}
	total := 0
	for range v.AllSandboxes() {
		total++
	}
	ok, err := r.p.s.reserve(ctx, r.p.log, fsm.RemovalSandbox, total)
	if err != nil && ctx.Err() == nil {
		r.p.log.Warn("reserving the deletion of an expired sandbox failed", "error", err)
	}
	r.limited = err != nil || !ok
	return !r.limited
}
