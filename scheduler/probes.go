package scheduler

import (
	"context"
	"sync"
	"time"
)

// An agent server that takes calls and answers none holds a probe for the whole
// of its time-out. So probes are told apart: of sandboxes that are starting and
// of others, and of both those that answered in time the last time and those that
// did not. Each kind has slots of its own, and each client a share of them.
const (
	// probeHurry bounds a health call of a server that was not late before,
	// startHurry that of one that is starting. One that is late is asked again,
	// among the late ones and with more time.
	probeHurry = time.Second
	startHurry = 250 * time.Millisecond
	// maxRest bounds the pause between two probes of a server that fails.
	maxRest = time.Minute
	// clientSilence is how long nothing on a client must have answered for the
	// first answer to have everything else there asked.
	clientSilence = 20 * time.Second
)

// probeKind is a kind of probe.
type probeKind struct{ starting, late bool }

// gate hands out the slots of probes.
type gate struct {
	slots map[probeKind]*shared

	mu      sync.Mutex
	clients map[string]*clientHealth
}

// clientHealth is what the probes of a client's sandboxes say of it.
type clientHealth struct {
	answered time.Time
	// well is closed when something answers after a silence.
	well chan struct{}
}

func newGate(size int) *gate {
	g := &gate{slots: map[probeKind]*shared{}, clients: map[string]*clientHealth{}}
	for _, starting := range []bool{false, true} {
		for _, late := range []bool{false, true} {
			// Whoever waits among those that answer has most likely come too early;
			// those that don't take turns.
			g.slots[probeKind{starting, late}] = newShared(size, !late)
		}
	}
	return g
}

// healthLocked is the client's; the caller holds mu.
func (g *gate) healthLocked(client string) *clientHealth {
	h := g.clients[client]
	if h == nil {
		h = &clientHealth{answered: time.Now(), well: make(chan struct{})}
		g.clients[client] = h
	}
	return h
}

// answered notes that a server on the client answered. The first to do so after
// a silence wakes those that rest.
func (g *gate) answered(client string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.healthLocked(client)
	if time.Since(h.answered) > clientSilence {
		close(h.well)
		h.well = make(chan struct{})
	}
	h.answered = time.Now()
}

// wellAgain is closed when something on the client answers after a silence.
func (g *gate) wellAgain(client string) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.healthLocked(client).well
}

// rest waits between two probes of a server, or until its client is well again;
// false when ctx ended.
func rest(ctx context.Context, well <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	case <-well:
	}
	return true
}

// probe asks the server once, in the place of its kind, and notes whether it is
// late. It reports false when ctx ended before it could.
func (p *prober) probe(ctx context.Context, starting bool, res *ProbeResult) bool {
	limit := min(probeHurry, p.l.s.cfg.ProbeTimeout)
	if starting {
		limit = min(startHurry, limit)
	}
	if !p.late {
		leave := p.l.gate.slots[probeKind{starting: starting}].enter(ctx, p.client)
		if leave == nil {
			return false
		}
		p.late = !p.once(ctx, res, limit)
		leave()
		if !p.late {
			p.tell(res)
			return true
		}
	}
	leave := p.l.gate.slots[probeKind{starting: starting, late: true}].enter(ctx, p.client)
	if leave == nil {
		return false
	}
	begin := time.Now()
	p.once(ctx, res, p.l.s.cfg.ProbeTimeout)
	leave()
	p.late = !res.Answering && time.Since(begin) >= limit
	p.tell(res)
	return true
}

// tell tells the gate of an answer.
func (p *prober) tell(res *ProbeResult) {
	if res.Answering {
		p.l.gate.answered(p.client)
	}
}

// pause is how long to wait after a probe of a server that has been asked for a
// time in vain, as one of so many in a hurry.
func (p *prober) pause(res ProbeResult, starting bool, waited time.Duration, eager int) time.Duration {
	cfg := p.l.s.cfg
	switch {
	case res.Answering && res.Proven:
		return jitter(cfg.HealthInterval)
	case starting && p.late:
		return jitter(min(max(waited/4, cfg.ProbeMax), cfg.HealthInterval))
	case starting:
		lo := cfg.ProbeMin
		if p.sb.Member() {
			lo = max(lo, min(memberPause, cfg.ProbeMax))
		}
		wait := eagerPause(waited, eager, lo, cfg.ProbeMax)
		if res.Answering {
			wait = max(wait, min(proveAgain, cfg.ProbeMax))
		}
		return wait
	}
	wait := cfg.HealthInterval / 4
	for n := res.Failures; n > cfg.HealthFailures && wait < maxRest; n-- {
		wait *= 2
	}
	return jitter(min(wait, max(maxRest, cfg.HealthInterval/4)))
}
