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
)

// Start implements scheduler.Runner. A job that runs with the same template,
// deferred or not, already is left alone. A key that can't be read is the secret store's error.
func (r *Runner) Start(ctx context.Context, job scheduler.Job) error {
	b, err := r.acquire(ctx, job.SandboxID)
	if err != nil {
		return err
	}
	defer r.release(b)
	st := b.snapshot()
	if st.SandboxID != "" && st.ClusterID != job.ClusterID {
		return &scheduler.Failure{Reason: fsm.ReasonForeignJob, Detail: "a sandbox of that id belongs to another cluster"}
	}
	if err := meant(st, job); err != nil {
		return err
	}
	if st.SandboxID != "" && !job.Owns(st.Birth) {
		return &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "the workspace " + filepath.Join(b.dir, workspaceDir) +
			" of a former sandbox with this id is still kept; delete that workspace or use another id"}
	}
	t := job.Template
	if job.HasVersion {
		if old, ok := st.template(job.RevertTo); ok {
			t = old
		}
	}
	if b.runs(t, job.Deferred) {
		return nil
	}
	l, err := r.prepare(b.id, b.dir, t)
	if err != nil {
		return err
	}
	if _, err := exec.LookPath(l.command); err != nil {
		return &scheduler.Failure{Reason: fsm.ReasonDriver, Detail: fmt.Sprintf("the program %s can't be run: %v", l.command, err)}
	}
	entry, err := r.cfg.Secrets.Read(ctx, job.KeyRef)
	if err != nil {
		return err
	}
	if err := l.give(entry, job.Deferred); err != nil {
		return err
	}
	if !b.endRun(ctx) {
		return fsm.Errorf(fsm.CodeScheduler, "the former process of sandbox %s has not ended yet", b.id)
	}
	return r.begin(b, job, t, l)
}

// meant makes sure that the job is as the caller last saw it.
func meant(st state, job scheduler.Job) error {
	if st.index() == job.ModifyIndex {
		return nil
	}
	return fsm.Errorf(fsm.CodeConflict, "the job of sandbox %s has modify index %d, not %d", job.SandboxID, st.index(), job.ModifyIndex)
}

