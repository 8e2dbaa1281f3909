package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// handleSandboxSearch handles GET /api/v1/sandboxes/search.
func (s *Server) handleSandboxSearch(c *call) (response.Response, error) {
	p := fsm.Page{After: request.PageIDOf(c.Query), Limit: request.LimitOf(c.Query)}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	rows, next := v.Sandboxes(c.Caller.User, p)
	keys := s.sandboxKeys(c.Ctx(), rows)
	items := make([]sandboxBody, len(rows))
	for i, row := range rows {
		items[i] = newSandboxBody(row, keys, s.linksFor(c.Request))
	}
	return response.OK(wire.NewPage(items, next))
}

// handleSandboxGet handles GET /api/v1/sandboxes: the sandboxes with the given ids, in that order,
// null for those that are not the caller's.
func (s *Server) handleSandboxGet(c *call) (response.Response, error) {
	ids := c.Query.Required("id")
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if len(ids) > request.MaxBatch {
		return response.Response{}, request.ErrBatch("sandboxes", len(ids))
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	rows := make([]*fsm.Sandbox, len(ids))
	for i, id := range ids {
		rows[i] = v.Sandbox(c.Caller.User, id)
	}
	keys := s.sandboxKeys(c.Ctx(), rows)
	items := make([]*sandboxBody, len(ids))
	for i, row := range rows {
		if row != nil {
			b := newSandboxBody(row, keys, s.linksFor(c.Request))
			items[i] = &b
		}
	}
	return response.OK(items)
}

// handleSandboxCreate handles POST /api/v1/sandboxes. It ignores a body.
func (s *Server) handleSandboxCreate(c *call) (response.Response, error) {
	spec := c.Query.Text("sandbox_spec_id", fsm.MaxName)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if out, err := c.claimSandbox(decode.OrZero(spec)); fsm.CodeOf(err) != fsm.CodePoolEmpty {
		return out, err
	}
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		return c.newSandbox(decode.OrZero(spec))
	}, c.sandboxCreated)
}

func (c *call) sandboxCreated(res fsm.Result) (response.Response, error) {
	if res.Sandbox == nil {
		return response.Response{}, request.ErrEmptyResult(fsm.SandboxCreate)
	}
	return response.OK(newSandboxBody(res.Sandbox, sandboxKeys{}, c.server.linksFor(c.Request)))
}

// newSandbox builds the command for a new sandbox and its key.
func (c *call) newSandbox(spec string) (fsm.Body, request.SecretWrites, error) {
	v, err := c.checkSpec(spec)
	if err != nil {
		return nil, request.SecretWrites{}, err
	}
	err = c.admitted(v, func(v *fsm.View) *fsm.Error { return v.Admission(c.Caller.User, spec, false, c.Now) })
	if err != nil {
		return nil, request.SecretWrites{}, err
	}
	// The agent server encrypts its data with a key of its own, so that the session key can change
	// without making the data unreadable.
	key, seal := apikey.Random(apikey.SandboxKeyLen), apikey.Random(apikey.SandboxKeyLen)
	body := &fsm.SandboxCreateBody{ID: apikey.Random(apikey.SandboxIDLen), SpecID: spec, KeyHash: apikey.Hash(key)}
	var writes request.SecretWrites
	writes.Add(fsm.SandboxKeyPath(body.ID), fsm.MemberKey, key, &body.KeyRef)
	writes.Alone()
	writes.Also(fsm.MemberSecretKey, seal)
	return body, writes, nil
}

// admitted refuses a start over a limit before any secret is stored. v may be behind, so a
// linearizable view must agree.
func (c *call) admitted(v *fsm.View, admission func(*fsm.View) *fsm.Error) error {
	if admission(v) == nil {
		return nil
	}
	v, err := c.ViewWith(cluster.Linearizable)
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
		v, err := c.ViewWith(consistency)
		switch {
		case err != nil:
			return nil, err
		case spec == "", v.Spec(spec) != nil:
			return v, nil
		}
	}
	return nil, response.Error(http.StatusNotFound, "Sandbox Spec not found")
}

// handleSandboxResume handles POST /api/v1/sandboxes/{sandbox_id}/resume.
func (s *Server) handleSandboxResume(c *call) (response.Response, error) {
	if err := c.meantResume(c.Params.ByName("sandbox_id")); err != nil {
		return response.Response{}, err
	}
	return c.commandSandbox(&fsm.SandboxResumeBody{ID: c.Params.ByName("sandbox_id")})
}

