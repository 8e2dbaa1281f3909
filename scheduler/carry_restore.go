package scheduler

import (
	"context"
	"io"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/fault"
)

// restores reports whether the sandbox's workspace is to be restored now from what a lost client has.
func restores(v *fsm.View, sb *fsm.Sandbox, o Observed) bool {
	return !o.Foreign && (!o.Exists || o.Stopped) && o.Live == 0 && !v.Held(sb)
}

// restore gives a new sandbox a workspace with the content of an orphan, which stays as it is. As in a
// move, the state says at the end which volume counts, and what an earlier try made goes.
func (c *carriers) restore(ctx context.Context, sb *fsm.Sandbox) (err error) {
	begin := time.Now()
	log := c.log.With("sandbox", sb.ID, "address", sb.Move.From)
	defer func() {
		if err != nil && ctx.Err() == nil && !c.gone(sb.ID, err) {
			log.Warn("restoring what a lost client has failed", "error", err)
			c.l.moveFailed(sb.ID, err)
		}
	}()
	v := c.s.store.View()
	job := jobOf(c.clusterID, sb.ID, sb, c.l.observedOf(sb.ID), false, v)
	earlier, err := c.carrier.ListWorkspaces(ctx, job)
	if err != nil {
		return err
	}
	if _, err := c.s.cluster.Propose(ctx,
		command(&fsm.SandboxMoveBody{ID: sb.ID, Attempt: sb.Moves, From: sb.Move.From})); err != nil {
		return err
	}
	avoid := job.Avoid
	for _, w := range earlier {
		if err := c.s.runner.RemoveWorkspace(ctx, w); err != nil {
			log.Debug("removing a workspace of an earlier try failed", "peer", w.NodeID, "error", err)
			avoid = append(avoid, w.NodeID)
		}
	}
	o := v.Orphan(fsm.OrphanLost, sb.Move.Orphan)
	if o == nil {
		return fsm.Errorf(fsm.CodeConflict, "the volume %s is no longer on record: delete the sandbox", sb.Move.Orphan)
	}
	next, err := c.carrier.NewWorkspace(ctx, job, avoid)
	if err != nil {
		return err
	}
	fault.At("before", "fill workspace")
	former := Job{SandboxID: o.Sandbox, ClusterID: c.clusterID, Birth: o.Birth, Template: sb.Template}
	w := Workspace{SandboxID: o.Sandbox, ClusterID: c.clusterID, Birth: o.Birth, ID: o.Volume, NodeID: o.Client}
	err = c.pour(ctx, job, next, func(ctx context.Context, out io.Writer) error {
		return c.carrier.Export(ctx, former, w, strings.NewReader(""), out)
	})
	if err != nil {
		return err
	}
	fault.At("before", "end move")
	body := &fsm.SandboxMovedBody{ID: sb.ID, Attempt: sb.Moves + 1, Home: fsm.Home{Volume: next.ID, Client: next.NodeID}}
	if _, err := c.s.cluster.Propose(ctx, command(body)); err != nil {
		return err
	}
	c.l.moveFailed(sb.ID, nil)
	log.Warn("sandbox restored from what a lost client has", "object", o.Volume, "duration", time.Since(begin))
	return nil
}
