package scheduler

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// proveAgain bounds how often a server that answers but is not proven is asked
// for the proof: it costs a read of the secret store.
const proveAgain = 100 * time.Millisecond

// prober asks the agent server of one placement until it is stopped. It posts
// each result that Plan could care for to the loop.
type prober struct {
	l *loop
	// sb is the row the prober was made for: its keys and marker hold as long
	// as the prober does.
	sb     *fsm.Sandbox
	url    string
	alloc  string
	client string
	work   string
	// late: the server did not answer in time the last time.
	late bool
	// bound: this prober gave the server its key.
	bound bool
	// primed is what a member of a pool is bound with, for the prober of its
	// owner; under loop.mu while the prober is the track's.
	primed *primed
	// marked is when the workspace's marker was last written or found.
	marked time.Time
	cancel context.CancelFunc
	// eager: it is counted in loop.eager.
	eager bool
}

// watch makes the prober of the sandbox be for placement p, and the key it has
// now, and no other; nil stops it.
func (l *loop) watch(ctx context.Context, t *track, sb *fsm.Sandbox, p *fsm.Placement) {
	url := AgentURL(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	var warm *primed
	if t.prober != nil {
		same := p != nil && t.prober.alloc == p.AllocID && t.prober.url == url
		if same && t.prober.sb.KeyRef == sb.KeyRef {
			return
		}
		if same && t.prober.sb.Member() && t.probe.Answering && t.probe.Proven {
			warm = t.prober.primed
		}
		t.prober.cancel()
		t.prober = nil
		t.probe = ProbeResult{}
	}
	if p == nil || url == "" {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	pr := &prober{l: l, sb: sb, url: url, alloc: p.AllocID, client: p.NodeID, work: p.Workspace, primed: warm, cancel: cancel}
	t.prober = pr
	t.probe = ProbeResult{AllocID: p.AllocID, URL: url, KeyRef: sb.KeyRef}
	l.probers.Go(func() {
		defer cancel()
		pr.run(ctx, t)
	})
}

// run probes until ctx ends: quickly while the sandbox is starting, at the
// health interval while all is well.
func (p *prober) run(ctx context.Context, t *track) {
	begin := time.Now()
	defer p.count(false)
	res := ProbeResult{AllocID: p.alloc, URL: p.url, KeyRef: p.sb.KeyRef}
	starting := p.post(t, res, res)
	for {
		before := res
		// Taken before: the news may come while a probe hangs.
		well := p.l.gate.wellAgain(p.client)
		if !p.probe(ctx, starting, &res) || ctx.Err() != nil {
			return
		}
		starting = p.post(t, before, res)
		p.renewMarker(ctx, res)
		eager := p.count(starting && !p.late && !res.Proven && !p.sb.Member())
		if res.Failures == 1 && before.Failures == 0 && starting {
			p.l.probers.Go(func() { p.foresee(ctx) })
		}
		if res.Answering && res.Proven {
			begin = time.Now()
		}
		if res.Answering {
			well = nil
		}
		if !rest(ctx, well, p.pause(res, starting, time.Since(begin), eager)) {
			return
		}
	}
}

// Half the pause between two probes is lost between the answer and the
// question. It may grow by a fiftieth of the time waited so far, and all
// sandboxes that are starting share two thousand probes a second.
// Nobody waits for the member of a pool, and starts should not wait for its
// probes.
const (
	probeShare  = 50
	probesEvery = 500 * time.Microsecond
	memberPause = 50 * time.Millisecond
)

// eagerPause is the pause between two probes of a sandbox that has been starting
// for a time, as one of so many.
func eagerPause(waited time.Duration, eager int, lo, hi time.Duration) time.Duration {
	return min(max(lo, waited/probeShare, time.Duration(eager)*probesEvery), hi)
}

// count says whether this prober is one of those in a hurry, and tells how many
// there are.
func (p *prober) count(eager bool) int {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	if eager != p.eager {
		p.eager = eager
		if eager {
			p.l.eager++
		} else {
			p.l.eager--
		}
	}
	return p.l.eager
}

// foresee reads the key while the server is not up yet, for the secret store's
// client to remember it: the proof then waits for nobody else. What fails now
// fails again when it matters.
func (p *prober) foresee(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.l.s.cfg.ProbeTimeout)
	defer cancel()
	if ref := p.sb.KeyRef; !ref.IsZero() {
		_, _ = p.l.s.secrets.Read(ctx, ref)
	}
}

// post hands a result to the loop, and has the sandbox looked at when it could
// matter. It reports whether the sandbox is starting.
func (p *prober) post(t *track, before, res ProbeResult) bool {
	l := p.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.prober != p {
		return false
	}
	t.probe = res
	// How often a sandbox that is starting did not answer is nobody's business.
	more := before.Failures != res.Failures && (!t.starting || res.Failures <= 1)
	if before.Answering != res.Answering || before.Proven != res.Proven || more || !failureEqual(before.Failure, res.Failure) {
		l.queue.add(p.sb.ID)
	}
	return t.starting
}

// once asks the server, and for the proof while it has not given it. A server
// that does not say within limit that it serves is not waited for: then once
// reports false, and notes that as a failure only if limit is the whole time.
func (p *prober) once(ctx context.Context, res *ProbeResult, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, p.l.s.cfg.ProbeTimeout)
	defer cancel()
	if p.bindPrimed(ctx, res) {
		return true
	}
	begin := time.Now()
	hurry, done := context.WithTimeout(ctx, limit)
	err := p.l.s.agents.Health(hurry, p.url)
	done()
	if err != nil {
		late := time.Since(begin) >= limit
		if late && limit < p.l.s.cfg.ProbeTimeout {
			return false
		}
		res.Answering = false
		res.fail(&Failure{Reason: fsm.ReasonHealth, Detail: "the agent server at " + p.url + " does not answer: " + err.Error()})
		return !late
	}
	res.Answering = true
	dormant, f := p.lookDormant(ctx, res)
	switch {
	case f != nil:
		res.Proven = false
	case p.sb.Member():
		res.Proven = dormant
		p.prime(ctx)
	case dormant || !res.Proven:
		f = p.prove(ctx, res, dormant)
		res.Proven = f == nil
	}
	switch {
	case f == nil:
		res.ok()
	case f.Reason == fsm.ReasonSecretStore:
		// Not the sandbox's fault: it counts as no failure of its.
		res.ok()
		res.Failure = f
	default:
		res.fail(f)
	}
	return true
}

