package scheduler

import (
	"context"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// dropDeleted removes the copies of a sandbox that was deleted while one was made: what was written
// after its removal. A workspace that is kept as an orphan keeps its copies.
func (c *carriers) dropDeleted(ctx context.Context, id string) {
	v := c.s.store.View()
	if sb := v.SandboxAny(id); v.Hold() != nil || sb != nil && (sb.Desired != fsm.DesiredDeleted || sb.KeepWorkspace) ||
		sb == nil && v.Orphan(fsm.OrphanWorkspace, id) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.s.cfg.CallTimeout)
	defer cancel()
	if err := c.s.cfg.Copies.Remove(ctx, c.clusterID, id); err != nil {
		c.log.Warn("removing the copy of a deleted workspace failed; the sweep tries again", "sandbox", id, "error", err)
	}
}

// sweep removes copies that no sandbox has, until ctx ends: what a leader left that ended beside a
// deletion.
func (c *carriers) sweep(ctx context.Context) {
	for {
		if err := c.sweepOnce(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("looking for copies without a sandbox failed", "error", err)
		}
		if !sleep(ctx, c.s.cfg.CollectInterval) {
			return
		}
	}
}

// sweepOnce removes the copies of sandboxes that neither the state nor the backend knows, and to which
// nothing was written for the retention of orphans. The removal limit of workspaces counts them.
func (c *carriers) sweepOnce(ctx context.Context) error {
	if !c.maySweep() {
		return nil
	}
	known := func(id string) bool {
		v := c.s.store.View()
		return v.SandboxAny(id) != nil || v.Orphan(fsm.OrphanWorkspace, id) != nil || v.Orphan(fsm.OrphanJob, id) != nil ||
			orphaned(c.l.observedOf(id))
	}
	ids, err := c.s.cfg.Copies.Unused(ctx, c.clusterID, time.Now().Add(-c.s.cfg.OrphanRetention), known)
	if err != nil {
		return err
	}
	for _, id := range ids {
		ok, err := c.s.reserve(ctx, c.log, fsm.RemovalWorkspace, c.l.count(fsm.OrphanWorkspace))
		if err != nil || !ok {
			return err
		}
		// The state that grants the removal may know the sandbox.
		if !c.maySweep() || known(id) {
			continue
		}
		if err := c.s.cfg.Copies.Remove(ctx, c.clusterID, id); err != nil {
			return err
		}
		c.log.Warn("copies of a workspace without a sandbox removed", "sandbox", id)
	}
	return nil
}

// endLeft ends the jobs that a former leader left beside workspaces. A job that fills a new workspace keeps
// the next try of that move from removing the workspace, so the first rounds wait for it. It reports
// whether all have ended.
func (c *carriers) endLeft(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, c.s.cfg.CallTimeout)
	defer cancel()
	if !c.maySweep() || c.s.fence(ctx) != nil || !c.maySweep() {
		return false
	}
	v := c.s.store.View()
	ended, err := c.carrier.EndLeft(ctx, c.clusterID, func(birth string) bool {
		b, ok := fsm.ParseBirth(birth)
		return ok && v.Contains(b)
	})
	if ended > 0 {
		c.log.Warn("jobs that a former leader left beside workspaces are ended", "count", ended)
	}
	if err != nil && ctx.Err() == nil {
		c.log.Warn("ending what a former leader left beside workspaces failed", "error", err)
	}
	return err == nil
}

// pauseAfterLeft is the pause between two calls of endLeft: what is left keeps moves from their next try.
func (c *carriers) pauseAfterLeft(done bool) time.Duration {
	if done {
		return c.s.cfg.CollectInterval
	}
	return min(c.s.cfg.ListInterval, c.s.cfg.CollectInterval)
}

// maySweep reports whether the state is this history's, and nothing holds it.
func (c *carriers) maySweep() bool {
	v := c.s.store.View()
	return v.Active(fsm.VersionClients) && v.Hold() == nil && c.l.backend.mayRemove()
}
