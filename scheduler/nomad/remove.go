package nomad

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// Remove implements scheduler.Runner: it purges the job, then deletes the volumes that the
// sandbox had before as soon as no allocation uses them. A volume that stays in use is
// CodeScheduler: the caller retries.
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
		if n := *cur.JobModifyIndex; n != job.ModifyIndex {
			return changed(id, n, job.ModifyIndex)
		}
	}
	var volumes []workspace
	if !job.KeepWorkspace {
		if volumes, err = r.volumes(ctx, job); err != nil {
			return err
		}
		volumes = slices.DeleteFunc(volumes, func(v workspace) bool { return slices.Contains(job.Keep, v.ID) })
	}
	if cur != nil {
		if err := r.purge(ctx, cur); err != nil {
			return err
		}
	}
	r.unreserve(id)
	deadline := time.Now().Add(r.cfg.RemoveWait)
	for _, v := range volumes {
		if err := r.deleteReleased(ctx, v, job.Lost, deadline); err != nil {
			return err
		}
	}
	return nil
}

// purge removes the job if it is still as it was read. Nomad's purge enforces no index. So the
// job is first registered as stopped, which does, and that stopped job is purged. A start in
// between would lose its job but not the workspace. This cluster makes none: the sandbox is to be
// deleted, and no other has its id.
func (r *Runner) purge(ctx context.Context, cur *api.Job) error {
	id := *cur.ID
	if stopped(cur) {
		stamp(cur, "is removed")
	}
	index, err := r.stopAt(ctx, cur)
	if err != nil {
		return err
	}
	now, err := r.info(ctx, id)
	switch {
	case err != nil || now == nil:
		return err
	case *now.JobModifyIndex != index || !stopped(now):
		return changed(id, *now.JobModifyIndex, index)
	}
	return r.deregister(ctx, id, true)
}

// stamp changes the job so that Nomad assigns another modify index and leaves its task as it is:
// the description has no effect. A registration without a change keeps the index.
func stamp(job *api.Job, what string) {
	job.UI = &api.JobUIConfig{
		Description: "Bivouac: " + what + ", at modify index " + strconv.FormatUint(*job.JobModifyIndex, 10),
	}
}

// RemoveWorkspace implements scheduler.Workspaces.
func (r *Runner) RemoveWorkspace(ctx context.Context, w scheduler.Workspace) error {
	named, err := r.named(ctx, w.SandboxID, w.ClusterID)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(r.cfg.RemoveWait)
	for _, v := range named {
		if v.birth != w.Birth || w.ID != "" && v.workspace.ID != w.ID || slices.Contains(w.Keep, v.workspace.ID) {
			continue
		}
		if err := r.unused(ctx, w, v.workspace); err != nil {
			return err
		}
		if err := r.deleteReleased(ctx, v.workspace, w.Lost, deadline); err != nil {
			return err
		}
	}
	return nil
}

// unused checks that no job has the workspace and that nothing runs in it. Nomad itself checks
// only allocations that mount the volume.
func (r *Runner) unused(ctx context.Context, w scheduler.Workspace, v workspace) error {
	id := jobID(w.SandboxID)
	cur, err := r.info(ctx, id)
	if err != nil {
		return err
	}
	if cur != nil && ours(cur, w.ClusterID, w.SandboxID) && cur.Meta[metaVolume] == v.ID {
		return fsm.Errorf(fsm.CodeConflict, "the workspace volume %s is the Nomad job %s's", v.ID, id)
	}
	allocs, err := r.allocations(ctx, id)
	for _, a := range allocs {
		if a.NodeID == v.NodeID && !ended(a.ClientStatus) {
			return fsm.Errorf(fsm.CodeScheduler, "the workspace volume %s is in use by allocation %s", v.ID, a.ID)
		}
	}
	return err
}

// deleteReleased deletes the volume. Until the deadline it waits for the allocations that mount
// it.
func (r *Runner) deleteReleased(ctx context.Context, v workspace, lost []string, deadline time.Time) error {
	for {
		err := r.deleteVolume(ctx, v, slices.Contains(lost, v.NodeID))
		if fsm.CodeOf(err) != fsm.CodeScheduler || !says(err, textInUse) || time.Now().After(deadline) {
			return err
		}
		if !pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// deleteVolume deletes the volume. Only its client can do that, so it does not try while the client
// is away: CodeScheduler, and *scheduler.ClientAway. Deleted by force, the directory is on the disk
// of a client that comes back, and nothing in Nomad names it. With force that is accepted of a
// client that is down.
func (r *Runner) deleteVolume(ctx context.Context, v workspace, force bool) error {
	status, err := r.clientStatus(ctx, v.NodeID)
	switch {
	case err != nil:
		return err
	case status == api.NodeStatusDisconnected, status == api.NodeStatusDown && !force:
		return &scheduler.ClientAway{NodeID: v.NodeID, Detail: "Nomad says that it is " + status}
	}
	// A client that Nomad reports as down or gone can't delete the volume itself any more.
	if force = status == "" || status == api.NodeStatusDown; force {
		r.log.Warn("deleting the volume of a client that is gone; its directory stays there",
			"address", v.NodeID, "path", v.HostPath)
	}
	begin := time.Now()
	err = r.call(ctx, "delete volume", func(ctx context.Context) error {
		_, _, err := r.client.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: v.ID, Force: force}, write(ctx))
		return err
	})
	switch {
	case errors.Is(err, errNotFound):
		return nil
	case says(err, textNoPath), err != nil && time.Since(begin) >= r.cfg.CallTimeout:
		// Nomad's servers have just responded, so the client does not.
		return &scheduler.ClientAway{NodeID: v.NodeID, Detail: err.Error()}
	}
	return err
}

// clientStatus returns Nomad's status of a client, "" for one that it has forgotten.
func (r *Runner) clientStatus(ctx context.Context, nodeID string) (string, error) {
	var status string
	err := r.call(ctx, opReadClient, func(ctx context.Context) error {
		node, _, err := r.client.Nodes().Info(nodeID, query(ctx))
		if err == nil {
			status = node.Status
		}
		return err
	})
	if errors.Is(err, errNotFound) {
		return "", nil
	}
	return status, err
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
