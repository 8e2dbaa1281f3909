package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

var ctx = context.Background()

func start(t *testing.T, r *Runner, job scheduler.Job) scheduler.Observed {
	t.Helper()
	if err := r.Start(ctx, job); err != nil {
		t.Fatalf("Start: %v", err)
	}
	return await(t, r, job.SandboxID, "the task answers", answers)
}

func TestRunner_PauseResumeKeepsFilesTwentyTimes(t *testing.T) {
	r := newRunner(t, t.TempDir(), "serve")
	job := testJob("s1")
	o := start(t, r, job)
	file := filepath.Join(o.Placement.Workspace, "project", "file")
	for i := range 20 {
		if err := os.WriteFile(file, []byte(strconv.Itoa(i)), 0o600); err != nil {
			t.Fatal(err)
		}
		job.ModifyIndex, job.RevertTo, job.HasVersion = o.ModifyIndex, o.Version, true
		if err := r.Stop(ctx, job); err != nil {
			t.Fatal(err)
		}
		o = await(t, r, "s1", "stopped", func(o scheduler.Observed) bool { return o.Stopped && o.Live == 0 })
		if o.Placement != nil || o.Failure != nil {
			t.Fatalf("stopped: %+v", o)
		}
		if err := r.Start(ctx, job); fsm.CodeOf(err) != fsm.CodeConflict {
			t.Fatalf("Start with the index before the stop: %v, want a conflict", err)
		}
		job.ModifyIndex = o.ModifyIndex
		o = start(t, r, job)
		if b, err := os.ReadFile(file); err != nil || string(b) != strconv.Itoa(i) {
			t.Fatalf("round %d: file is %q, %v", i, b, err)
		}
	}
}

