package httpapi

import (
	"context"
	"fmt"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/response"
)

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