// prove makes sure that the sandbox and its workspace are what they should be:
// a dormant server is given its key first.
func (p *prober) prove(ctx context.Context, res *ProbeResult, dormant bool) *Failure {
	with := &primed{}
	var f *Failure
	if with.keys, f = p.read(ctx, p.sb.KeyRef, "the sandbox's key"); f != nil {
		return f
	}
	if dormant {
		if with.init, f = p.read(ctx, p.sb.InitRef, "what the warm sandbox is initialised with"); f != nil {
			return f
		}
		if _, f = p.bind(ctx, with); f != nil {
			return f
		}
	}
	key := with.keys[secretKeyMember]
	if f := p.proveKey(ctx, key); f != nil {
		return f
	}
	return p.checkWorkspace(ctx, key, res)
}

// read reads an entry of the secret store; what says which in a failure.
func (p *prober) read(ctx context.Context, ref fsm.SecretRef, what string) (map[string]string, *Failure) {
	entry, err := p.l.s.secrets.Read(ctx, ref)
	if err != nil {
		return nil, &Failure{Reason: fsm.ReasonSecretStore, Detail: "reading " + what + ": " + err.Error()}
	}
	return entry, nil
}

// proveKey makes sure that the server is the one the key belongs to.
func (p *prober) proveKey(ctx context.Context, key string) *Failure {
	err := p.l.s.agents.Prove(ctx, p.url, key)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, agent.ErrNotOurs), errors.Is(err, agent.ErrUnauthorized):
		return &Failure{
			Reason: fsm.ReasonAgentRejected,
			Detail: "what answers at " + p.url + " did not prove to be this sandbox: " + err.Error(),
		}
	}
	return &Failure{Reason: fsm.ReasonHealth, Detail: "the agent server at " + p.url + " is not ready: " + err.Error()}
}

func (r *ProbeResult) ok() {
	r.Failures, r.FailingSince, r.Failure = 0, time.Time{}, nil
}

func (r *ProbeResult) fail(f *Failure) {
	if r.Failures == 0 {
		r.FailingSince = time.Now()
	}
	r.Failures++
	r.Failure = f
}

// jitter spreads d by a tenth either way.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-.5)*.2*float64(d))
}
