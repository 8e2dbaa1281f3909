package process

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

func bornJob(id, birth string) scheduler.Job {
	job := testJob(id)
	job.Birth = birth
	return job
}

func TestRunner_LateStopAndRemove_Lose(t *testing.T) {
	r := newRunner(t, t.TempDir(), "serve")
	start(t, r, testJob("s1"))
	late := nowJob(r, "s1")
	if err := r.Stop(ctx, late); err != nil {
		t.Fatal(err)
	}
	await(t, r, "s1", "stopped", func(o scheduler.Observed) bool { return o.Live == 0 })
	o := start(t, r, nowJob(r, "s1"))
	for _, job := range []scheduler.Job{late, testJob("s1")} {
		for name, fn := range map[string]func() error{
			"Stop": func() error { return r.Stop(ctx, job) }, "Remove": func() error { return r.Remove(ctx, job) },
		} {
			if err := fn(); fsm.CodeOf(err) != fsm.CodeConflict {
				t.Errorf("%s with index %d: %v", name, job.ModifyIndex, err)
			}
		}
	}
	if now := r.look("s1", "c1"); now.ModifyIndex != o.ModifyIndex || now.Live != 1 {
		t.Errorf("a late call changed the job: %+v", now)
	}
}

func TestRunner_TakenOver_LateStopLoses(t *testing.T) {
	r := newRunner(t, t.TempDir(), "serve")
	job := testJob("s1")
	job.Deferred = true // it is taken over in either mode
	if err := r.Start(ctx, job); err != nil {
		t.Fatal(err)
	}
	o := await(t, r, "s1", "a task", func(o scheduler.Observed) bool { return o.Placement != nil })
	late := nowJob(r, "s1")
	job = late
	job.TakeOver, job.Deferred = true, false
	if err := r.Start(ctx, job); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(ctx, late); fsm.CodeOf(err) != fsm.CodeConflict {
		t.Errorf("the late stop: %v", err)
	}
	if now := r.look("s1", "c1"); now.ModifyIndex == o.ModifyIndex || now.Live != 1 || !now.Placement.Equal(o.Placement) {
		t.Errorf("before %+v, after %+v", o, now)
	}
}

func TestRunner_KeptWorkspace_IsListedAndRemovedByItsBirth(t *testing.T) {
	dir := t.TempDir()
	r := newRunner(t, dir, "serve")
	o := start(t, r, bornJob("s1", "c1/aa/7"))
	if o.Birth != "c1/aa/7" {
		t.Fatalf("birth %q", o.Birth)
	}
	file := filepath.Join(o.Placement.Workspace, "project", "file")
	if err := os.WriteFile(file, []byte("work"), 0o600); err != nil {
		t.Fatal(err)
	}
	job := nowJob(r, "s1")
	job.Birth, job.KeepWorkspace = "c1/aa/7", true
	if err := r.Remove(ctx, job); err != nil {
		t.Fatal(err)
	}
	// The kept workspace outlives the program.
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = newRunner(t, dir, "serve")
	list, err := r.List(ctx, "c1")
	if err != nil || len(list) != 1 {
		t.Fatalf("List: %v, %v", list, err)
	}
	o = list[0]
	if o.Exists || !o.Workspace || o.Birth != "c1/aa/7" || o.WorkspaceID == "" || o.Live != 0 || o.ModifyIndex != 0 {
		t.Fatalf("a kept workspace is observed as %+v", o)
	}
	// A new sandbox with that id neither uses nor deletes it.
	next := bornJob("s1", "c1/aa/9")
	var f *scheduler.Failure
	if err := r.Start(ctx, next); !errors.As(err, &f) || f.Reason != fsm.ReasonWorkspace {
		t.Errorf("starting a sandbox whose former workspace is kept: %v", err)
	}
	w := scheduler.Workspace{SandboxID: "s1", ClusterID: "c1", Birth: "c1/aa/7", ID: o.WorkspaceID}
	for _, change := range []func(*scheduler.Workspace){
		func(w *scheduler.Workspace) { w.Birth = "c1/aa/9" },
		func(w *scheduler.Workspace) { w.Birth, w.ID = "", "" },
		func(w *scheduler.Workspace) { w.ID = "another" },
		func(w *scheduler.Workspace) { w.ClusterID = "c2" },
	} {
		other := w
		change(&other)
		if err := r.RemoveWorkspace(ctx, other); err != nil {
			t.Errorf("%+v: %v", other, err)
		}
	}
	if err := r.Remove(ctx, next); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(file); string(b) != "work" {
		t.Fatalf("the kept file: %q, %v", b, err)
	}
	// Its own sandbox uses it again.
	job.HasWorkspace, job.ModifyIndex = true, 0
	o = start(t, r, job)
	if b, err := os.ReadFile(file); string(b) != "work" {
		t.Fatalf("the file after a start: %q, %v", b, err)
	}
	if err := r.RemoveWorkspace(ctx, w); fsm.CodeOf(err) != fsm.CodeConflict {
		t.Errorf("removing the workspace of a job that is there: %v", err)
	}
	job.ModifyIndex = o.ModifyIndex
	if err := r.Remove(ctx, job); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.RemoveWorkspace(ctx, w); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the workspace is still there: %v", err)
	}
	start(t, r, next)
}

// A sandbox from before births keeps a workspace without a birth.
func TestRunner_UnstampedWorkspace_IsTheOlderSandboxs(t *testing.T) {
	r := newRunner(t, t.TempDir(), "serve")
	start(t, r, testJob("s1"))
	if err := r.Stop(ctx, nowJob(r, "s1")); err != nil {
		t.Fatal(err)
	}
	await(t, r, "s1", "stopped", func(o scheduler.Observed) bool { return o.Live == 0 })
	job := nowJob(r, "s1")
	job.Birth = "c1/aa/9"
	var f *scheduler.Failure
	if err := r.Start(ctx, job); !errors.As(err, &f) || f.Reason != fsm.ReasonWorkspace {
		t.Fatalf("a sandbox with a birth got a workspace without one: %v", err)
	}
	job.Unstamped = true
	start(t, r, job)
	now := nowJob(r, "s1")
	job.ModifyIndex = now.ModifyIndex
	if err := r.Remove(ctx, job); err != nil {
		t.Fatal(err)
	}
	if left, err := r.List(ctx, "c1"); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