// begin makes the next version of the job and runs it.
func (r *Runner) begin(b *box, job scheduler.Job, t fsm.Template, l launch) error {
	st := b.snapshot()
	if err := makeWorkspace(l, st.Workspace || job.HasVersion || job.HasWorkspace); err != nil {
		return err
	}
	if st.SandboxID != "" {
		st.Version++
	} else {
		st.Birth, st.WorkspaceID = job.Birth, randomHex()
	}
	st.SandboxID, st.ClusterID, st.ModifyIndex = b.id, job.ClusterID, r.nextIndex()
	st.Stopped, st.Purged, st.Workspace = false, false, true
	st.remember(version{st.Version, t})
	mark := runMark{Mark: randomHex(), BootID: r.boot}
	st.Run = &mark
	if err := b.out.open(); err != nil {
		return fsm.Errorf(fsm.CodeScheduler, "opening the task's log: %v", err)
	}
	// On disk before the process is there, so that it is always found again.
	if err := writeState(b.dir, st); err != nil {
		b.out.close()
		return fsm.Errorf(fsm.CodeScheduler, "%v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	n := &run{version: st.Version, template: t, deferred: job.Deferred, stop: stop, done: make(chan struct{}), live: true}
	b.mu.Lock()
	b.state, b.run = st, n
	b.mu.Unlock()
	go func() {
		defer close(n.done)
		defer b.out.close()
		r.supervise(ctx, b, n, l, mark)
	}()
	r.changed(b.id, st.ClusterID)
	return nil
}

// makeWorkspace makes the workspace of a new sandbox. One that was there once
// and is not any more is lost, and nothing is put in its place.
func makeWorkspace(l launch, expected bool) error {
	st, err := os.Stat(l.workspace)
	switch {
	case err == nil && !st.IsDir():
		return &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "the workspace " + l.workspace + " is not a directory"}
	case errors.Is(err, fs.ErrNotExist) && expected:
		return &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "the workspace " + l.workspace + " is gone"}
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

// Stop implements scheduler.Runner. It returns when the sandbox was told to
// stop; until it has, Observed.Live says so.
func (r *Runner) Stop(ctx context.Context, job scheduler.Job) error {
	b, err := r.acquire(ctx, job.SandboxID)
	if err != nil {
		return err
	}
	defer r.release(b)
	st := b.snapshot()
	if !st.job() || st.ClusterID != job.ClusterID || st.Stopped {
		return nil
	}
	if err := meant(st, job); err != nil {
		return err
	}
	if err := r.markStopped(b); err != nil {
		return fsm.Errorf(fsm.CodeScheduler, "%v", err)
	}
	if n := b.current(); n != nil {
		n.stop()
	}
	r.changed(b.id, st.ClusterID)
	return nil
}

// Remove implements scheduler.Runner: the process is ended and the workspace
// deleted, or kept, when it returns.
func (r *Runner) Remove(ctx context.Context, job scheduler.Job) error {
	b, err := r.acquire(ctx, job.SandboxID)
	if err != nil {
		return err
	}
	defer r.release(b)
	st := b.snapshot()
	if st.SandboxID == "" || st.ClusterID != job.ClusterID {
		return nil
	}
	keep := job.KeepWorkspace || !job.Owns(st.Birth)
	if st.job() {
		if err := meant(st, job); err != nil {
			return err
		}
		if err := r.markStopped(b); err != nil {
			return fsm.Errorf(fsm.CodeScheduler, "%v", err)
		}
		if !b.endRun(ctx) {
			return fsm.Errorf(fsm.CodeScheduler, "the process of sandbox %s has not ended yet", b.id)
		}
		if keep {
			return r.purge(b)
		}
	}
	if keep {
		return nil
	}
	return r.delete(b)
}

// RemoveWorkspace implements scheduler.Workspaces.
func (r *Runner) RemoveWorkspace(ctx context.Context, w scheduler.Workspace) error {
	b, err := r.acquire(ctx, w.SandboxID)
	if err != nil {
		return err
	}
	defer r.release(b)
	st := b.snapshot()
	switch {
	case st.SandboxID == "" || st.ClusterID != w.ClusterID || st.Birth != w.Birth || w.ID != "" && w.ID != st.WorkspaceID:
		return nil
	case st.job():
		return fsm.Errorf(fsm.CodeConflict, "the workspace is that of the job of sandbox %s", w.SandboxID)
	}
	return r.delete(b)
}

// purge forgets the job and keeps the workspace. The caller holds the box's op,
// and nothing of it runs.
func (r *Runner) purge(b *box) error {
	st := b.snapshot()
	st.Purged, st.Versions = true, nil
	if err := writeState(b.dir, st); err != nil {
		return fsm.Errorf(fsm.CodeScheduler, "%v", err)
	}
	b.mu.Lock()
	b.state, b.run = st, nil
	b.mu.Unlock()
	r.changed(b.id, st.ClusterID)
	return nil
}

// delete deletes all there is of the sandbox. The caller holds the box's op, and
// nothing of it runs.
func (r *Runner) delete(b *box) error {
	// The name goes first: a program killed here removes the rest next time.
	gone := filepath.Join(r.dir, removedMark+b.id+"-"+randomHex())
	if err := os.Rename(b.dir, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fsm.Errorf(fsm.CodeScheduler, "removing the workspace: %v", err)
	}
	b.mu.Lock()
	cluster := b.state.ClusterID
	b.state, b.run = state{}, nil
	b.mu.Unlock()
	r.changed(b.id, cluster)
	if err := errors.Join(syncDir(r.dir), removeAll(gone)); err != nil {
		return fsm.Errorf(fsm.CodeScheduler, "removing the workspace: %v", err)
	}
	return nil
}

// runs reports whether a live run has this template and is deferred or not.
func (b *box) runs(t fsm.Template, deferred bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.state.Stopped && b.run != nil && b.run.live && b.run.deferred == deferred && reflect.DeepEqual(b.run.template, t)
}

func randomHex() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}
