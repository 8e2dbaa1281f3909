package httpapi

import (
	"fmt"
	"net/http"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// handleSandboxSearch handles GET /api/v1/sandboxes/search.
func (s *Server) handleSandboxSearch(c *call) (answer, error) {
	p := fsm.Page{After: pageIDOf(c.query), Limit: limitOf(c.query)}
	if err := c.check(); err != nil {
		return answer{}, err
	}
	v, err := c.view()
	if err != nil {
		return answer{}, err
	}
	rows, next := v.Sandboxes(c.who.user, p)
	keys := s.sandboxKeys(c.ctx(), rows)
	items := make([]sandboxBody, len(rows))
	for i, row := range rows {
		items[i] = newSandboxBody(row, keys, s.linksFor(c.r))
	}
	return ok(wire.NewPage(items, next))
}

// handleSandboxGet handles GET /api/v1/sandboxes: the sandboxes with the given ids, in that order,
// null for those that are not the caller's.
func (s *Server) handleSandboxGet(c *call) (answer, error) {
	ids := c.query.Required("id")
	if err := c.check(); err != nil {
		return answer{}, err
	}
	if len(ids) > maxBatch {
		return answer{}, errBatch("sandboxes", len(ids))
	}
	v, err := c.view()
	if err != nil {
		return answer{}, err
	}
	rows := make([]*fsm.Sandbox, len(ids))
	for i, id := range ids {
		rows[i] = v.Sandbox(c.who.user, id)
	}
	keys := s.sandboxKeys(c.ctx(), rows)
	items := make([]*sandboxBody, len(ids))
	for i, row := range rows {
		if row != nil {
			b := newSandboxBody(row, keys, s.linksFor(c.r))
			items[i] = &b
		}
	}
	return ok(items)
}

func errBatch(what string, n int) *response.HTTPError {
	return response.Error(http.StatusBadRequest,
		fmt.Sprintf("Cannot request more than %d %s at once, got %d", maxBatch, what, n))
}

// Lengths of a new sandbox's id and key: 16 and 32 random bytes in base62.
const (
	sandboxIDLen  = 22
	sandboxKeyLen = 43
)

// handleSandboxCreate handles POST /api/v1/sandboxes. It ignores a body.
func (s *Server) handleSandboxCreate(c *call) (answer, error) {
	spec := c.query.Text("sandbox_spec_id", fsm.MaxName)
	if err := c.check(); err != nil {
		return answer{}, err
	}
	if out, err := c.claimSandbox(decode.OrZero(spec)); fsm.CodeOf(err) != fsm.CodePoolEmpty {
		return out, err
	}
	return c.once(func() (fsm.Body, secretWrites, error) { return c.newSandbox(decode.OrZero(spec)) }, c.sandboxCreated)
}

func (c *call) sandboxCreated(res fsm.Result) (answer, error) {
	if res.Sandbox == nil {
		return answer{}, errEmptyResult(fsm.SandboxCreate)
	}
	return ok(newSandboxBody(res.Sandbox, sandboxKeys{}, c.server.linksFor(c.r)))
}

// newSandbox builds the command for a new sandbox and its key.
func (c *call) newSandbox(spec string) (fsm.Body, secretWrites, error) {
	v, err := c.checkSpec(spec)
	if err != nil {
		return nil, secretWrites{}, err
	}
	err = c.admitted(v, func(v *fsm.View) *fsm.Error { return v.Admission(c.who.user, spec, false, c.now) })
	if err != nil {
		return nil, secretWrites{}, err
	}
	// The agent server encrypts its data with a key of its own, so that the session key can change
	// without making the data unreadable.
	key, seal := apikey.Random(sandboxKeyLen), apikey.Random(sandboxKeyLen)
	body := &fsm.SandboxCreateBody{ID: apikey.Random(sandboxIDLen), SpecID: spec, KeyHash: apikey.Hash(key)}
	var writes secretWrites
	writes.add(fsm.SandboxKeyPath(body.ID), fsm.MemberKey, key, &body.KeyRef)
	writes.alone()
	writes.also(fsm.MemberSecretKey, seal)
	return body, writes, nil
}

// admitted refuses a start over a limit before any secret is stored. v may be behind, so a
// linearizable view must agree.
func (c *call) admitted(v *fsm.View, admission func(*fsm.View) *fsm.Error) error {
	if admission(v) == nil {
		return nil
	}
	v, err := c.viewWith(cluster.Linearizable)
	if err != nil {
		return err
	}
	if over := admission(v); over != nil {
		return over
	}
	return nil
}

// checkSpec refuses an unknown spec before a key is stored; "" is the default spec. The returned
// view may be behind.
func (c *call) checkSpec(spec string) (*fsm.View, error) {
	for _, consistency := range []cluster.Consistency{cluster.Stale, cluster.Linearizable} {
		v, err := c.viewWith(consistency)
		switch {
		case err != nil:
			return nil, err
		case spec == "", v.Spec(spec) != nil:
			return v, nil
		}
	}
	return nil, response.Error(http.StatusNotFound, "Sandbox Spec not found")
}

// errEmptyResult reports a command result that lacks its object.
func errEmptyResult(t fsm.CommandType) error {
	return fsm.Errorf(fsm.CodeInternal, "%s came back without its object", t)
}

// handleSandboxPause handles POST /api/v1/sandboxes/{sandbox_id}/pause.
func (s *Server) handleSandboxPause(c *call) (answer, error) {
	return c.commandSandbox(&fsm.SandboxPauseBody{ID: c.params.ByName("sandbox_id")})
}

// handleSandboxResume handles POST /api/v1/sandboxes/{sandbox_id}/resume.
func (s *Server) handleSandboxResume(c *call) (answer, error) {
	return c.commandSandbox(&fsm.SandboxResumeBody{ID: c.params.ByName("sandbox_id")})
}

// handleSandboxDelete handles DELETE /api/v1/sandboxes/{sandbox_id}. As upstream, the query's id
// takes precedence over the path's (API.md, "Sandboxes: delete").
func (s *Server) handleSandboxDelete(c *call) (answer, error) {
	id := c.params.ByName("sandbox_id")
	if q, sent := c.query.Last("sandbox_id"); sent {
		id = q
	}
	return c.commandSandbox(&fsm.SandboxDeleteBody{ID: id})
}

// commandSandbox sends a command about one of the caller's sandboxes. An invalid id is a 404.
func (c *call) commandSandbox(body fsm.Body) (answer, error) {
	if err := c.check(); err != nil {
		return answer{}, err
	}
	out, err := c.once(func() (fsm.Body, secretWrites, error) {
		if fsm.Validate(body) != nil {
			return nil, secretWrites{}, response.NotFound()
		}
		return body, secretWrites{}, nil
	}, func(fsm.Result) (answer, error) { return ok(wire.Success{Success: true}) })
	return out, response.NotFoundAs(err, "Not Found")
}
