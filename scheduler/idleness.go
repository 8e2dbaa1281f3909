package scheduler

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/agent"
)

// asking is what a term knows about the use of one sandbox.
type asking struct {
	// under is true while a question is under way. due is the time of the next one.
	under bool
	due   time.Time
	// began is the begin of the last question that was answered completely.
	began time.Time
	// unknown is the time since which the questions fail, zero while they don't. logged is true
	// when that is logged.
	unknown time.Time
	logged  bool
	// late: the server missed the deadline the last time, hung times in a row. lateKey: the
	// secret store did.
	late, lateKey bool
	hung          int
}

// answer is the result of one question: when the sandbox was last used, and in err why the rest
// is not known.
type answer struct {
	sandbox    string
	of         *asking
	begin, end time.Time
	pause      time.Duration
	used       time.Time
	err        error
}

const (
	// The pause between two questions is the idle timeout divided by askShare, at most
	// maxAskPause.
	askShare    = 4
	maxAskPause = time.Minute
	// maxAskRest bounds the pause between two questions to a server that hangs.
	maxAskRest = 8 * time.Minute
	// askFresh is the least time for which an answer counts as current.
	askFresh = 15 * time.Second
)

// askPause returns the pause between two questions to a sandbox. It is false when the sandbox has
// no idle timeout or no server that can be asked.
func askPause(v *fsm.View, sb *fsm.Sandbox) (time.Duration, bool) {
	idle := v.PolicyOf(sb).IdleTimeout
	if idle <= 0 || sb.Status.State != fsm.SandboxRunning || sb.Desired != fsm.DesiredRunning ||
		sb.Template.Readiness == fsm.ReadinessAllocation || access.AgentURL(sb.Status.Placement) == "" {
		return 0, false
	}
	return min(max(idle/askShare, policyPause), maxAskPause), true
}

// askIfDue begins a question to a sandbox if it is due. over says that the sandbox counts as idle
// since at, unless it answers otherwise. due is the time of the next question, zero while one is
// under way. unknown reports whether the use of the sandbox is not known.
func (p *policies) askIfDue(
	ctx context.Context,
	v *fsm.View,
	sb *fsm.Sandbox,
	over bool,
	at time.Time,
) (due time.Time, unknown bool) {
	pause, _ := askPause(v, sb)
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.asked[sb.ID]
	if a == nil {
		// The first question is at a random time within the pause: a new leader does not ask all
		// at once.
		a = &asking{due: now.Add(time.Duration(rand.Int64N(int64(pause))))}
		p.asked[sb.ID] = a
	}
	unknown = !a.unknown.IsZero()
	// A sandbox that is about to be paused as idle is asked once more at once. One whose use is
	// unknown is asked at the ordinary pace.
	last := over && !unknown && !a.idle(at, now, pause)
	switch {
	case a.under:
		return time.Time{}, unknown
	case now.Before(a.due) && !last:
		return a.due, unknown
	}
	a.under = true
	p.asks.Go(func() { p.ask(ctx, sb, a, pause) })
	return time.Time{}, unknown
}

// idle reports whether the last complete answer is current and was asked for after at.
func (a *asking) idle(at, now time.Time, pause time.Duration) bool {
	return a.unknown.IsZero() && !a.began.Before(at) && now.Sub(a.began) <= max(pause, askFresh)
}

// saidIdle reports whether a sandbox that is over since at may be taken for idle: it was asked
// after at and reported no use, or it has no server to ask. Unknown use never counts as idle.
func (p *policies) saidIdle(v *fsm.View, sb *fsm.Sandbox, at, now time.Time) bool {
	pause, polled := askPause(v, sb)
	if !polled {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.asked[sb.ID]
	return a != nil && a.idle(at, now, pause)
}

// forget drops what is known of a sandbox that is no longer asked.
func (p *policies) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.asked[id]; a != nil {
		p.setUnknownLocked(a, time.Time{})
		delete(p.asked, id)
	}
}

// setUnknownLocked sets the time since which the use of a sandbox is not known; the caller holds mu.
func (p *policies) setUnknownLocked(a *asking, since time.Time) {
	switch {
	case a.unknown.IsZero() && !since.IsZero():
		p.unknown++
	case !a.unknown.IsZero() && since.IsZero():
		p.unknown--
	}
	a.unknown = since
}

func (p *policies) unknownNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unknown
}

