package scheduler

import (
	"context"
	"slices"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// lostPause is the least time between two rounds that end what lost clients have, and lostRetry the
// pause after a failure: a client that is away does not come back within seconds.
const lostPause, lostRetry = time.Second, 5 * time.Minute

// keepsLost reports whether the workspace is on record as what a lost client still has. It may be the
// only holder of what was written after a copy, so no move removes it.
func (c *carriers) keepsLost(sb *fsm.Sandbox, w Workspace) bool {
	return c.s.store.View().Orphan(fsm.OrphanLost, w.ID) != nil || leftByLoss(sb, w)
}

// lostClients returns the clients that operators gave up for good.
func lostClients(v *fsm.View) (ids []string) {
	for _, m := range v.ClientMarks() {
		if m.Mark == fsm.ClientLost {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// withoutLost drops the workspaces that are on record as what lost clients have: they end by that record.
func withoutLost(v *fsm.View, jobs []Observed) []Observed {
	return slices.DeleteFunc(jobs, func(o Observed) bool {
		return o.Workspace && !o.Exists && v.Orphan(fsm.OrphanLost, o.WorkspaceID) != nil
	})
}

// endLost ends what lost clients have, until ctx ends: after its retention, which a purge of its user
// ends, and what an operator deletes.
func (c *carriers) endLost(ctx context.Context) {
	next := map[string]time.Time{}
	for {
		v, now := c.s.store.View(), time.Now()
		wake := now.Add(time.Hour)
		for _, o := range v.Lost() {
			at := o.RetainedUntil(c.s.cfg.LostRetention)
			if again := next[o.Volume]; again.After(at) {
				at = again
			}
			if now.Before(at) {
				wake = earliest(wake, at)
				continue
			}
			if err := c.endLostOne(ctx, o); err != nil {
				if ctx.Err() == nil {
					c.log.Warn("removing what a lost client has of a sandbox failed", "sandbox", o.Sandbox, "address", o.Client,
						"error", err)
				}
				next[o.Volume] = time.Now().Add(lostRetry)
				wake = earliest(wake, next[o.Volume])
			}
		}
		if !sleep(ctx, lostPause) || !awaitChange(ctx, v, wake, nil) {
			return
		}
	}
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// endLostOne removes one workspace that a lost client has, if the committed state allows it now: its
// retention is over and the limit of removals grants it, or an operator deleted it.
func (c *carriers) endLostOne(ctx context.Context, o *fsm.Orphan) error {
	if o.Delete {
		if err := c.s.fence(ctx); err != nil {
			return err
		}
	} else if ok, err := c.s.reserve(ctx, c.log, fsm.RemovalWorkspace, c.l.count(fsm.OrphanWorkspace)); err != nil {
		return err
	} else if !ok {
		return errRemovalLimit
	}
	v := c.s.store.View()
	now := v.Orphan(fsm.OrphanLost, o.Volume)
	if now == nil || !now.Delete && (v.Hold() != nil || !c.l.backend.mayRemove()) {
		return errRemovalLimit
	}
	if v.Restoring(o.Volume) {
		return fsm.Errorf(fsm.CodeConflict, "a sandbox is being restored from it")
	}
	// A restored state may name it as the sandbox's own again.
	if sb := v.SandboxAny(o.Sandbox); sb != nil && (sb.Home == nil || sb.Home.Volume == o.Volume) {
		return fsm.Errorf(fsm.CodeConflict, "the workspace is the sandbox's")
	}
	w := Workspace{
		SandboxID: o.Sandbox, ClusterID: c.clusterID, Birth: o.Birth, ID: o.Volume, NodeID: o.Client, Lost: lostClients(v),
	}
	if err := c.s.runner.RemoveWorkspace(ctx, w); err != nil {
		return err
	}
	c.log.Warn("what a lost client had of a sandbox is removed", "sandbox", o.Sandbox, "address", o.Client)
	_, err := c.s.cluster.Propose(ctx, command(&fsm.OrphanForgetBody{Kind: fsm.OrphanLost, Sandboxes: []string{o.Volume}}))
	return err
}
