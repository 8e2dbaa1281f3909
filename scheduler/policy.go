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

	mu    sync.Mutex
	asked map[string]*asking
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
		asked: map[string]*asking{},
	}
}

// run enforces the policies until ctx ends.
func (p *policies) run(ctx context.Context) error {
	defer p.asks.Wait()
	for {
		v := p.s.store.View()
		next := p.round(ctx)
		if !sleep(ctx, policyPause) || !awaitChange(ctx, v, next, p.news) {
			return nil
		}
	}
}

// round takes the answers, pauses and deletes expired sandboxes, and begins the questions that
// are due. It waits for no sandbox. It returns the next time something is due; zero for never.
func (p *policies) round(ctx context.Context) (next time.Time) {
	p.takeAnswers()
	if !p.touches.flush(ctx) {
		// While use can't be stored, no sandbox counts as idle.
		return time.Now().Add(policyPause)
	}
	now := time.Now()
	p.expireAll(ctx, now)
	v := p.s.store.View()
	soon := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	known := map[string]bool{}
	for sb := range v.AllSandboxes() {
		at, _, reason, ok := v.Expiry(sb)
		if !ok {
			continue
		}
		if _, polled := askPause(v, sb); polled {
			known[sb.ID] = true
			due, unknown := p.askIfDue(ctx, v, sb, reason == fsm.PausedByIdle && !now.Before(at), at)
			if !due.IsZero() {
				soon(due)
			}
			if reason == fsm.PausedByIdle && (unknown || due.IsZero()) {
				// An answer begins a round.
				if end, bounded := v.RunningEnd(sb); bounded {
					soon(latest(end, now.Add(policyPause)))
				}
				continue
			}
		}
		soon(latest(at, now.Add(policyPause)))
	}
	p.forget(known)
	return next
}

// expireAll pauses and deletes what is expired in the present view.
func (p *policies) expireAll(ctx context.Context, now time.Time) {
	v := p.s.store.View()
	agreed, limited, total := false, false, 0
	for range v.AllSandboxes() {
		total++
	}
	for sb := range v.AllSandboxes() {
		at, action, reason, ok := v.Expiry(sb)
		if ok && reason == fsm.PausedByIdle && !now.Before(at) && !p.saidIdle(v, sb, at, now) {
			// Without a report of idleness only the maximum running time ends it.
			reason = fsm.PausedByMaxRunning
			at, ok = v.RunningEnd(sb)
		}
		if !ok || now.Before(at) {
			continue
		}
		if !agreed && !p.clocksAgree(ctx) {
			return
		}
		agreed = true
		if action == fsm.ExpireDelete {
			if limited = limited || !p.mayDelete(ctx, total); limited {
				continue
			}
		}
		body := &fsm.SandboxExpireBody{ID: sb.ID, Generation: sb.Generation, Action: action, Reason: reason}
		if reason == fsm.PausedByIdle {
			body.NotActiveSince = sb.Status.LastActive
		}
		fault.At("before", "expire")
		res, err := p.s.cluster.Propose(ctx, command(body))
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			p.log.Warn("pausing or deleting an expired sandbox failed", "sandbox", sb.ID, "reason", reason, "error", err)
		case res.Sandbox != nil:
			p.s.metrics.expired.WithLabelValues(action, reason).Inc()
			p.log.Info("sandbox expired", "sandbox", sb.ID, "reason", reason)
		}
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

// mayDelete asks for one more deletion by a policy within the hour, with total sandboxes.
func (p *policies) mayDelete(ctx context.Context, total int) bool {
	ok, err := p.s.reserve(ctx, p.log, fsm.RemovalSandbox, total)
	if err != nil && ctx.Err() == nil {
		p.log.Warn("reserving the deletion of an expired sandbox failed", "error", err)
	}
	return ok
}
