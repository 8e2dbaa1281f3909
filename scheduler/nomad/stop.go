package nomad

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/scheduler"
)

// Stop implements scheduler.Runner. It tags the version to resume from, then stops the job
// without a purge.
//
// Nomad's own deregister call enforces no modify index, so a deposed leader could stop a job that
// its successor has just resumed. Deregister makes a new version of the job with Stop set.
// Registering exactly that with the modify index enforced has the same effect and can fail.
func (r *Runner) Stop(ctx context.Context, job scheduler.Job) error {
	id := jobID(job.SandboxID)
	cur, err := r.info(ctx, id)
	if err != nil || cur == nil || stopped(cur) || !ours(cur, job.ClusterID, job.SandboxID) {
		return err
	}
	if n := *cur.JobModifyIndex; n != job.ModifyIndex {
		return changed(id, n, job.ModifyIndex)
	}
	r.unreserve(id)
	if job.HasVersion {
		if err := r.tag(ctx, id, job.RevertTo); err != nil {
			// Without the tag the version may be gone at the resume; Start then registers the job
			// again.
			r.log.Warn("tagging the job version that ran failed", "job", id, "version", job.RevertTo, "error", err)
		}
	}
	_, err = r.stopAt(ctx, cur)
	return err
}

// stopAt stops the job if it is still as it was read, and returns its new modify index.
func (r *Runner) stopAt(ctx context.Context, cur *api.Job) (uint64, error) {
	id, index := *cur.ID, *cur.JobModifyIndex
	cur.Stop, cur.VersionTag = new(true), nil
	now, err := r.register(ctx, "stop job", cur, index)
	if fail := (*scheduler.Failure)(nil); !errors.As(err, &fail) {
		return now, err
	}
	// A job that Nomad's validation refuses by now can still be stopped, without an enforced
	// index.
	again, err := r.info(ctx, id)
	switch {
	case err != nil || again == nil:
		return 0, err
	case *again.JobModifyIndex != index:
		return 0, changed(id, *again.JobModifyIndex, index)
	}
	if err := r.deregister(ctx, id, false); err != nil {
		return 0, err
	}
	if again, err = r.info(ctx, id); err != nil || again == nil {
		return 0, err
	}
	return *again.JobModifyIndex, nil
}

// tag sets our tag on one version of the job and removes it from any other.
func (r *Runner) tag(ctx context.Context, id string, version uint64) error {
	var tagged *api.Job
	err := r.call(ctx, "read tagged version", func(ctx context.Context) error {
		var err error
		tagged, _, err = r.client.Jobs().VersionByTag(id, tagName, query(ctx))
		if says(err, "not found") {
			tagged, err = nil, nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if tagged != nil {
		if tagged.Version != nil && *tagged.Version == version {
			return nil
		}
		if err := r.call(ctx, "untag version", func(ctx context.Context) error {
			_, err := r.client.Jobs().UntagVersion(id, tagName, write(ctx))
			return err
		}); err != nil {
			return err
		}
	}
	return r.call(ctx, "tag version", func(ctx context.Context) error {
		_, err := r.client.Jobs().TagVersion(id, version, tagName, "ran last; sandboxes resume from it", write(ctx))
		return err
	})
}

func (r *Runner) deregister(ctx context.Context, id string, purge bool) error {
	err := r.call(ctx, "deregister job", func(ctx context.Context) error {
		_, _, err := r.client.Jobs().Deregister(id, purge, write(ctx))
		return err
	})
	if errors.Is(err, errNotFound) {
		return nil
	}
	return err
}
