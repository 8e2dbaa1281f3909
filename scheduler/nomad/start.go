package nomad

import (
	"context"
	"errors"
	"strconv"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// Start implements scheduler.Runner. It reverts to the version that ran; where there is none, it
// registers the job. Both fail with CodeConflict when the job has changed since it was observed.
func (r *Runner) Start(ctx context.Context, job scheduler.Job) error {
	if job.New {
		if done, err := r.startNew(ctx, job); done || err != nil {
			return err
		}
	}
	id := jobID(job.SandboxID)
	had, err := r.former(ctx, job)
	if err != nil {
		return err
	}
	cur, index, version := had.job, uint64(0), uint64(0)
	if cur != nil {
		if !ours(cur, job.ClusterID, job.SandboxID) {
			return &scheduler.Failure{
				Reason: fsm.ReasonForeignJob, Detail: "the Nomad job " + id + " belongs to somebody else; it was left alone",
			}
		}
		index, version = *cur.JobModifyIndex, *cur.Version
	}
	if index != job.ModifyIndex {
		return changed(id, index, job.ModifyIndex)
	}
	if cur != nil && !stopped(cur) {
		return r.raise(ctx, job, cur, index)
	}
	ws, err := r.workspace(ctx, job, had)
	if err != nil {
		return err
	}
	if cur != nil && !had.failed && job.HasVersion && version != job.RevertTo && cur.Meta[metaVolume] == ws.ID &&
		r.upToDate(cur, job, ws) {
		done, err := r.revert(ctx, id, job.RevertTo, version)
		if done || err != nil {
			return err
		}
	}
	nonce := ""
	if had.failed {
		nonce = strconv.FormatUint(index, 10)
	}
	return r.registerNew(ctx, job, ws, index, nonce)
}

// upToDate reports whether the stopped job is confined as one made now, and has what the nodes'
// configuration says now. If it is not, the job is registered again, or a sandbox would keep for
// ever what an earlier program or configuration gave it.
func (r *Runner) upToDate(cur *api.Job, job scheduler.Job, ws workspace) bool {
	now, fail := jobSpec(r.cfg, job, ws)
	return fail != nil || sameSetup(cur, now)
}

// raise changes a running job and leaves its task as it is. A job that a user has claimed gets a
// user's priority, and a take-over moves its index.
func (r *Runner) raise(ctx context.Context, job scheduler.Job, cur *api.Job, index uint64) error {
	raised := !job.Deferred && cur.Priority != nil && *cur.Priority < userPriority
	if raised {
		cur.Priority = new(userPriority)
	}
	if job.TakeOver {
		stamp(cur, "taken over")
	}
	if !raised && !job.TakeOver {
		return nil
	}
	// The tag belongs to the version that was to be stopped.
	cur.VersionTag = nil
	_, err := r.register(ctx, "raise job", cur, index)
	if err != nil || !job.TakeOver {
		return err
	}
	return r.undisturbed(ctx, cur)
}

// undisturbed checks that no other registration passed beside the take-over. was is the job
// before it, and each accepted registration is the next version. A stop applied just before ends
// its copy while the take-over makes another. The job is stopped then, and started when nothing
// of it is left.
func (r *Runner) undisturbed(ctx context.Context, was *api.Job) error {
	id := *was.ID
	now, err := r.info(ctx, id)
	switch {
	case err != nil:
		return err
	case now == nil || stopped(now):
	case *now.Version == *was.Version+1:
		return nil
	default:
		if _, err := r.stopAt(ctx, now); err != nil {
			return err
		}
	}
	return fsm.Errorf(fsm.CodeConflict, "the Nomad job %s was stopped at the moment of taking it over", id)
}

// startNew starts a sandbox without an earlier try, with only the calls that the start needs. It
// reports false when there are remains of an earlier try after all. An existing job wins, because
// index 0 means that there is none.
func (r *Runner) startNew(ctx context.Context, job scheduler.Job) (done bool, err error) {
	var known errgroup.Group
	client, err := r.chooseClient(ctx, job, &known)
	var ws workspace
	if err == nil {
		ws, err = r.createVolume(ctx, job, client, false)
	}
	if err == nil && ws.ID != "" {
		if ws, err = r.usable(ctx, job.Template, ws); err == nil {
			err = r.registerNew(ctx, job, ws, 0, "")
		}
		done = true
	}
	_ = known.Wait() // its error does not matter: it only makes the next choice better
	return done, err
}

// registerNew registers the job made from the template, if it still has the modify index. A nonce
// makes its task differ from one that failed.
func (r *Runner) registerNew(ctx context.Context, job scheduler.Job, ws workspace, index uint64, nonce string) error {
	spec, fail := jobSpec(r.cfg, job, ws)
	if fail != nil {
		return fail
	}
	if nonce != "" {
		spec.TaskGroups[0].Tasks[0].Meta = map[string]string{metaStart: nonce}
	}
	_, err := r.register(ctx, "register job", spec, index)
	return err
}

// leftovers is what Nomad has of a sandbox before it is started.
type leftovers struct {
	// job is nil when there is none.
	job *api.Job
	// failed: an allocation failed and was not replaced.
	failed  bool
	volumes []workspace
}

// former reads what there is of the sandbox, in parallel.
func (r *Runner) former(ctx context.Context, job scheduler.Job) (leftovers, error) {
	id := jobID(job.SandboxID)
	var had leftovers
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { had.job, err = r.info(ctx, id); return err })
	g.Go(func() (err error) { had.volumes, err = r.volumes(ctx, job); return err })
	if job.ModifyIndex != 0 {
		g.Go(func() (err error) { had.failed, err = r.failedBefore(ctx, id); return err })
	}
	return had, g.Wait()
}

// failedBefore reports whether an allocation of the job has failed and was not replaced. Nomad
// keeps it in the place of the job's only copy, even under a new version with the same task, and
// places nothing. A task that differs replaces it.
func (r *Runner) failedBefore(ctx context.Context, id string) (bool, error) {
	allocs, err := r.allocations(ctx, id)
	for _, a := range allocs {
		if a.ClientStatus == api.AllocClientStatusFailed && a.DesiredStatus == api.AllocDesiredStatusRun {
			return true, nil
		}
	}
	return false, err
}

// revert reverts to the version if the job is still at prior. It reports false when Nomad no
// longer has the version, or refuses it.
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
