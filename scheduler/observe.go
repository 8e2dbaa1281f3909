package scheduler

import (
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/agent"
)

// proveAgain is the least pause before a server that answers but is not proven is probed again:
// the proof costs a read of the secret store.
const proveAgain = 100 * time.Millisecond

// prober probes the agent server of one placement until it is stopped. It passes each result to
// the loop and queues the sandbox when Plan may need it.
type prober struct {
	l *loop
	// sb is the row the prober was made for. Its keys and marker stay valid as long as the prober
	// runs.
	sb     *fsm.Sandbox
	url    string
	alloc  string
	client string
	work   string
	// late: the server missed the deadline the last time. turn is the slot of the probe that is
	// under way.
	late bool
	turn *turn
	// lateKey: the secret store did.
	lateKey bool
	// bound: this prober gave the server its key.
	bound bool
	// prefetched is what binds a claimed member of a pool; the prober of its owner inherits it. It is
	// guarded by loop.mu while the prober is the track's.
	prefetched *prefetched
	// marked is when the workspace's marker was last written or found.
	marked time.Time
	cancel context.CancelFunc
	// reported: the backend reported the address for this allocation in this term. Before that only a
	// server that proves its key by a challenge is ours. It is guarded by loop.mu.
	reported bool
	// eager: this prober is counted in loop.eager.
	eager bool
}

