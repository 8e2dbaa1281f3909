package httpapi

import (
	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/git"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// stageToken adds a git token to the secrets to write, if there is one, and sets the reference.
func stageToken(w *request.SecretWrites, user string, t git.Token, p *fsm.Provider) {
	if t.Value != "" {
		w.Add(fsm.ProviderPath(user, t.Provider), "token", t.Value, &p.Ref)
	}
}

// handleProvidersReplace handles POST /api/add-git-providers.
func (s *Server) handleProvidersReplace(c *call) (response.Response, error) {
	o := c.Object()
	readMCPConfig(o) // validated only
	tokens := git.ReadTokens(o)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		v, err := c.ViewWith(cluster.Linearizable)
		if err != nil {
			return nil, request.SecretWrites{}, err
		}
		if err := s.sharedNow().git.Tokens(c.Ctx(), v.Providers(c.Caller.User), tokens); err != nil {
			return nil, request.SecretWrites{}, err
		}
		var writes request.SecretWrites
		body := &fsm.ProvidersReplaceBody{Providers: make([]fsm.Provider, len(tokens))}
		for i, t := range tokens {
			body.Providers[i] = t.Row(c.Caller.User)
			stageToken(&writes, c.Caller.User, t, &body.Providers[i])
		}
		return body, writes, nil
	}, func(fsm.Result) (response.Response, error) {
		return response.OK(wire.Message{Message: "Git providers stored"})
	})
}
