package nomad

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// Remove implements scheduler.Runner: it purges the job, then deletes the
// volume as soon as no allocation holds it. A volume that stays held is
// CodeScheduler: the caller tries again. A job that was changed since it was
// observed is left alone, with CodeConflict.
func (r *Runner) Remove(ctx context.Context, job scheduler.Job) error {
	id := jobID(job.SandboxID)
	cur, err := r.info(ctx, id)
	if err != nil {
		return err
	}
	if cur != nil {
		if !ours(cur, job.ClusterID, job.SandboxID) {
			return nil
		}
		if n := *cur.JobModifyIndex; job.ModifyIndex != 0 && n != job.ModifyIndex {
			return fsm.Errorf(fsm.CodeConflict, "the Nomad job %s has modify index %d, not %d", id, n, job.ModifyIndex)
		}
		if err := r.deregister(ctx, id, true); err != nil {
			return err
		}
	}
	r.unbook(id)
	volumes, err := r.volumes(ctx, job.SandboxID, job.ClusterID)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(r.cfg.RemoveWait)
	for _, v := range volumes {
		for {
			err := r.deleteVolume(ctx, v)
			if err == nil {
				break
			}
			if fsm.CodeOf(err) != fsm.CodeScheduler || !says(err, textInUse) || time.Now().After(deadline) {
				return err
			}
			if !pause(ctx, 50*time.Millisecond) {
				return ctx.Err()
			}
		}
	}
	return nil
}

func (r *Runner) deleteVolume(ctx context.Context, v workspace) error {
	force, err := r.clientGone(ctx, v.NodeID)
	if err != nil {
		return err
	}
	if force {
		r.log.Warn("deleting the volume of a client that is gone; its directory stays there",
			"address", v.NodeID, "path", v.HostPath)
	}
	err = r.call(ctx, "delete volume", func(ctx context.Context) error {
		_, _, err := r.client.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: v.ID, Force: force}, write(ctx))
		return err
	})
	if errors.Is(err, errNotFound) {
		return nil
	}
	return err
}

// clientGone reports whether the client can't delete the volume itself any
// more, because Nomad gave it up.
func (r *Runner) clientGone(ctx context.Context, nodeID string) (bool, error) {
	var status string
	err := r.call(ctx, "read client", func(ctx context.Context) error {
		node, _, err := r.client.Nodes().Info(nodeID, query(ctx))
		if err == nil {
			status = node.Status
		}
		return err
	})
	if errors.Is(err, errNotFound) {
		return true, nil
	}
	return status == "down", err
}

// pause waits; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
