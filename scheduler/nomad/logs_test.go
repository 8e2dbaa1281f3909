package nomad_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// shellJob is a sandbox that runs a script in its workspace.
func (b *bench) shellJob(script string) scheduler.Job {
	job := b.job(fsm.DriverRawExec)
	job.Template.Command, job.Template.Args = "/bin/sh", []string{"-c", script}
	return job
}

// readLog reads the log to its end.
func (b *bench) readLog(job scheduler.Job, stream string, tail int64) (string, error) {
	r, err := b.r.Logs(b.Context(), job, scheduler.LogPart{Stream: stream, Tail: tail})
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(r)
	return string(text), errors.Join(err, r.Close())
}

func (b *bench) wantLog(job scheduler.Job, stream string, tail int64, want string) {
	b.Helper()
	b.until("log "+want, func() error {
		got, err := b.readLog(job, stream, tail)
		if err == nil && got != want {
			return errors.New("read " + got)
		}
		return err
	})
}

func TestLogs_TailOfARunningAndOfAStoppedTask(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job := b.shellJob("echo one; echo two; echo wrong >&2; exec sleep 1000")
	b.must(b.r.Start(t.Context(), job))
	look := func() {
		b.wantLog(job, "stdout", -1, "one\ntwo\n")
		b.wantLog(job, "stdout", 1000, "one\ntwo\n")
		b.wantLog(job, "stdout", 4, "two\n")
		b.wantLog(job, "stdout", 0, "")
		b.wantLog(job, "stderr", -1, "wrong\n")
	}
	look()
	o := b.look(job, "placement", func(o scheduler.Observed) bool { return o.Placement != nil })
	job.ModifyIndex = o.ModifyIndex
	b.paused(job)
	look()
}

// TestLogs_OfThePreviousRun: after a resume the output of the run before can be read.
func TestLogs_OfThePreviousRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job := b.shellJob("echo run; ls | wc -l; touch been; exec sleep 1000")
	previous := func() (string, error) {
		r, err := b.r.Logs(b.Context(), job, scheduler.LogPart{Stream: "stdout", Tail: -1, Previous: true})
		if err != nil {
			return "", err
		}
		text, err := io.ReadAll(r)
		return string(text), errors.Join(err, r.Close())
	}
	b.must(b.r.Start(t.Context(), job))
	b.wantLog(job, "stdout", -1, "run\n0\n")
	if _, err := previous(); fsm.CodeOf(err) != fsm.CodeNotFound {
		t.Errorf("of the first run: %v", err)
	}
	o := b.look(job, "placement", func(o scheduler.Observed) bool { return o.Placement != nil })
	job.ModifyIndex, job.RevertTo, job.HasVersion = o.ModifyIndex, o.Version, true
	b.paused(job)
	o = b.look(job, "stopped", func(o scheduler.Observed) bool { return o.Stopped && o.Live == 0 })
	job.ModifyIndex = o.ModifyIndex
	b.must(b.r.Start(t.Context(), job))
	b.wantLog(job, "stdout", -1, "run\n1\n")
	if got, err := previous(); got != "run\n0\n" || err != nil {
		t.Errorf("of the run before: %q, %v", got, err)
	}
}

func TestLogs_FollowEndsWithTheTask(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job := b.shellJob("echo first; until test -e go; do sleep 0.02; done; echo second; exec sleep 1000")
	b.must(b.r.Start(t.Context(), job))
	b.wantLog(job, "stdout", -1, "first\n")
	o := b.look(job, "placement", func(o scheduler.Observed) bool { return o.Placement != nil })
	whole, err := b.r.Logs(t.Context(), job, scheduler.LogPart{Stream: "stdout", Tail: -1, Follow: true})
	b.must(err)
	fresh, err := b.r.Logs(t.Context(), job, scheduler.LogPart{Stream: "stdout", Follow: true})
	b.must(err)
	b.must(os.WriteFile(filepath.Join(o.Placement.Workspace, "go"), nil, 0o600))
	b.must(expect(whole, "first\nsecond\n"))
	b.must(expect(fresh, "second\n"))
	job.ModifyIndex = o.ModifyIndex
	b.paused(job)
	for _, r := range []io.ReadCloser{whole, fresh} {
		rest, err := io.ReadAll(r)
		if err != nil || len(rest) > 0 {
			t.Errorf("after the end: %q, %v", rest, err)
		}
		b.must(r.Close())
	}
}

// expect reads exactly that.
func expect(r io.Reader, want string) error {
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil {
		return err
	}
	if string(got) != want {
		return errors.New("read " + string(got))
	}
	return nil
}

func TestLogs_FollowerThatWaits_EndsWithItsCallerOrClose(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job := b.shellJob("echo up; exec sleep 1000")
	b.must(b.r.Start(t.Context(), job))
	b.wantLog(job, "stdout", -1, "up\n")
	ctx, cancel := context.WithCancel(t.Context())
	left, err := b.r.Logs(ctx, job, scheduler.LogPart{Stream: "stdout", Tail: -1, Follow: true})
	b.must(err)
	closed, err := b.r.Logs(t.Context(), job, scheduler.LogPart{Stream: "stdout", Tail: -1, Follow: true})
	b.must(err)
	b.must(errors.Join(expect(left, "up\n"), expect(closed, "up\n")))
	got := make(chan error, 2)
	for _, r := range []io.Reader{left, closed} {
		go func() {
			_, err := r.Read(make([]byte, 1))
			got <- err
		}()
	}
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("a follower whose caller left: %v", err)
	}
	b.must(closed.Close())
	if err := <-got; !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a follower that was closed: %v", err)
	}
	b.must(left.Close())
}

func TestLogs_WhatHasNone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	full := b.job(fsm.DriverRawExec)
	full.Template.Memory = 16 << 20
	b.must(b.r.Start(t.Context(), full))
	foreign := b.shellJob("echo secret of another; exec sleep 1000")
	b.must(b.r.Start(t.Context(), foreign))
	b.wantLog(foreign, "stdout", -1, "secret of another\n")
	other := foreign
	other.ClusterID = "another-cluster"
	for what, job := range map[string]scheduler.Job{
		"unknown": {SandboxID: "nobody", ClusterID: b.cluster}, "never placed": full, "another cluster's": other,
	} {
		for _, follow := range []bool{false, true} {
			if _, err := b.r.Logs(t.Context(), job,
				scheduler.LogPart{Stream: "stdout", Tail: 100, Follow: follow}); fsm.CodeOf(err) != fsm.CodeNotFound {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	if _, err := b.r.Logs(t.Context(), foreign,
		scheduler.LogPart{Stream: "stdin", Tail: 100}); fsm.CodeOf(err) != fsm.CodeInvalid {
		t.Errorf("a stream that does not exist: %v", err)
	}
}

func TestLogs_OfACrashedTask(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	job := b.shellJob("echo out of plans; exit 42")
	b.watch()
	b.must(b.r.Start(t.Context(), job))
	o := b.look(job, "crash", func(o scheduler.Observed) bool {
		return o.Failure != nil && (o.Failure.Reason != fsm.ReasonCrashed ||
			strings.Contains(o.Failure.Detail, "it last wrote"))
	})
	if o.Failure.Reason != fsm.ReasonCrashed || !strings.Contains(o.Failure.Detail,
		"Exit Code: 42; it last wrote: out of plans") {
		t.Errorf("failure %+v", o.Failure)
	}
	text, err := b.readLog(job, "stdout", -1)
	if err != nil || !strings.HasPrefix(text, "out of plans\n") {
		t.Errorf("%q, %v", text, err)
	}
}
