package scheduler

import (
	"context"
	"errors"

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

// bind gives a dormant server the key of the sandbox's owner, and with it the
// secret key that later starts of the sandbox will have: nothing was sealed
// with the one it was started with. Asking twice is harmless; what the proof
// says afterwards decides.
func (p *prober) bind(ctx context.Context, keys map[string]string) *Failure {
	s, ref := p.l.s, p.sb.InitRef
	init, err := s.secrets.Read(ctx, ref.Path, ref.Version)
	if err != nil {
		return &Failure{Reason: fsm.ReasonSecretStore, Detail: "reading what the warm sandbox is initialised with: " + err.Error()}
	}
	fault.At("before", "bind")
	err = s.agents.Init(ctx, p.url, init[sealKeyMember], agent.InitRequest{
		SessionAPIKeys: []string{keys[secretKeyMember]}, SecretKey: keys[sealKeyMember],
	})
	fault.At("after", "bind")
	switch {
	case err == nil, errors.Is(err, agent.ErrNotDormant):
		if !p.bound && p.sb.State() == fsm.SandboxStarting {
			p.bound = true
			seconds(s.metrics.start.WithLabelValues("bound", startKind(p.sb)), p.sb.DesiredAt)
		}
		return nil
	case errors.Is(err, agent.ErrUnauthorized):
		return &Failure{Reason: fsm.ReasonAgentRejected, Detail: "the warm sandbox at " + p.url + " refused its key: " + err.Error()}
	}
	return &Failure{Reason: fsm.ReasonHealth, Detail: "the warm sandbox at " + p.url + " did not take its key: " + err.Error()}
}
