package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/fault"
)

// policies pauses and deletes what has reached the end of its time, for one
// term. The deadlines follow from the store alone (View.Expiry), so every
// leader comes to the same ones; only whether an agent is at work has to be
// asked in the sandboxes.
type policies struct {
	s       *Scheduler
	log     *slog.Logger
	touches *Touches
	// backend guards the mark in what runs the sandboxes.
	backend *ward

	// told is what was last said of the clocks.
	told string

	mu    sync.Mutex
	asked map[string]*asking
}

// asking is when a sandbox was last asked what it does, and since when nobody
// knows.
type asking struct {
	// at is when the ask counts as made; round is the look it was really made
	// in, zero before the first.
	at, round time.Time
	// unknown is since when the asks failed, zero while they don't; told, that
	// the log says so.
	unknown time.Time
	told    bool
}

const (
	// policyPause is the least time between two looks at the deadlines.
	policyPause = time.Second
	// asksAtOnce bounds how many sandboxes are asked at a time.
	asksAtOnce = 16
	// An idle timeout is divided by this for the pause between two asks, which
	// is at most maxAskPause.
	askShare    = 4
	maxAskPause = time.Minute
)

func newPolicies(s *Scheduler, log *slog.Logger, backend *ward) *policies {
	return &policies{s: s, log: log, touches: NewTouches(s.cluster, log), backend: backend, asked: map[string]*asking{}}
}

// run keeps to the policies until ctx ends.
func (p *policies) run(ctx context.Context) error {
	for {
		v := p.s.store.View()
		next := p.round(ctx, v)
		if !sleep(ctx, policyPause) || !awaitChange(ctx, v, next) {
			return nil
		}
	}
}

// round asks those sandboxes that are due to be asked, then pauses and deletes
// what is over, and gives the next time something will be due; zero for never.
func (p *policies) round(ctx context.Context, v *fsm.View) (next time.Time) {
	now := time.Now()
	soon := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	known := map[string]bool{}
	var ask []*fsm.Sandbox
	for sb := range v.AllSandboxes() {
		at, _, reason, ok := v.Expiry(sb)
		if !ok {
			continue
		}
		pause, polled := askPause(v, sb)
		if !polled {
			soon(latest(at, now.Add(policyPause)))
			continue
		}
		known[sb.ID] = true
		last, unknown := p.lastAsked(sb, now, pause)
		due := last.Add(pause)
		// Whoever is about to be paused for being idle is asked once more, and at
		// the ordinary pace where nobody knows whether it is.
		over := reason == fsm.PausedByIdle && !now.Before(at)
		if !now.Before(due) || over && !unknown {
			ask = append(ask, sb)
			due = now.Add(pause)
		}
		soon(due)
		if !over || !unknown {
			soon(latest(at, now.Add(policyPause)))
		}
	}
	p.forget(known)
	if len(ask) > 0 {
		p.askAll(ctx, ask, now)
		if !p.touches.flush(ctx) {
			// Not known to be idle as long as the use can't be noted.
			return now.Add(policyPause)
		}
	}
	p.expireAll(ctx, now)
	return next
}

// askPause gives the pause between two asks of a sandbox; false when there is
// nothing to ask for, or nobody.
func askPause(v *fsm.View, sb *fsm.Sandbox) (time.Duration, bool) {
	idle := v.PolicyOf(sb).IdleTimeout
	if idle <= 0 || sb.Status.State != fsm.SandboxRunning || sb.Desired != fsm.DesiredRunning ||
		sb.Template.Readiness == fsm.ReadinessAllocation || AgentURL(sb.Status.Placement) == "" {
		return 0, false
	}
	return min(max(idle/askShare, policyPause), maxAskPause), true
}

// lastAsked is when the sandbox was asked last, and whether that told nothing;
// some time within the pause for one that never was asked, so that a new leader
// does not ask all at once.
func (p *policies) lastAsked(sb *fsm.Sandbox, now time.Time, pause time.Duration) (at time.Time, unknown bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.asked[sb.ID]
	if a == nil {
		a = &asking{at: now.Add(-time.Duration(rand.Int64N(int64(pause))))}
		p.asked[sb.ID] = a
	}
	return a.at, !a.unknown.IsZero()
}

// forget drops what is known of sandboxes that are not asked any more.
func (p *policies) forget(known map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	unknown := 0
	for id, a := range p.asked {
		switch {
		case !known[id]:
			delete(p.asked, id)
		case !a.unknown.IsZero():
			unknown++
		}
	}
	p.s.metrics.idleUnknown.Set(float64(unknown))
}

// askAll asks the sandboxes what they do, in the round that began at now.
func (p *policies) askAll(ctx context.Context, list []*fsm.Sandbox, now time.Time) {
	var g errgroup.Group
	g.SetLimit(asksAtOnce)
	// A secret store that is away is asked once in a round, not for each sandbox.
	var away atomic.Pointer[error]
	for _, sb := range list {
		g.Go(func() error {
			used, err := p.lastUse(ctx, sb, &away)
			if ctx.Err() == nil {
				p.heard(sb, used, err, now)
			}
			return nil
		})
	}
	_ = g.Wait() // they report through asked
}

