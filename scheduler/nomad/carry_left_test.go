package nomad_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// TestCarry_WhatADeadLeaderLeft: the next leader ends the job beside a workspace whose stream nobody
// reads any more, and copies the workspace itself. Other jobs stay: its own, those of another cluster,
// and those of another history.
func TestCarry_WhatADeadLeaderLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job := b.born(b.job(fsm.DriverRawExec), 7)
	b.must(b.r.Start(t.Context(), job))
	o := b.look(job, "it runs", func(o scheduler.Observed) bool { return o.Up })
	b.must(os.WriteFile(filepath.Join(o.Placement.Workspace, "kept.txt"), bytes.Repeat([]byte("kept"), 8<<20), 0o600))
	list, err := b.r.ListWorkspaces(t.Context(), job)
	b.must(err)
	stuck, reads := make(chan struct{}), make(chan struct{})
	ctx, die := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- b.r.Export(ctx, job, list[0], strings.NewReader(""), &halting{stuck: stuck, reads: reads})
	}()
	<-reads

	next, err := nomad.New(b.config)
	b.must(err)
	t.Cleanup(next.Close)
	ours := func(birth string) bool { return birth == job.Birth }
	for what, end := range map[string]func() (int, error){
		"its own":           func() (int, error) { return b.r.EndLeft(t.Context(), b.cluster, ours) },
		"another cluster's": func() (int, error) { return next.EndLeft(t.Context(), "another", ours) },
		"of another history's": func() (int, error) {
			return next.EndLeft(t.Context(), b.cluster, func(string) bool { return false })
		},
	} {
		if n, err := end(); n != 0 || err != nil || len(b.carriers(job)) != 1 {
			t.Errorf("%s job was ended: %d, %v", what, n, err)
		}
	}
	if n, err := next.EndLeft(t.Context(), b.cluster, ours); n != 1 || err != nil {
		t.Errorf("the next leader ended %d, want 1: %v", n, err)
	}
	if left := b.carriers(job); len(left) > 0 {
		t.Errorf("jobs beside the workspace are left: %v", left)
	}
	var stream bytes.Buffer
	b.must(next.Export(t.Context(), job, list[0], strings.NewReader(""), &stream))
	if stream.Len() < 1<<20 {
		t.Errorf("the next copy has %d bytes", stream.Len())
	}
	close(stuck)
	die()
	if err := <-ended; err == nil {
		t.Error("the copy of the dead leader says that it is whole")
	}
	if left := b.carriers(job); len(left) > 0 {
		t.Errorf("jobs beside the workspace are left: %v", left)
	}
}

// carriers are the jobs beside the sandbox's workspace that Nomad has.
func (b *bench) carriers(job scheduler.Job) (ids []string) {
	b.Helper()
	jobs, _, err := b.s.client.Jobs().PrefixList("workspace-" + job.SandboxID)
	b.must(err)
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// halting is a reader's end that takes nothing more until it is released, as that of a process which died
// while its connection stands.
type halting struct{ stuck, reads chan struct{} }

func (h *halting) Write(p []byte) (int, error) {
	select {
	case <-h.reads:
	default:
		close(h.reads)
	}
	<-h.stuck
	return len(p), nil
}
