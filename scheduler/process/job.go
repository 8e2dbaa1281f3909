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
	if st.ModifyIndex != job.ModifyIndex {
		return fsm.Errorf(fsm.CodeConflict, "the job of sandbox %s has modify index %d, not %d", job.SandboxID, st.ModifyIndex, job.ModifyIndex)
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
	entry, err := r.cfg.Secrets.Read(ctx, job.KeyRef.Path, job.KeyRef.Version)
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

// begin makes the next version of the job and runs it.
func (r *Runner) begin(b *box, job scheduler.Job, t fsm.Template, l launch) error {
	st := b.snapshot()
	if err := makeWorkspace(l, st.Workspace || job.HasVersion || job.HasWorkspace); err != nil {
		return err
	}
	if st.SandboxID != "" {
		st.Version++
	}
	st.SandboxID, st.ClusterID, st.ModifyIndex = b.id, job.ClusterID, r.nextIndex()
	st.Stopped, st.Workspace = false, true
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
	if st.SandboxID == "" || st.ClusterID != job.ClusterID {
		return nil
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
// deleted when it returns.
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
	if err := r.markStopped(b); err != nil {
		return fsm.Errorf(fsm.CodeScheduler, "%v", err)
	}
	if !b.endRun(ctx) {
		return fsm.Errorf(fsm.CodeScheduler, "the process of sandbox %s has not ended yet", b.id)
	}
	// The name goes first: a program killed here removes the rest next time.
	gone := filepath.Join(r.dir, removedMark+b.id+"-"+randomHex())
	if err := os.Rename(b.dir, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fsm.Errorf(fsm.CodeScheduler, "removing the workspace: %v", err)
	}
	b.mu.Lock()
	b.state, b.run = state{}, nil
	b.mu.Unlock()
	r.changed(b.id, st.ClusterID)
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
