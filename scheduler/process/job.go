package process

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/durable"
)

// Start implements scheduler.Runner. It leaves a job alone that already runs with the same
// template and the same deferred flag. If the key can't be read it returns the secret store's
// error.
func (r *Runner) Start(ctx context.Context, job scheduler.Job) error {
	sb, err := r.acquire(ctx, job.SandboxID)
	if err != nil {
		return err
	}
	defer r.release(sb)
	st := sb.snapshot()
	if st.SandboxID != "" && st.ClusterID != job.ClusterID {
		return &scheduler.Failure{Reason: fsm.ReasonForeignJob, Detail: "a sandbox of that id belongs to another cluster"}
	}
	if err := meant(st, job); err != nil {
		return err
	}
	if st.SandboxID != "" && !job.Owns(st.Birth) {
		return &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "the workspace " + filepath.Join(sb.dir,
			workspaceDir) +
			" of a former sandbox with this id is still kept; delete that workspace or use another id"}
	}
	if job.TakeOver && st.job() && !st.Stopped {
		return r.takeOver(sb, st)
	}
	t := job.Template
	if job.HasVersion {
		if old, ok := st.template(job.RevertTo); ok {
			t = old
		}
	}
	if sb.runs(t, job.Deferred) {
		return nil
	}
	l, err := r.prepare(sb.id, sb.dir, t)
	if err != nil {
		return err
	}
	if _, err := exec.LookPath(l.command); err != nil {
		return &scheduler.Failure{
			Reason: fsm.ReasonDriver,
			Detail: fmt.Sprintf("the program %s can't be run: %v", l.command, err),
		}
	}
	entry, err := r.cfg.Secrets.Read(ctx, job.KeyRef)
	if err != nil {
		return err
	}
	if err := l.give(entry, job.Deferred); err != nil {
		return err
	}
	if !sb.endRun(ctx) {
		return fsm.Errorf(fsm.CodeScheduler, "the former process of sandbox %s has not ended yet", sb.id)
	}
	return r.begin(sb, job, t, l)
}

// takeOver raises the index of a running job.
func (r *Runner) takeOver(sb *sandbox, st state) error {
	st.ModifyIndex = r.nextIndex()
	if err := writeState(sb.dir, st); err != nil {
		return fsm.Errorf(fsm.CodeScheduler, "%v", err)
	}
	sb.mu.Lock()
	sb.state = st
	sb.mu.Unlock()
	r.changed(sb.id, st.ClusterID)
	return nil
}

// meant checks that the job is as the caller last saw it.
func meant(st state, job scheduler.Job) error {
	if st.index() == job.ModifyIndex {
		return nil
	}
	return fsm.Errorf(fsm.CodeConflict, "the job of sandbox %s has modify index %d, not %d", job.SandboxID, st.index(),
		job.ModifyIndex)
}

// begin stores the next version of the job and runs it.
func (r *Runner) begin(sb *sandbox, job scheduler.Job, t fsm.Template, l launch) error {
	st := sb.snapshot()
	if err := makeWorkspace(l, st.Workspace || job.HasVersion || job.HasWorkspace); err != nil {
		return err
	}
	if st.SandboxID != "" {
		st.Version++
	} else {
		st.Birth, st.WorkspaceID = job.Birth, randomHex()
	}
	st.SandboxID, st.ClusterID, st.ModifyIndex = sb.id, job.ClusterID, r.nextIndex()
	st.Stopped, st.Purged, st.Workspace, st.Rotations = false, false, true, job.Rotations
	st.remember(version{st.Version, t})
	mark := runMark{Mark: randomHex(), BootID: r.boot}
	st.Run = &mark
	if err := sb.out.open(); err != nil {
		return fsm.Errorf(fsm.CodeScheduler, "opening the task's log: %v", err)
	}
	// The state is on disk before the process exists, so the next New always finds the process.
	if err := writeState(sb.dir, st); err != nil {
		sb.out.close()
		return fsm.Errorf(fsm.CodeScheduler, "%v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	n := &run{version: st.Version, template: t, deferred: job.Deferred, stop: stop, done: make(chan struct{}), live: true}
	sb.mu.Lock()
	sb.state, sb.run = st, n
	sb.mu.Unlock()
	go func() {
		defer close(n.done)
		defer sb.out.close()
		r.supervise(ctx, sb, n, l, mark)
	}()
	r.changed(sb.id, st.ClusterID)
	return nil
}

// makeWorkspace makes the workspace of a new sandbox. A workspace that is expected and missing
// is lost; it is not replaced with an empty one.
func makeWorkspace(l launch, expected bool) error {
	st, err := os.Stat(l.workspace)
	switch {
	case err == nil && !st.IsDir():
		return &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "the workspace " + l.workspace + " is not a directory"}
	case errors.Is(err, fs.ErrNotExist) && expected:
		return &scheduler.Failure{
			Reason: fsm.ReasonWorkspace,
			Detail: "the workspace directory " + l.workspace + " is gone: put it back and resume, or delete the sandbox",
		}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fsm.Errorf(fsm.CodeScheduler, "looking for the workspace: %v", err)
	}
	if err := os.MkdirAll(l.workspace, 0o700); err != nil {
		return fsm.Errorf(fsm.CodeScheduler, "making the workspace: %v", err)
	}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "the working directory can't be made: " + err.Error()}
	}
	return nil
}

