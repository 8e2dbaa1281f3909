package scheduler

import (
	"context"
	"errors"
	"sync"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/fault"
)

// lookDormant reports whether the server waits for its key, as the members of
// warm pools do, and those that were claimed do again when their process was
// restarted in place. A sandbox that was started cold is not asked, nor one
// that once said that it is not deferred.
func (p *prober) lookDormant(ctx context.Context, res *ProbeResult) (bool, *Failure) {
	if p.sb.Pool == "" || res.Proven && !res.Deferred {
		return false, nil
	}
	state, err := p.l.s.agents.InitState(ctx, p.url)
	switch {
	case errors.Is(err, agent.ErrNotDeferred):
		res.Deferred = false
		if p.sb.Member() {
			return false, &Failure{
				Reason: fsm.ReasonSpec,
				Detail: "the agent server of the spec " + p.sb.SpecID + " can't be kept in a warm pool: it knows no deferred initialisation",
			}
		}
		return false, nil
	case err != nil:
		return false, &Failure{Reason: fsm.ReasonHealth, Detail: "the agent server at " + p.url + " does not say whether it has its key: " + err.Error()}
	}
	res.Deferred = true
	switch {
	case state == agent.StateDormant:
		return true, nil
	case state != agent.StateReady:
		return false, &Failure{Reason: fsm.ReasonHealth, Detail: "the agent server at " + p.url + " is taking its key"}
	case p.sb.Member():
		return false, &Failure{Reason: fsm.ReasonAgentRejected, Detail: "the member of the warm pool at " + p.url + " was given a key that is not ours"}
	}
	return false, nil
}

// primed is what binds a member of a warm pool: the entry it is initialised
// with and its owner's keys, read before there is an owner, so that a claim
// waits for no secret store. It stays in this leader's memory, which may read
// all of it anyway, and goes with the prober; it is never logged.
type primed struct{ init, keys map[string]string }

// prime reads what the member will be bound with. Where that fails the claim
// reads it.
func (p *prober) prime(ctx context.Context) {
	if p.primed != nil {
		return
	}
	got := &primed{}
	var f *Failure
	if got.init, f = p.read(ctx, p.sb.InitRef, "what a warm sandbox is initialised with"); f == nil {
		got.keys, f = p.read(ctx, p.sb.WarmKeyRef, "the key of a warm sandbox")
	}
	if f != nil {
		return
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	p.primed = got
}

// bindPrimed is once for a member that this leader found dormant and that was
// claimed since: it is given its key at once, over the connection that is open.
// It reports whether the sandbox is usable; else whatever is wrong is found out
// in the ordinary way.
func (p *prober) bindPrimed(ctx context.Context, res *ProbeResult) bool {
	with := p.primed
	if with == nil || p.sb.Member() {
		return false
	}
	p.primed = nil
	seconds(p.l.s.metrics.start.WithLabelValues("claimed", startKind(p.sb)), p.sb.DesiredAt)
	// One that says that it had a key already has to prove first that it is this
	// one.
	if taken, f := p.bind(ctx, with); f != nil || !taken {
		return false
	}
	key, marked := with.keys[secretKeyMember], *res
	var proof, workspace *Failure
	var g sync.WaitGroup
	g.Go(func() { proof = p.proveKey(ctx, key) })
	g.Go(func() { workspace = p.checkWorkspace(ctx, key, &marked) })
	g.Wait()
	if proof != nil || workspace != nil {
		return false
	}
	*res = marked
	res.Answering, res.Proven, res.Deferred = true, true, true
	res.ok()
	return true
}

// bind gives a dormant server the key of the sandbox's owner, and with it the
// secret key that later starts of the sandbox will have: nothing was sealed
// with the one it was started with. Asking twice is harmless; what the proof
// says afterwards decides. It reports whether the server took the key just now.
func (p *prober) bind(ctx context.Context, with *primed) (taken bool, f *Failure) {
	s := p.l.s
	fault.At("before", "bind")
	err := s.agents.Init(ctx, p.url, with.init[sealKeyMember], agent.InitRequest{
		SessionAPIKeys: []string{with.keys[secretKeyMember]}, SecretKey: with.keys[sealKeyMember],
	})
	fault.At("after", "bind")
	switch {
	case err == nil, errors.Is(err, agent.ErrNotDormant):
		if !p.bound && p.sb.State() == fsm.SandboxStarting {
			p.bound = true
			seconds(s.metrics.start.WithLabelValues("bound", startKind(p.sb)), p.sb.DesiredAt)
		}
		return err == nil, nil
	case errors.Is(err, agent.ErrUnauthorized):
		return false, &Failure{Reason: fsm.ReasonAgentRejected, Detail: "the warm sandbox at " + p.url + " refused its key: " + err.Error()}
	}
	return false, &Failure{Reason: fsm.ReasonHealth, Detail: "the warm sandbox at " + p.url + " did not take its key: " + err.Error()}
}
