package scheduler

import (
	"context"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/slots"
)

// An agent server that accepts calls and never answers holds a probe for its whole timeout. So
// probes have separate slots by purpose (see purpose), and in each those of servers that answered
// in time the last time are apart from those that did not. One client gets a share of each kind's
// slots.
const (
	// probeHurry bounds the calls to a server that was not late before, startHurry the health
	// call of one that is starting. A late server is asked again in the late slots, with more
	// time.
	probeHurry = time.Second
	startHurry = 250 * time.Millisecond
	// maxRest bounds the pause between two probes of a server that fails.
	maxRest = time.Minute
	// clientSilence is how long no server on a client must have answered for the next answer to
	// wake the probes of all others there.
	clientSilence = 20 * time.Second
)

// purpose is what a server is asked for.
type purpose int

const (
	// ofRunning: its health. ofStarting: its readiness. ofIdleness: its use. ofKey: its key,
	// which is read from the secret store.
	ofRunning purpose = iota
	ofStarting
	ofIdleness
	ofKey
)

// probeKind selects the slots of a probe.
type probeKind struct {
	purpose purpose
	late    bool
}

// gate has the slots of probes.
type gate struct {
	slots map[probeKind]*slots.Shared
	// timeout bounds the calls of a probe together.
	timeout time.Duration

	mu      sync.Mutex
	clients map[string]*clientHealth
}

// clientHealth is what the probes of a client's sandboxes found.
type clientHealth struct {
	// probers is their number; the record ends with the last one.
	probers  int
	answered time.Time
	// well is closed when a server answers after a silence.
	well chan struct{}
}

func newGate(size int, timeout time.Duration) *gate {
	g := &gate{slots: map[probeKind]*slots.Shared{}, timeout: timeout, clients: map[string]*clientHealth{}}
	for _, p := range []purpose{ofRunning, ofStarting, ofIdleness, ofKey} {
		for _, late := range []bool{false, true} {
			// A server that usually answers and now waits was most likely probed too early, so
			// the newest goes first. Late servers take turns.
			g.slots[probeKind{p, late}] = slots.New(size, !late)
		}
	}
	return g
}

// join adds a prober to the client's record; leave removes it.
func (g *gate) join(client string) (leave func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.clients[client]
	if h == nil {
		h = &clientHealth{answered: time.Now(), well: make(chan struct{})}
		g.clients[client] = h
	}
	h.probers++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if h.probers--; h.probers == 0 {
			delete(g.clients, client)
		}
	}
}

// answered records that a server on the client answered. The first answer after a silence wakes
// the probers that rest.
func (g *gate) answered(client string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.clients[client]
	if h == nil {
		return
	}
	if time.Since(h.answered) > clientSilence {
		close(h.well)
		h.well = make(chan struct{})
	}
	h.answered = time.Now()
}

// wellAgain returns a channel that is closed at the first answer on the client after a silence.
// The caller has joined.
func (g *gate) wellAgain(client string) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.clients[client].well
}

// read reads an entry of the secret store for a sandbox on a client. The store may hang for all
// sandboxes at once. late says whether it did the last time.
func (g *gate) read(
	ctx context.Context,
	secrets Secrets,
	ref fsm.SecretRef,
	client string,
	late *bool,
) (entry map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	asked := g.inTurn(ctx, ofKey, client, late, func(t *turn) bool {
		t.within(ctx, startHurry, func(ctx context.Context) { entry, err = secrets.Read(ctx, ref) })
		return err != nil
	})
	if !asked {
		return nil, fsm.Errorf(fsm.CodeSecretStore, "the secret store does not answer the reads that were begun before")
	}
	return entry, err
}

// turn is a probe's slot.
type turn struct {
	line    *slots.Shared
	client  string
	timeout time.Duration
	leave   func()
	// whole: the calls get the whole timeout, of which spent is used. slow: one of them took
	// longer than its first deadline allows.
	whole, slow bool
	spent       time.Duration
}

// take waits for the slot; false when ctx ended before.
func (t *turn) take(ctx context.Context) bool {
	t.leave = t.line.Enter(ctx, t.client)
	return t.leave != nil
}

// end returns the slot.
func (t *turn) end() {
	if t.leave != nil {
		t.leave()
		t.leave = nil
	}
}

// aside returns the slot while fn runs and takes one again; false when ctx ended before that.
func (t *turn) aside(ctx context.Context, fn func()) bool {
	t.end()
	fn()
	return t.take(ctx)
}

// within makes calls to the server, and cancels them when they take too long.
func (t *turn) within(ctx context.Context, hurry time.Duration, calls func(ctx context.Context)) {
	hurry = min(hurry, t.timeout)
	limit := hurry
	if t.whole {
		limit = t.timeout - t.spent
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	calls(ctx)
	took := time.Since(begin)
	t.spent += took
	t.slow = t.slow || took >= hurry || ctx.Err() != nil
}

// inTurn makes a probe of a server on a client, in the slots of its purpose. try reports whether
// it failed. A probe that failed because it was late does not count yet: it is repeated in the
// late slots. A server that was late the last time is probed there at once. inTurn reports false
// when ctx ended before.
func (g *gate) inTurn(ctx context.Context, p purpose, client string, late *bool, try func(t *turn) (failed bool)) bool {
	for _, whole := range []bool{false, true} {
		if *late && !whole {
			continue
		}
		t := &turn{line: g.slots[probeKind{p, whole}], client: client, timeout: g.timeout, whole: whole}
		if !t.take(ctx) {
			return false
		}
		failed := try(t)
		t.end()
		if *late = failed && t.slow; !*late {
			break
		}
	}
	return true
}

// rest waits between two probes of a server, or until its client answers again; false when ctx
// ended.
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

// probe probes the server once, in the slots of its kind, and records whether it is late. It
// reports false when ctx ended before.
func (p *prober) probe(ctx context.Context, starting bool, res *ProbeResult) bool {
	kind, hurry, was := ofRunning, probeHurry, *res
	if starting {
		kind, hurry = ofStarting, startHurry
	}
	ok := p.l.gate.inTurn(ctx, kind, p.client, &p.late, func(t *turn) bool {
		*res, p.turn = was, t
		failed := p.once(ctx, res, hurry)
		if failed && t.slow {
			p.count(false) // the wait for a late slot may be long
		}
		return failed
	})
	if ok && res.Answering {
		p.l.gate.answered(p.client)
	}
	return ok
}

// pause returns how long to wait after a probe. waited is the time without a healthy answer, and
// eager the number of probers at the fast pace.
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
