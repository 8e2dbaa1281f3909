package httpapi

import (
	"context"
	"fmt"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// claimPatience is how long the answer to a claim waits for the sandbox to be
// RUNNING: many times what it takes, and too short to be noticed.
const claimPatience = 250 * time.Millisecond

// claimSandbox gives the caller a member of the spec's warm pool, CodePoolEmpty
// when there is none. It is one command: the member has a key already, so that
// nothing is stored, and a repeated Idempotency-Key is answered by the log.
func (c *call) claimSandbox(spec string) (answer, error) {
	v, err := c.viewWith(cluster.Stale)
	switch {
	case err != nil:
		return answer{}, fmt.Errorf("looking for a warm sandbox: %w", err)
	// What does not fit the limits as a claim fits them no better as a cold
	// start, which is refused unless it is a repetition.
	case v.ClaimableMember(spec, c.who.user, nil) == nil, v.Admission(c.who.user, spec, true, c.now) != nil:
		return answer{}, fsm.Errorf(fsm.CodePoolEmpty, "the warm pool has no member to give")
	}
	res, err := c.propose(&fsm.SandboxCreateBody{SpecID: spec, Warm: true})
	if err != nil {
		return answer{}, err
	}
	return c.claimedSandbox(res)
}

// claimedSandbox answers a claim. The leader is about to bind the sandbox, so
// that a moment later the answer has all a client needs; its key is read
// meanwhile.
func (c *call) claimedSandbox(res fsm.Result) (answer, error) {
	if res.Sandbox == nil || !res.Sandbox.Claimed {
		return c.sandboxCreated(res)
	}
	row := res.Sandbox
	ctx, cancel := context.WithTimeout(c.ctx(), claimPatience)
	defer cancel()
	key := make(chan sandboxKeys, 1)
	go func() { key <- c.server.readKeys(ctx, []*fsm.Sandbox{row}) }()
	now := c.awaitRunning(ctx, row)
	keys := <-key
	if now == nil || keys.failed[row.ID] {
		return c.sandboxCreated(res)
	}
	return ok(newSandboxBody(now, keys, c.server.linksFor(c.r)))
}

// awaitRunning waits until the sandbox is RUNNING with the key of row; nil when
// it is not before ctx ends, and not about to be.
func (c *call) awaitRunning(ctx context.Context, row *fsm.Sandbox) *fsm.Sandbox {
	for {
		v, err := c.after()
		if err != nil {
			return nil
		}
		now := v.Sandbox(c.who.user, row.ID)
		switch {
		case now == nil || now.KeyRef != row.KeyRef:
			return nil
		case isServing(now):
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