// heard notes what a sandbox said in the round that began at now. A use counts
// although the rest is not known.
func (p *policies) heard(sb *fsm.Sandbox, used time.Time, err error, now time.Time) {
	if !used.IsZero() {
		p.touches.at(use{sandbox: sb.ID}, used)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.asked[sb.ID]
	a.at, a.round = now, now
	switch {
	case err == nil:
		a.unknown, a.told = time.Time{}, false
	case a.unknown.IsZero():
		a.unknown = now
	case !a.told && now.Sub(a.unknown) > maxAskPause:
		a.told = true
		p.log.Warn("nobody knows whether a sandbox is idle, so it is not paused as idle", "sandbox", sb.ID, "error", err)
	}
}

// lastUse asks a sandbox when it was last used: now while a conversation or a
// command runs; zero when its server is one that can't tell. With an error it is
// not known whether it is in use: the time is what is known all the same.
func (p *policies) lastUse(ctx context.Context, sb *fsm.Sandbox, away *atomic.Pointer[error]) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, p.s.cfg.ProbeTimeout)
	defer cancel()
	url := AgentURL(sb.Status.Placement)
	info, err := p.s.agents.ServerInfo(ctx, url)
	used := time.Now().Add(-info.Idle)
	switch {
	case errors.Is(err, agent.ErrRefused), errors.Is(err, agent.ErrBadAnswer):
		used = time.Time{}
	case err != nil:
		return time.Time{}, err
	case info.Idle < policyPause:
		return used, nil
	}
	// Not every server counts an agent at work as use, so the conversations
	// decide. They are read with the sandbox's key, which may not be at hand.
	if failed := away.Load(); failed != nil {
		return used, *failed
	}
	keys, err := p.s.secrets.Read(ctx, sb.KeyRef)
	if fsm.CodeOf(err) == fsm.CodeSecretStore {
		away.Store(&err)
	}
	if err != nil {
		return used, err
	}
	busy, err := p.s.agents.Busy(ctx, url, keys[secretKeyMember])
	switch {
	case busy:
		return time.Now(), nil
	case errors.Is(err, agent.ErrRefused):
		return used, nil // a server without conversations
	}
	return used, err
}

// expireAll pauses and deletes what is over as the store has it now.
func (p *policies) expireAll(ctx context.Context, now time.Time) {
	v := p.s.store.View()
	asked, braked, total := false, false, 0
	for range v.AllSandboxes() {
		total++
	}
	for sb := range v.AllSandboxes() {
		at, action, reason, ok := v.Expiry(sb)
		if !ok || now.Before(at) || reason == fsm.PausedByIdle && !p.saidIdle(v, sb, now) {
			continue
		}
		if !asked && !p.clocksAgree(ctx) {
			return
		}
		asked = true
		if action == fsm.ExpireDelete {
			if braked = braked || !p.mayDelete(ctx, total); braked {
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
			p.log.Warn("a sandbox whose time is over could not be ended", "sandbox", sb.ID, "reason", reason, "error", err)
		case res.Sandbox != nil:
			p.s.metrics.expired.WithLabelValues(action, reason).Inc()
			p.log.Info("a sandbox's time is over", "sandbox", sb.ID, "reason", reason)
		}
	}
}

// clocksAgree reports whether deadlines may be believed: those of the state are
// by the clocks of leaders before this one. Nothing is over under a hold, or while
// the mark does not say that the state is the newest.
func (p *policies) clocksAgree(ctx context.Context) bool {
	if p.s.store.View().Hold() != nil || !p.backend.sure() {
		return false
	}
	if p.s.cfg.ClocksAgree == nil {
		return true
	}
	err := p.s.cfg.ClocksAgree(ctx)
	if err == nil {
		p.told = ""
		return true
	}
	if text := err.Error(); ctx.Err() == nil && text != p.told {
		p.told = text
		p.log.Warn("no sandbox is paused or deleted by its policy: the clocks of the nodes differ", "error", err)
	}
	return false
}

// mayDelete asks whether one more sandbox of so many may be deleted by a policy
// within the hour.
func (p *policies) mayDelete(ctx context.Context, total int) bool {
	ok, err := p.s.reserve(ctx, p.log, fsm.RemovalSandbox, total)
	if err != nil && ctx.Err() == nil {
		p.log.Warn("asking whether a policy may delete a sandbox failed", "error", err)
	}
	return ok
}

// saidIdle reports whether nothing speaks against taking the sandbox for idle in
// the round that began at now: it was asked just then and said so, or there is
// nobody to ask. Not knowing is never idleness.
func (p *policies) saidIdle(v *fsm.View, sb *fsm.Sandbox, now time.Time) bool {
	if _, polled := askPause(v, sb); !polled {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.asked[sb.ID]
	return a != nil && a.round.Equal(now) && a.unknown.IsZero()
}
