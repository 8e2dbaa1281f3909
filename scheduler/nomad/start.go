package nomad

import (
	"context"
	"errors"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// Start implements scheduler.Runner: the version that ran is brought back by a
// revert; where there is none any more, or never was, the job is registered.
// Both lose against whoever changed the job since it was observed.
func (r *Runner) Start(ctx context.Context, job scheduler.Job) error {
	id := jobID(job.SandboxID)
	cur, err := r.info(ctx, id)
	if err != nil {
		return err
	}
	var index uint64
	if cur != nil {
		if !ours(cur, job.ClusterID, job.SandboxID) {
			return &scheduler.Failure{
				Reason: fsm.ReasonForeignJob, Detail: "the Nomad job " + id + " belongs to somebody else; it was left alone",
			}
		}
		index = *cur.JobModifyIndex
	}
	if index != job.ModifyIndex {
		return fsm.Errorf(fsm.CodeConflict, "the Nomad job %s has modify index %d, not %d", id, index, job.ModifyIndex)
	}
	if cur != nil && !stopped(cur) {
		return nil
	}
	ws, err := r.workspace(ctx, job, cur)
	if err != nil {
		return err
	}
	failed := false
	if cur != nil {
		if failed, err = r.failedBefore(ctx, id); err != nil {
			return err
		}
	}
	if cur != nil && !failed && job.HasVersion && *cur.Version != job.RevertTo {
		done, err := r.revert(ctx, id, job.RevertTo, *cur.Version)
		if done || err != nil {
			return err
		}
	}
	spec, fail := jobSpec(r.cfg, job, ws)
	if fail != nil {
		return fail
	}
	if failed {
		spec.TaskGroups[0].Tasks[0].Meta = map[string]string{metaStart: strconv.FormatUint(index, 10)}
	}
	return r.register(ctx, "register job", spec, index)
}

// failedBefore reports whether an allocation of the job has failed and was not
// replaced. Nomad keeps such a one in the place of the job's only copy, also
// under a new version whose task is the same, and places nothing. A task that
// differs replaces it.
func (r *Runner) failedBefore(ctx context.Context, id string) (bool, error) {
	allocs, err := r.allocations(ctx, id)
	for _, a := range allocs {
		if a.ClientStatus == api.AllocClientStatusFailed && a.DesiredStatus == api.AllocDesiredStatusRun {
			return true, nil
		}
	}
	return false, err
}

// revert brings the version back if the job is still at prior. It reports
// false when Nomad does not have the version any more, or refuses it.
func (r *Runner) revert(ctx context.Context, id string, version, prior uint64) (bool, error) {
	err := r.call(ctx, "revert job", func(ctx context.Context) error {
		_, _, err := r.client.Jobs().Revert(id, version, &prior, write(ctx), "", "")
		return err
	})
	var fail *scheduler.Failure
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, errNotFound), says(err, textRevertCurrent), says(err, "not found"), errors.As(err, &fail):
		r.log.Info("revert refused; registering from the store", "job", id, "version", version, "error", err)
		return false, nil
	}
	return false, err
}
