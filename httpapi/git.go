package httpapi

import (
	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/git"
	"bivouac.dev/bivouac/httpapi/wire"
)

// stageToken adds a git token to the secrets to write, if there is one, and sets the reference.
func stageToken(w *secretWrites, user string, t git.Token, p *fsm.Provider) {
	if t.Value != "" {
		w.add(fsm.ProviderPath(user, t.Provider), "token", t.Value, &p.Ref)
	}
}

// handleProvidersReplace handles POST /api/add-git-providers.
func (s *Server) handleProvidersReplace(c *call) (answer, error) {
	o := c.object()
	readMCPConfig(o) // validated only
	tokens := git.ReadTokens(o)
	if err := c.check(); err != nil {
		return answer{}, err
	}
	return c.once(func() (fsm.Body, secretWrites, error) {
		v, err := c.viewWith(cluster.Linearizable)
		if err != nil {
			return nil, secretWrites{}, err
		}
		if err := s.sharedNow().git.Tokens(c.ctx(), v.Providers(c.who.user), tokens); err != nil {
			return nil, secretWrites{}, err
		}
		var writes secretWrites
		body := &fsm.ProvidersReplaceBody{Providers: make([]fsm.Provider, len(tokens))}
		for i, t := range tokens {
			body.Providers[i] = t.Row(c.who.user)
			stageToken(&writes, c.who.user, t, &body.Providers[i])
		}
		return body, writes, nil
	}, func(fsm.Result) (answer, error) {
		return ok(wire.Message{Message: "Git providers stored"})
	})
}
