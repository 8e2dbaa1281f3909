package scheduler

import (
	"context"
	"errors"
	"sync"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/fault"
)

// mayBeDormant reports whether the server may wait for its key. Members of warm pools do, and claimed
// ones do again when their process restarts in place. A sandbox that was started cold is not
// asked, nor one that answered before that it is not deferred.
func (p *prober) mayBeDormant(res *ProbeResult) bool {
	return p.sb.Pool != "" && (!res.Proven || res.Deferred)
}

// lookDormant reports whether the server waits for its key.
func (p *prober) lookDormant(ctx context.Context, res *ProbeResult) (bool, *Failure) {
	state, err := p.l.s.agents.InitState(ctx, p.url)
	switch {
	case errors.Is(err, agent.ErrNotDeferred):
		res.Deferred = false
		if p.sb.Member() {
			return false, &Failure{
				Reason: fsm.ReasonSpec,
				Detail: "the agent server of the spec " + p.sb.SpecID + " can't be kept in a warm pool: " +
					"it knows no deferred initialisation",
			}
		}
		return false, nil
	case err != nil:
		return false, &Failure{
			Reason: fsm.ReasonHealth,
			Detail: "the agent server at " + p.url + " does not say whether it has its key: " + err.Error(),
		}
	}
	res.Deferred = true
	switch {
	case state == agent.StateDormant:
		return true, nil
	case state != agent.StateReady:
		return false, &Failure{Reason: fsm.ReasonHealth, Detail: "the agent server at " + p.url + " is taking its key"}
	case p.sb.Member():
		return false, &Failure{
			Reason: fsm.ReasonAgentRejected,
			Detail: "the member of the warm pool at " + p.url + " was given a key that is not ours",
		}
	}
	return false, nil
}

// prefetched has what binds a member of a warm pool: the entry for its initialisation and its
// owner's keys. It is read before there is an owner, so that a claim does not wait for the secret
// store. It stays in the memory of this leader, which may read all of it anyway, and is never
// logged. The prober of the owner takes it over from the member's.
type prefetched struct{ init, keys map[string]string }

// prefetchBinding reads what binds the member. A failure is ignored: the claim reads it then.
func (p *prober) prefetchBinding(ctx context.Context) {
	if p.prefetched != nil {
		return
	}
	got := &prefetched{}
	var f *Failure
	if got.init, f = p.read(ctx, p.sb.InitRef, "what a warm sandbox is initialised with"); f == nil {
		got.keys, f = p.read(ctx, p.sb.WarmKeyRef, "the key of a warm sandbox")
	}
	if f != nil {
		return
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	p.prefetched = got
}

// bindPrefetched runs once, for a claimed member that this leader found dormant before the claim.
// It gives the member its key at once, over the open connection. It reports whether the sandbox is
// usable; if not, the ordinary probe finds out why.
func (p *prober) bindPrefetched(ctx context.Context, res *ProbeResult) bool {
	with := p.prefetched
	if with == nil || p.sb.Member() {
		return false
	}
	p.prefetched = nil
	seconds(p.l.s.metrics.start.WithLabelValues("claimed", startKind(p.sb)), p.sb.DesiredAt)
	usable, marked := false, *res
	p.turn.within(ctx, probeHurry, func(ctx context.Context) {
		// A server that already had a key must first prove that it is this one.
		if taken, f := p.bind(ctx, with); f != nil || !taken {
			return
		}
		key := with.keys[fsm.MemberKey]
		var proof, workspace *Failure
		var challenged bool
		var g sync.WaitGroup
		g.Go(func() { challenged, proof = p.proveKey(ctx, key) })
		g.Go(func() { workspace = p.checkWorkspace(ctx, key, &marked) })
		g.Wait()
		usable, marked.Challenged = proof == nil && workspace == nil, challenged
	})
	if !usable {
		return false
	}
	*res = marked
	res.Answering, res.Proven, res.Deferred = true, true, true
	res.ok()
	return true
}

// bind gives a dormant server the key of the sandbox's owner, and the secret key that later
// starts of the sandbox will have. Nothing is encrypted with the secret key that it was started
// with. A repeated call is harmless, because the proof after it decides. taken reports whether
// the server took the key in this call.
func (p *prober) bind(ctx context.Context, with *prefetched) (taken bool, f *Failure) {
	s := p.l.s
	fault.At("before", "bind")
	reported := p.isReported()
	err := s.agents.Init(ctx, p.url, with.init[fsm.MemberSecretKey], agent.InitRequest{
		SessionAPIKeys: []string{with.keys[fsm.MemberKey]}, SecretKey: with.keys[fsm.MemberSecretKey], BuiltIn: !reported ||
			p.builtIn(),
	})
	fault.At("after", "bind")
	switch {
	case err == nil, errors.Is(err, agent.ErrNotDormant):
		if !p.bound && p.sb.State() == fsm.SandboxStarting {
			p.bound = true
			seconds(s.metrics.start.WithLabelValues("bound", startKind(p.sb)), p.sb.DesiredAt)
		}
		return err == nil, nil
	case errors.Is(err, agent.ErrUnproven) && !reported:
		return false, p.unreported()
	case errors.Is(err, agent.ErrUnauthorized), errors.Is(err, agent.ErrNotOurs), errors.Is(err, agent.ErrUnproven):
		return false, &Failure{
			Reason: fsm.ReasonAgentRejected,
			Detail: "the warm sandbox at " + p.url + " refused its key: " + err.Error(),
		}
	}
	return false, &Failure{
		Reason: fsm.ReasonHealth,
		Detail: "the warm sandbox at " + p.url + " did not take its key: " + err.Error(),
	}
}