// watch makes the track's prober be for placement p and the sandbox's present key. A nil p stops
// it. reported: p is what the backend says now, and not what the row says.
func (l *loop) watch(ctx context.Context, t *track, sb *fsm.Sandbox, p *fsm.Placement, reported bool) {
	url := access.AgentURL(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	var warm *prefetched
	if t.prober != nil {
		same := p != nil && t.prober.alloc == p.AllocID && t.prober.url == url
		if same && t.prober.sb.KeyRef == sb.KeyRef {
			t.prober.reported = reported
			return
		}
		if same && t.prober.sb.Member() && t.probe.Answering && t.probe.Proven {
			warm = t.prober.prefetched
		}
		t.prober.cancel()
		t.prober = nil
		t.probe = ProbeResult{}
	}
	if p == nil || url == "" {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	pr := &prober{
		l:          l,
		sb:         sb,
		url:        url,
		alloc:      p.AllocID,
		client:     p.NodeID,
		work:       p.Workspace,
		prefetched: warm,
		cancel:     cancel,
		reported:   reported,
	}
	t.prober = pr
	t.probe = ProbeResult{AllocID: p.AllocID, URL: url, KeyRef: sb.KeyRef}
	l.probers.Go(func() {
		defer cancel()
		pr.run(ctx, t)
	})
}

// run probes until ctx ends: at the fast pace while the sandbox starts, at the health interval
// while it is well.
func (p *prober) run(ctx context.Context, t *track) {
	begin := time.Now()
	defer p.count(false)
	defer p.l.gate.join(p.client)()
	res := ProbeResult{AllocID: p.alloc, URL: p.url, KeyRef: p.sb.KeyRef}
	starting := p.post(t, res, res)
	for {
		before := res
		// Taken before the probe, because the client may come back while it hangs.
		well := p.l.gate.wellAgain(p.client)
		if !p.probe(ctx, starting, &res) || ctx.Err() != nil {
			return
		}
		starting = p.post(t, before, res)
		p.renewMarker(ctx, res)
		eager := p.count(starting && !p.late && !p.lateKey && !res.Proven && !p.sb.Member())
		if res.Failures == 1 && before.Failures == 0 && starting {
			p.l.probers.Go(func() { p.prefetchKey(ctx) })
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

// On average a probe notices readiness half a pause late. So the pause is a fiftieth of the time
// waited so far, within bounds, and all sandboxes that start share two thousand probes a second.
// No user waits for a pool member, so its pause is at least memberPause and its probes don't
// delay starts.
const (
	probeShare  = 50
	probesEvery = 500 * time.Microsecond
	memberPause = 50 * time.Millisecond
)

// eagerPause returns the pause between two probes of a sandbox that has been starting for waited,
// as one of eager sandboxes.
func eagerPause(waited time.Duration, eager int, lo, hi time.Duration) time.Duration {
	return min(max(lo, waited/probeShare, time.Duration(eager)*probesEvery), hi)
}

// count records whether this prober probes at the fast pace, and returns how many do.
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

// prefetchKey reads the key while the server is not up yet, so that the secret store's client has
// it cached for the proof. It ignores errors: they come again when the key is needed.
func (p *prober) prefetchKey(ctx context.Context) {
	if ref := p.sb.KeyRef; !ref.IsZero() {
		_, _ = p.l.gate.read(ctx, p.l.s.secrets, ref, p.client, new(bool))
	}
}

// post passes a result to the loop and queues the sandbox when the result may matter. It reports
// whether the sandbox is starting.
func (p *prober) post(t *track, before, res ProbeResult) bool {
	l := p.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.prober != p {
		return false
	}
	t.probe = res
	// While a sandbox starts, only the first failure matters to Plan.
	more := before.Failures != res.Failures && (!t.starting || res.Failures <= 1)
	if before.Answering != res.Answering || before.Proven != res.Proven || more ||
		!failureEqual(before.Failure, res.Failure) {
		l.queue.add(p.sb.ID)
	}
	return t.starting
}

// once probes the server, and asks for the proof until there is one. It reports whether the
// server failed. hurry bounds the health call of a server that is not late.
func (p *prober) once(ctx context.Context, res *ProbeResult, hurry time.Duration) (failed bool) {
	if p.bindPrefetched(ctx, res) {
		return false
	}
	var err error
	p.turn.within(ctx, hurry, func(ctx context.Context) { err = p.l.s.agents.Health(ctx, p.url) })
	if err != nil {
		res.Answering = false
		res.fail(&Failure{
			Reason: fsm.ReasonHealth,
			Detail: "the agent server at " + p.url + " does not answer: " + err.Error(),
		})
		return true
	}
	res.Answering = true
	var dormant bool
	var f *Failure
	if p.mayBeDormant(res) {
		p.turn.within(ctx, probeHurry, func(ctx context.Context) { dormant, f = p.lookDormant(ctx, res) })
	}
	switch {
	case f != nil:
		res.Proven = false
	case p.sb.Member():
		res.Proven = dormant
		p.prefetchBinding(ctx)
	case dormant || !res.Proven:
		f = p.prove(ctx, res, dormant)
		res.Proven = f == nil
	}
	switch {
	case f == nil:
		res.ok()
	case f.Reason == fsm.ReasonSecretStore, f.unreported:
		// The sandbox did not cause this, so it is not counted as its failure.
		res.ok()
		res.Failure = f
	default:
		res.fail(f)
	}
	return res.Failures > 0
}

// prove checks that the server and its workspace are the sandbox's. A dormant server is given its
// key first.
func (p *prober) prove(ctx context.Context, res *ProbeResult, dormant bool) (f *Failure) {
	with := &prefetched{}
	if with.keys, f = p.read(ctx, p.sb.KeyRef, "the sandbox's key"); f != nil {
		return f
	}
	if dormant {
		if with.init, f = p.read(ctx, p.sb.InitRef, "what the warm sandbox is initialised with"); f != nil {
			return f
		}
	}
	p.turn.within(ctx, probeHurry, func(ctx context.Context) {
		if dormant {
			if _, f = p.bind(ctx, with); f != nil {
				return
			}
		}
		key := with.keys[fsm.MemberKey]
		if res.Challenged, f = p.proveKey(ctx, key); f == nil {
			f = p.checkWorkspace(ctx, key, res)
		}
	})
	return f
}

// read reads an entry of the secret store while the probe gives up its slot. what names the entry
// in a failure.
func (p *prober) read(ctx context.Context, ref fsm.SecretRef, what string) (entry map[string]string, f *Failure) {
	var err error
	p.count(false) // a read may hang, and this prober does not probe until it ends
	again := p.turn.aside(ctx, func() { entry, err = p.l.gate.read(ctx, p.l.s.secrets, ref, p.client, &p.lateKey) })
	if err == nil && !again {
		err = ctx.Err()
	}
	if err != nil {
		return nil, &Failure{Reason: fsm.ReasonSecretStore, Detail: "reading " + what + ": " + err.Error()}
	}
	return entry, nil
}

// proveKey checks that the key belongs to the server. challenged says that the server proved it
// without being shown the key.
func (p *prober) proveKey(ctx context.Context, key string) (challenged bool, f *Failure) {
	reported := p.isReported()
	challenged, err := p.l.s.agents.Prove(ctx, p.url, key, !reported || p.builtIn())
	switch {
	case err == nil:
		return challenged, nil
	case errors.Is(err, agent.ErrUnproven) && !reported:
		return false, p.unreported()
	case errors.Is(err, agent.ErrNotOurs), errors.Is(err, agent.ErrUnauthorized), errors.Is(err, agent.ErrUnproven):
		return false, &Failure{
			Reason: fsm.ReasonAgentRejected,
			Detail: "what answers at " + p.url + " did not prove to be this sandbox: " + err.Error(),
		}
	}
	return false, &Failure{
		Reason: fsm.ReasonHealth,
		Detail: "the agent server at " + p.url + " is not ready: " + err.Error(),
	}
}

func (p *prober) isReported() bool {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	return p.reported
}

func (p *prober) unreported() *Failure {
	return &Failure{
		Reason: fsm.ReasonHealth, unreported: true,
		Detail: "the backend has not reported " + p.url + " yet, and what answers there was not shown the key",
	}
}

// builtIn reports whether the server must be the built-in one of this program or a newer one, which
// answers challenges: the sandbox's server has answered one, or the spec names it and the sandbox
// never ran an older one.
func (p *prober) builtIn() bool {
	const program = "sandbox-agent"
	t := p.sb.Template
	switch {
	case p.sb.Status.Challenged:
		return true
	case p.sb.Status.Workspace != "":
		return false
	case t.Driver == fsm.DriverDocker:
		name, _, _ := strings.Cut(path.Base(t.Image), ":")
		return t.Command == "" && name == program
	}
	return path.Base(t.Command) == program || t.Driver == fsm.DriverProcess && t.Command == ""
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

// jitter changes d by up to a tenth either way.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-.5)*.2*float64(d))
}