func TestRunner_TaskGetsWhatItMust(t *testing.T) {
	r := newRunner(t, t.TempDir(), "serve")
	r.cfg.Environ = append(os.Environ(), "BIVOUAC_API_KEY=ours", "TZ=Europe/Berlin")
	r.cfg.Env = map[string]string{"BIVOUAC_API_URLS": `["http://127.0.0.1:8440"]`, "OH_SECRET_KEY": "no"}
	o := start(t, r, testJob("s1"))
	ws := o.Placement.Workspace
	for name, want := range map[string]string{
		"OH_SESSION_API_KEYS_0": testKey, "OH_SECRET_KEY": "SEALCANARY", "W": ws,
		"BIVOUAC_API_URLS": `["http://127.0.0.1:8440"]`,
		"P":                strconv.Itoa(o.Placement.Ports[fsm.PortAgentServer]),
		"AGENT_SERVER":     strconv.Itoa(o.Placement.Ports[fsm.PortAgentServer]),
		"WORKER_1":         strconv.Itoa(o.Placement.Ports["WORKER_1"]), "OH_CONVERSATIONS_PATH": ws + "/conversations",
		"OH_BASH_EVENTS_DIR": ws + "/bash_events", "BIVOUAC_API_KEY": "", "TZ": "Europe/Berlin", "HOME": ws,
	} {
		if got := ask(o, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	// No secret is on disk.
	err := filepath.WalkDir(r.dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		if strings.Contains(string(b), "CANARY") {
			t.Errorf("%s holds a secret", p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRunner_KilledTaskIsStartedAgain(t *testing.T) {
	r := newRunner(t, t.TempDir(), "serve")
	start(t, r, testJob("s1"))
	before := pidOf(t, r, "s1")
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	o := await(t, r, "s1", "it answers again", func(o scheduler.Observed) bool {
		return answers(o) && r.sandboxes["s1"].snapshot().Run.PID != before
	})
	if o.Live != 1 || o.Failure != nil || o.Waiting != nil {
		t.Errorf("after the restart: %+v", o)
	}
}

func TestRunner_CrashLoopIsAFailureWithItsLastWords(t *testing.T) {
	r := newRunner(t, t.TempDir(), "crash")
	job := testJob("s1")
	if err := r.Start(ctx, job); err != nil {
		t.Fatal(err)
	}
	o := await(t, r, "s1", "a failure", func(o scheduler.Observed) bool { return o.Failure != nil })
	if o.Live != 0 || o.Stopped || o.Failure.Reason != fsm.ReasonCrashed {
		t.Errorf("observed %+v", o)
	}
	for _, want := range []string{"exit status 3", "the last words", "started 4 times"} {
		if !strings.Contains(o.Failure.Detail, want) {
			t.Errorf("detail %q lacks %q", o.Failure.Detail, want)
		}
	}
	if strings.Contains(o.Failure.Detail, testKey) {
		t.Errorf("detail %q holds the key", o.Failure.Detail)
	}
	// A new start tries again.
	job.ModifyIndex = o.ModifyIndex
	if err := r.Start(ctx, job); err != nil {
		t.Fatal(err)
	}
	await(t, r, "s1", "a new failure", func(n scheduler.Observed) bool {
		return n.Failure != nil &&
			n.ModifyIndex > o.ModifyIndex
	})
}

func TestRunner_CrashOnceRecovers(t *testing.T) {
	r := newRunner(t, t.TempDir(), "crash-once")
	start(t, r, testJob("s1"))
}

func TestRunner_StubbornTaskIsKilled(t *testing.T) {
	r := newRunner(t, t.TempDir(), "stubborn")
	r.cfg.StopGrace = 1
	start(t, r, testJob("s1"))
	pid := pidOf(t, r, "s1")
	if err := r.Stop(ctx, nowJob(r, "s1")); err != nil {
		t.Fatal(err)
	}
	await(t, r, "s1", "stopped", func(o scheduler.Observed) bool { return o.Live == 0 })
	waitFor(t, "the process is gone", func() bool { return !alive(pid) })
}

func TestRunner_RemoveLeavesNothing(t *testing.T) {
	r := newRunner(t, t.TempDir(), "orphan")
	o := start(t, r, testJob("s1"))
	orphan := readPID(t, filepath.Join(o.Placement.Workspace, "orphan"))
	locked := filepath.Join(o.Placement.Workspace, "locked", "inside")
	if err := os.MkdirAll(locked, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(locked), 0); err != nil {
		t.Fatal(err)
	}
	foreign := testJob("s1")
	foreign.ClusterID = "other"
	for name, fn := range map[string]func(context.Context, scheduler.Job) error{"Stop": r.Stop, "Remove": r.Remove} {
		if err := fn(ctx, foreign); err != nil {
			t.Errorf("%s of another cluster's: %v", name, err)
		}
	}
	if o := r.look("s1", "c1"); o.Live != 1 {
		t.Fatalf("another cluster's call stopped it: %+v", o)
	}
	var f *scheduler.Failure
	if err := r.Start(ctx, foreign); !errors.As(err, &f) || f.Reason != fsm.ReasonForeignJob {
		t.Errorf("Start of another cluster's: %v", err)
	}
	for range 2 {
		if err := r.Remove(ctx, nowJob(r, "s1")); err != nil {
			t.Fatal(err)
		}
	}
	if alive(orphan) {
		t.Error("a process that left the group lives on")
	}
	left, err := os.ReadDir(r.dir)
	if err != nil || len(left) != 1 || left[0].Name() != lockName {
		t.Errorf("left: %v, %v", left, err)
	}
	if l, err := r.List(ctx, "c1"); err != nil || len(l) != 0 {
		t.Errorf("List: %v, %v", l, err)
	}
	// The id can be used again; the old index is invalid.
	again := testJob("s1")
	again.ModifyIndex = o.ModifyIndex
	if err := r.Start(ctx, again); fsm.CodeOf(err) != fsm.CodeConflict {
		t.Errorf("Start with the removed job's index: %v", err)
	}
	start(t, r, testJob("s1"))
}

func readPID(t *testing.T, path string) int {
	t.Helper()
	pid := 0
	waitFor(t, "a process number", func() bool {
		b, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(string(b))
		return err == nil
	})
	return pid
}

func TestRunner_LostWorkspaceFailsLoudly(t *testing.T) {
	r := newRunner(t, t.TempDir(), "serve")
	o := start(t, r, testJob("s1"))
	if err := r.Stop(ctx, nowJob(r, "s1")); err != nil {
		t.Fatal(err)
	}
	stopped := await(t, r, "s1", "stopped", func(o scheduler.Observed) bool { return o.Live == 0 })
	if err := os.RemoveAll(o.Placement.Workspace); err != nil {
		t.Fatal(err)
	}
	job := testJob("s1")
	job.ModifyIndex = stopped.ModifyIndex
	var f *scheduler.Failure
	if err := r.Start(ctx, job); !errors.As(err, &f) || f.Reason != fsm.ReasonWorkspace {
		t.Errorf("Start without the workspace: %v", err)
	}
	// The same with a job that the store has and the directory lacks.
	job = testJob("s2")
	job.HasVersion = true
	if err := r.Start(ctx, job); !errors.As(err, &f) || f.Reason != fsm.ReasonWorkspace {
		t.Errorf("Start of a job with a version and no workspace: %v", err)
	}
}

func TestRunner_StartRefusals(t *testing.T) {
	r := newRunner(t, t.TempDir(), "serve")
	edit := func(fn func(*scheduler.Job)) scheduler.Job {
		j := testJob("s1")
		fn(&j)
		return j
	}
	for name, c := range map[string]struct {
		job    scheduler.Job
		reason string
		code   fsm.Code
	}{
		"driver":   {job: edit(func(j *scheduler.Job) { j.Template.Driver = fsm.DriverDocker }), reason: fsm.ReasonSpec},
		"no port":  {job: edit(func(j *scheduler.Job) { j.Template.Ports = nil }), reason: fsm.ReasonSpec},
		"escaping": {job: edit(func(j *scheduler.Job) { j.Template.WorkingDir = "../.." }), reason: fsm.ReasonSpec},
		"id":       {job: edit(func(j *scheduler.Job) { j.SandboxID = "../s1" }), reason: fsm.ReasonSpec},
		"no program": {
			job:    edit(func(j *scheduler.Job) { j.Template.Command = "/no/such/program" }),
			reason: fsm.ReasonDriver,
		},
		"sealed":      {job: edit(func(j *scheduler.Job) { j.KeyRef.Path = "elsewhere" }), code: fsm.CodeSecretStore},
		"wrong index": {job: edit(func(j *scheduler.Job) { j.ModifyIndex = 5 }), code: fsm.CodeConflict},
	} {
		err := r.Start(ctx, c.job)
		var f *scheduler.Failure
		if c.reason != "" && (!errors.As(err, &f) || f.Reason != c.reason) {
			t.Errorf("%s: %v, want reason %s", name, err, c.reason)
		}
		if c.code != "" && fsm.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want code %s", name, err, c.code)
		}
	}
	if l, err := r.List(ctx, "c1"); err != nil || len(l) != 0 {
		t.Errorf("refused starts left jobs: %v, %v", l, err)
	}
}

func TestRunner_RestartedOverTheSameDirectory(t *testing.T) {
	dir := t.TempDir()
	r := newRunner(t, dir, "serve")
	job := testJob("s1")
	before := start(t, r, job)
	if _, err := New(testConfig(dir, "serve")); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second runner on the directory: %v", err)
	}
	pid := pidOf(t, r, "s1")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if alive(pid) {
		t.Error("Close left the process running")
	}
	if err := r.Start(ctx, job); fsm.CodeOf(err) != fsm.CodeScheduler {
		t.Errorf("Start after Close: %v", err)
	}
	r = newRunner(t, dir, "serve")
	l, err := r.List(ctx, "c1")
	if err != nil || len(l) != 1 || !l[0].Stopped || l[0].Live != 0 || l[0].ModifyIndex <= before.ModifyIndex {
		t.Fatalf("List after the restart: %+v, %v", l, err)
	}
	job.ModifyIndex, job.RevertTo, job.HasVersion = l[0].ModifyIndex, before.Version, true
	start(t, r, job)
}

func TestRunner_KilledProgramLeavesNothingRunning(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, parentMode, dir, "orphan")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "started\n" {
		t.Fatalf("parent said %q, %v", line, err)
	}
	orphan := readPID(t, filepath.Join(dir, "s1", workspaceDir, "orphan"))
	var task int
	waitFor(t, "the task is written down", func() bool {
		st, err := readState(filepath.Join(dir, "s1"))
		if err == nil && st.Run != nil {
			task = st.Run.PID
		}
		return task != 0
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	waitFor(t, "the task dies with its program", func() bool { return !alive(task) })
	if !alive(orphan) {
		t.Fatal("the orphan is gone already: this test shows nothing")
	}
	r := newRunner(t, dir, "serve")
	waitFor(t, "the orphan is gone", func() bool { return !alive(orphan) })
	if o := r.look("s1", "c1"); !o.Exists || !o.Stopped || o.Live != 0 {
		t.Errorf("observed %+v", o)
	}
}

func TestRunner_ReusedNumberIsNotKilled(t *testing.T) {
	dir := t.TempDir()
	bystander := exec.Command("sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bystander.Process.Kill(); _ = bystander.Wait() }()
	home := filepath.Join(dir, "s1")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	ticks, err := startTicks(bystander.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []runMark{
		{Mark: "m", PID: bystander.Process.Pid, Started: ticks - 1, BootID: boot},
		{Mark: "m", PID: bystander.Process.Pid, Started: ticks, BootID: "another boot"},
	} {
		if err := writeState(home, state{SandboxID: "s1", ClusterID: "c1", Run: &m}); err != nil {
			t.Fatal(err)
		}
		r := newRunner(t, dir, "serve")
		if !alive(bystander.Process.Pid) {
			t.Fatalf("%+v: killed a process that only has the number", m)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRunner_OutputIsBounded(t *testing.T) {
	dir := t.TempDir()
	r := newRunner(t, dir, "loud")
	r.cfg.MaxLog = 64 << 10
	start(t, r, testJob("s1"))
	var size int64
	files, err := filepath.Glob(filepath.Join(r.dir, "s1", logsDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		size += st.Size()
	}
	if size == 0 || size > r.cfg.MaxLog {
		t.Errorf("%d bytes of output are kept, at most %d allowed", size, r.cfg.MaxLog)
	}
}

// TestRunner_ManyLeadersAtOnce: several callers start the same sandboxes with the same index.
// One wins, or all find it running.
func TestRunner_ManyLeadersAtOnce(t *testing.T) {
	r := newRunner(t, t.TempDir(), "serve")
	wctx, cancel := context.WithCancel(ctx)
	seen := make(chan string, 1000)
	watched := make(chan error, 1)
	go func() { watched <- r.Watch(wctx, "c1", func(o scheduler.Observed) { seen <- o.SandboxID }) }()
	waitFor(t, "the watch", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.watchers) == 1 })
	const sandboxes, callers = 4, 4
	var wg sync.WaitGroup
	for i := range sandboxes * callers {
		wg.Go(func() {
			job := testJob(fmt.Sprintf("s%d", i%sandboxes))
			if err := r.Start(ctx, job); err != nil && fsm.CodeOf(err) != fsm.CodeConflict {
				t.Errorf("Start: %v", err)
			}
		})
	}
	wg.Wait()
	ports := map[int]bool{}
	for i := range sandboxes {
		o := await(t, r, fmt.Sprintf("s%d", i), "it answers", answers)
		for _, p := range o.Placement.Ports {
			if ports[p] {
				t.Errorf("port %d was given twice", p)
			}
			ports[p] = true
		}
		if st := r.sandboxes[o.SandboxID].snapshot(); st.Version != 0 {
			t.Errorf("%s was started %d times", o.SandboxID, st.Version+1)
		}
	}
	for i := range sandboxes {
		wg.Go(func() {
			if err := r.Remove(ctx, nowJob(r, fmt.Sprintf("s%d", i))); err != nil {
				t.Errorf("Remove: %v", err)
			}
		})
	}
	wg.Wait()
	cancel()
	if err := <-watched; err != nil {
		t.Errorf("Watch: %v", err)
	}
	if len(seen) == 0 {
		t.Error("the watcher saw nothing")
	}
	if len(r.ports) != 0 {
		t.Errorf("ports are still held: %v", r.ports)
	}
}