// handleSandboxDelete handles DELETE /api/v1/sandboxes/{sandbox_id}. As upstream, the query's id
// takes precedence over the path's (API.md, "Sandboxes: delete").
func (s *Server) handleSandboxDelete(c *call) (response.Response, error) {
	id := c.Params.ByName("sandbox_id")
	if q, sent := c.Query.Last("sandbox_id"); sent {
		id = q
	}
	return c.commandSandbox(&fsm.SandboxDeleteBody{ID: id})
}

// commandSandbox sends a command about one of the caller's sandboxes. An invalid id is a 404.
func (c *call) commandSandbox(body fsm.Body) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	out, err := c.Once(func() (fsm.Body, request.SecretWrites, error) {
		if fsm.Validate(body) != nil {
			return nil, request.SecretWrites{}, response.NotFound()
		}
		return body, request.SecretWrites{}, nil
	}, func(fsm.Result) (response.Response, error) { return response.OK(wire.Success{Success: true}) })
	return out, response.NotFoundAs(err, "Not Found")
}

// handleSandboxAcceptWorkspace handles POST /api/v1/sandboxes/{sandbox_id}/accept-workspace. The
// owner of a sandbox in ERROR because of its workspace confirms that it is the right one. The next
// resume marks it again.
func (s *Server) handleSandboxAcceptWorkspace(c *call) (response.Response, error) {
	return c.commandSandbox(&fsm.SandboxAcceptWorkspaceBody{ID: c.Params.ByName("sandbox_id")})
}

// handleSandboxOperatorAcceptWorkspace handles POST
// /api/v1/operator/sandboxes/{sandbox_id}/accept-workspace: the same for any user's sandbox, even
// if the workspace has another sandbox's marker.
func (s *Server) handleSandboxOperatorAcceptWorkspace(c *call) (response.Response, error) {
	return c.commandSandbox(&fsm.SandboxAcceptWorkspaceBody{ID: c.Params.ByName("sandbox_id"), Operator: true})
}

// claimPatience is how long the response to a claim waits for the sandbox to be RUNNING. Binding
// takes a small part of it.
const claimPatience = 250 * time.Millisecond

// claimSandbox claims a member of the spec's warm pool for the caller, or returns CodePoolEmpty. It
// is one command and stores nothing, because the member has its key already. The log answers a
// repeated Idempotency-Key.
func (c *call) claimSandbox(spec string) (response.Response, error) {
	v, err := c.ViewWith(cluster.Stale)
	switch {
	case err != nil:
		return response.Response{}, fmt.Errorf("looking for a warm sandbox: %w", err)
	// A claim over a limit falls through to the cold start, which refuses it or finds the result of
	// an earlier request.
	case v.ClaimableMember(spec, c.Caller.User, nil) == nil, v.Admission(c.Caller.User, spec, true, c.Now) != nil:
		return response.Response{}, fsm.Errorf(fsm.CodePoolEmpty, "the warm pool has no member to give")
	}
	res, err := c.Propose(&fsm.SandboxCreateBody{SpecID: spec, Warm: true})
	if err != nil {
		return response.Response{}, err
	}
	return c.claimedSandbox(res)
}

// claimedSandbox answers a claim. It waits for the leader to bind the sandbox, so that the response
// has the key and the URLs, and reads the key meanwhile.
func (c *call) claimedSandbox(res fsm.Result) (response.Response, error) {
	if res.Sandbox == nil || !res.Sandbox.Claimed {
		return c.sandboxCreated(res)
	}
	row := res.Sandbox
	ctx, cancel := context.WithTimeout(c.Ctx(), claimPatience)
	defer cancel()
	key := make(chan sandboxKeys, 1)
	go func() { key <- c.server.readKeys(ctx, []*fsm.Sandbox{row}) }()
	now := c.awaitRunning(ctx, row)
	keys := <-key
	if now == nil || keys.failed[row.ID] {
		return c.sandboxCreated(res)
	}
	return response.OK(newSandboxBody(now, keys, c.server.linksFor(c.Request)))
}

// awaitRunning waits until the sandbox is RUNNING with the key of row. It returns nil when ctx ends
// or the sandbox takes another course.
func (c *call) awaitRunning(ctx context.Context, row *fsm.Sandbox) *fsm.Sandbox {
	for {
		v, err := c.After()
		if err != nil {
			return nil
		}
		now := v.Sandbox(c.Caller.User, row.ID)
		switch {
		case now == nil || now.KeyRef != row.KeyRef:
			return nil
		case proxy.IsServing(now):
			return now
		case now.State() != fsm.SandboxStarting:
			return nil
		}
		select {
		case <-v.Changed():
		case <-ctx.Done():
			return nil
		}
	}
}