// Stop implements scheduler.Runner. It returns when the task has been signalled. Observed.Live
// stays true until the task has ended.
func (r *Runner) Stop(ctx context.Context, job scheduler.Job) error {
	sb, err := r.acquire(ctx, job.SandboxID)
	if err != nil {
		return err
	}
	defer r.release(sb)
	st := sb.snapshot()
	if !st.job() || st.ClusterID != job.ClusterID || st.Stopped {
		return nil
	}
	if err := meant(st, job); err != nil {
		return err
	}
	if err := r.markStopped(sb); err != nil {
		return fsm.Errorf(fsm.CodeScheduler, "%v", err)
	}
	if n := sb.current(); n != nil {
		n.stop()
	}
	r.changed(sb.id, st.ClusterID)
	return nil
}

// Remove implements scheduler.Runner. When it returns, the process has ended and the workspace
// is deleted, or kept if the job says so.
func (r *Runner) Remove(ctx context.Context, job scheduler.Job) error {
	sb, err := r.acquire(ctx, job.SandboxID)
	if err != nil {
		return err
	}
	defer r.release(sb)
	st := sb.snapshot()
	if st.SandboxID == "" || st.ClusterID != job.ClusterID {
		return nil
	}
	keep := job.KeepWorkspace || !job.Owns(st.Birth)
	if st.job() {
		if err := meant(st, job); err != nil {
			return err
		}
		if err := r.markStopped(sb); err != nil {
			return fsm.Errorf(fsm.CodeScheduler, "%v", err)
		}
		if !sb.endRun(ctx) {
			return fsm.Errorf(fsm.CodeScheduler, "the process of sandbox %s has not ended yet", sb.id)
		}
		if keep {
			return r.purge(sb)
		}
	}
	if keep {
		return nil
	}
	return r.delete(sb)
}

// RemoveWorkspace implements scheduler.Workspaces.
func (r *Runner) RemoveWorkspace(ctx context.Context, w scheduler.Workspace) error {
	sb, err := r.acquire(ctx, w.SandboxID)
	if err != nil {
		return err
	}
	defer r.release(sb)
	st := sb.snapshot()
	switch {
	case st.SandboxID == "" || st.ClusterID != w.ClusterID || st.Birth != w.Birth || w.ID != "" && w.ID != st.WorkspaceID:
		return nil
	case st.job():
		return fsm.Errorf(fsm.CodeConflict, "the workspace is that of the job of sandbox %s", w.SandboxID)
	}
	return r.delete(sb)
}

// purge deletes the job and keeps the workspace. The caller holds the sandbox's op, and no process
// of it runs.
func (r *Runner) purge(sb *sandbox) error {
	st := sb.snapshot()
	st.Purged, st.Versions = true, nil
	if err := writeState(sb.dir, st); err != nil {
		return fsm.Errorf(fsm.CodeScheduler, "%v", err)
	}
	sb.mu.Lock()
	sb.state, sb.run = st, nil
	sb.mu.Unlock()
	r.changed(sb.id, st.ClusterID)
	return nil
}

// delete deletes the job and the workspace. The caller holds the sandbox's op, and no process of it
// runs.
func (r *Runner) delete(sb *sandbox) error {
	// The rename comes first: if the program is killed here, the next New removes the rest.
	gone := filepath.Join(r.dir, removedMark+sb.id+"-"+randomHex())
	if err := os.Rename(sb.dir, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fsm.Errorf(fsm.CodeScheduler, "removing the workspace: %v", err)
	}
	sb.mu.Lock()
	cluster := sb.state.ClusterID
	sb.state, sb.run = state{}, nil
	sb.mu.Unlock()
	r.changed(sb.id, cluster)
	if err := errors.Join(durable.SyncDir(r.dir), removeAll(gone)); err != nil {
		return fsm.Errorf(fsm.CodeScheduler, "removing the workspace: %v", err)
	}
	return nil
}

// runs reports whether a live run has this template and this deferred flag.
func (sb *sandbox) runs(t fsm.Template, deferred bool) bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return !sb.state.Stopped && sb.run != nil && sb.run.live && sb.run.deferred == deferred &&
		reflect.DeepEqual(sb.run.template, t)
}

func randomHex() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}
