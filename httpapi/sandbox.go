package httpapi

import (
	"fmt"
	"net/http"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// handleSandboxSearch handles GET /api/v1/sandboxes/search.
func (s *Server) handleSandboxSearch(c *call) (answer, error) {
	p := fsm.Page{After: c.query.pageID(), Limit: c.query.limit()}
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
	return ok(newPage(items, next))
}

// handleSandboxGet handles GET /api/v1/sandboxes: the sandboxes of the given
// ids, in their order, null for those the caller has not got.
func (s *Server) handleSandboxGet(c *call) (answer, error) {
	ids := c.query.required("id")
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

func errBatch(what string, n int) *refusal {
	return refuse(http.StatusBadRequest, fmt.Sprintf("Cannot request more than %d %s at once, got %d", maxBatch, what, n))
}

// The lengths of what a new sandbox gets: 16 and 32 random bytes in base62.
const (
	sandboxIDLen  = 22
	sandboxKeyLen = 43
)

// handleSandboxCreate handles POST /api/v1/sandboxes. It has no body; one that
// comes is ignored.
func (s *Server) handleSandboxCreate(c *call) (answer, error) {
	spec := c.query.text("sandbox_spec_id", maxNameText)
	if err := c.check(); err != nil {
		return answer{}, err
	}
	if out, err := c.claimSandbox(deref(spec)); fsm.CodeOf(err) != fsm.CodePoolEmpty {
		return out, err
	}
	return c.once(func() (fsm.Body, secretWrites, error) { return c.newSandbox(deref(spec)) }, c.sandboxCreated)
}

func (c *call) sandboxCreated(res fsm.Result) (answer, error) {
	if res.Sandbox == nil {
		return answer{}, errEmptyResult(fsm.SandboxCreate)
	}
	return ok(newSandboxBody(res.Sandbox, sandboxKeys{}, c.server.linksFor(c.r)))
}

// newSandbox makes the command that gives the caller a new sandbox, and its key.
func (c *call) newSandbox(spec string) (fsm.Body, secretWrites, error) {
	v, err := c.checkSpec(spec)
	if err != nil {
		return nil, secretWrites{}, err
	}
	err = c.admitted(v, func(v *fsm.View) *fsm.Error { return v.Admission(c.who.user, spec, false, c.now) })
	if err != nil {
		return nil, secretWrites{}, err
	}
	// The agent server encrypts what it keeps with a key of its own, so that the
	// session key could change without making that unreadable.
	key, seal := randomBase62(sandboxKeyLen), randomBase62(sandboxKeyLen)
	body := &fsm.SandboxCreateBody{ID: randomBase62(sandboxIDLen), SpecID: spec, KeyHash: hashKey(key)}
	var writes secretWrites
	writes.add(sandboxPath(body.ID), "key", key, &body.KeyRef)
	writes.alone()
	writes.also("secret_key", seal)
	return body, writes, nil
}

// admitted refuses a start over a limit before anything is stored for it; v may
// be behind, so that it alone refuses nothing.
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

// checkSpec refuses an unknown spec before a key is stored for nothing; "" is
// the default. The view it gives may be behind.
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
	return nil, refuse(http.StatusNotFound, "Sandbox Spec not found")
}

// errEmptyResult is a command's result without what it promises.
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

// handleSandboxDelete handles DELETE /api/v1/sandboxes/{sandbox_id}. Upstream
// reads the id from the query; where the two differ, so do we (api-contract.md
// B.1).
func (s *Server) handleSandboxDelete(c *call) (answer, error) {
	id := c.params.ByName("sandbox_id")
	if q, sent := c.query.last("sandbox_id"); sent {
		id = q
	}
	return c.commandSandbox(&fsm.SandboxDeleteBody{ID: id})
}

// commandSandbox sends a command that names one sandbox of the caller's. An id
// that can't be one names none.
func (c *call) commandSandbox(body fsm.Body) (answer, error) {
	if err := c.check(); err != nil {
		return answer{}, err
	}
	out, err := c.once(func() (fsm.Body, secretWrites, error) {
		if body.Validate() != nil {
			return nil, secretWrites{}, errNotFound()
		}
		return body, secretWrites{}, nil
	}, func(fsm.Result) (answer, error) { return ok(success{Success: true}) })
	return out, notFoundAs(err, "Not Found")
}