// ask waits for a slot, asks a sandbox for its last use, and leaves the answer to the next round.
func (p *policies) ask(ctx context.Context, sb *fsm.Sandbox, a *asking, pause time.Duration) {
	got := answer{sandbox: sb.ID, of: a, pause: pause}
	asked := p.gate.inTurn(ctx, ofIdleness, sb.Status.Placement.NodeID, &a.late, func(t *turn) bool {
		got.begin = time.Now()
		got.used, got.err = p.lastUse(ctx, sb, t, &a.lateKey)
		return got.err != nil
	})
	if !asked || ctx.Err() != nil {
		return
	}
	got.end = time.Now()
	p.mu.Lock()
	p.answers = append(p.answers, got)
	p.mu.Unlock()
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// takeAnswers takes the answers since the last round. A known use counts even if the rest of the
// answer is missing.
func (p *policies) takeAnswers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	answers := p.answers
	p.answers = nil
	for _, got := range answers {
		if !got.used.IsZero() {
			p.touches.at(use{sandbox: got.sandbox}, got.used)
		}
		p.agenda.set(got.sandbox, time.Time{})
		if p.asked[got.sandbox] == got.of {
			p.lastAnswerLocked(got)
		}
	}
}

// lastAnswerLocked takes one answer; the caller holds mu.
func (p *policies) lastAnswerLocked(got answer) {
	a := got.of
	a.under, a.due = false, got.begin.Add(got.pause)
	if a.late {
		a.hung++
		a.due = got.end.Add(jitter(min(got.pause<<min(a.hung, 10), max(maxAskRest, got.pause))))
	} else {
		a.hung = 0
	}
	switch {
	case got.err == nil:
		a.began, a.logged = got.begin, false
		p.setUnknownLocked(a, time.Time{})
	case a.unknown.IsZero():
		p.setUnknownLocked(a, got.begin)
	case !a.logged && got.begin.Sub(a.unknown) > maxAskPause:
		a.logged = true
		p.log.Warn("idleness unknown, sandbox is not paused as idle", "sandbox", got.sandbox, "error", got.err)
	}
}

// lastUse asks a sandbox when it was last used. It is now while a conversation or a command runs,
// and zero when its server can't say. With an error it is not known whether the sandbox is in
// use; used is what is known all the same.
func (p *policies) lastUse(ctx context.Context, sb *fsm.Sandbox, t *turn, lateKey *bool) (used time.Time, err error) {
	url := access.AgentURL(sb.Status.Placement)
	var info agent.ServerInfo
	t.within(ctx, probeHurry, func(ctx context.Context) { info, err = p.s.agents.ServerInfo(ctx, url) })
	used = time.Now().Add(-info.Idle)
	switch {
	case err != nil && t.slow:
		return time.Time{}, err // the call was cut off, so its error says nothing
	case errors.Is(err, agent.ErrRefused), errors.Is(err, agent.ErrBadAnswer):
		used = time.Time{}
	case err != nil:
		return time.Time{}, err
	case info.Idle < policyPause:
		return used, nil
	}
	// Not every server counts a working agent as use, so the conversations decide. Reading them
	// needs the sandbox's key, which may be unavailable.
	var key string
	if again := t.aside(ctx, func() { key, err = p.key(ctx, sb, lateKey) }); err == nil && !again {
		err = ctx.Err()
	}
	if err != nil {
		return used, err
	}
	busy := false
	t.within(ctx, probeHurry, func(ctx context.Context) { busy, err = p.s.agents.Busy(ctx, url, key) })
	switch {
	case busy:
		return time.Now(), nil
	case errors.Is(err, agent.ErrRefused):
		return used, nil // a server without conversations
	}
	return used, err
}

// key reads a sandbox's key. After the secret store was unavailable, no key is read for
// ProbeTimeout.
func (p *policies) key(ctx context.Context, sb *fsm.Sandbox, late *bool) (string, error) {
	p.mu.Lock()
	away := p.away
	if time.Since(p.awayAt) > p.s.cfg.ProbeTimeout {
		away = nil
	}
	p.mu.Unlock()
	if away != nil {
		return "", away
	}
	keys, err := p.gate.read(ctx, p.s.secrets, sb.KeyRef, sb.Status.Placement.NodeID, late)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if fsm.CodeOf(err) == fsm.CodeSecretStore {
			p.away, p.awayAt = err, time.Now()
		}
		return "", err
	}
	return keys[fsm.MemberKey], nil
}
