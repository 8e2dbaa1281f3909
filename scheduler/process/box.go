package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// box is one sandbox on this machine. op is held by whoever changes it (Start,
// Stop, Remove, Close), mu guards the fields for the moment of looking.
type box struct {
	id, dir string
	op      chan struct{}
	out     *output

	mu    sync.Mutex
	state state // SandboxID "" means there is nothing
	run   *run
}

// run is one version's life, restarts included. box.mu guards live and what
// follows.
type run struct {
	version  uint64
	template fsm.Template
	deferred bool
	stop     context.CancelFunc
	done     chan struct{}

	live      bool
	placement *fsm.Placement
	failure   *scheduler.Failure
	waiting   *scheduler.Failure
}

func newBox(id, dir string, maxLog int64) *box {
	return &box{id: id, dir: dir, op: make(chan struct{}, 1), out: newOutput(filepath.Join(dir, logsDir), maxLog)}
}

func (b *box) snapshot() state {
	b.mu.Lock()
	defer b.mu.Unlock()
	st := b.state
	st.Versions = append([]version(nil), st.Versions...)
	return st
}

func (b *box) exists() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state.SandboxID != ""
}

func (b *box) current() *run {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.run
}

// endRun ends the newest run and waits for it; false when ctx ended first.
func (b *box) endRun(ctx context.Context) bool {
	n := b.current()
	if n == nil {
		return true
	}
	n.stop()
	select {
	case <-n.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// observe gives the sandbox as the scheduler sees it.
func (b *box) observe() scheduler.Observed {
	b.mu.Lock()
	defer b.mu.Unlock()
	st := b.state
	o := scheduler.Observed{SandboxID: b.id, Exists: st.job(), Birth: st.Birth}
	if st.Purged {
		o.Workspace, o.WorkspaceID = true, st.WorkspaceID
		return o
	}
	o.Stopped, o.ModifyIndex, o.Version = st.Stopped, st.ModifyIndex, st.Version
	n := b.run
	if n == nil || !o.Exists {
		return o
	}
	if n.live {
		o.Live = 1
	}
	if !st.Stopped {
		o.Placement, o.Failure, o.Waiting, o.Version = n.placement, n.failure, n.waiting, n.version
	}
	return o
}

// set changes what is seen of a run and tells the watchers.
func (r *Runner) set(b *box, n *run, live bool, p *fsm.Placement, failure, waiting *scheduler.Failure) {
	b.mu.Lock()
	n.live, n.placement, n.failure, n.waiting = live, p, failure, waiting
	cluster := b.state.ClusterID
	b.mu.Unlock()
	r.changed(b.id, cluster)
}

// supervise runs the task until ctx ends or it has crashed for good.
func (r *Runner) supervise(ctx context.Context, b *box, n *run, l launch, mark runMark) {
	pause := r.cfg.BackoffMin
	for tries := 0; ; tries++ {
		began := time.Now()
		why, fatal := r.once(ctx, b, n, l, mark)
		if err := sweep(mark.Mark); err != nil {
			r.log.Error("a sandbox left processes behind", "sandbox", b.id, "error", err)
		}
		if ctx.Err() != nil {
			r.set(b, n, false, nil, nil, nil)
			return
		}
		if time.Since(began) >= r.cfg.StableAfter {
			tries, pause = 0, r.cfg.BackoffMin
		}
		if fatal || tries >= r.cfg.Restarts {
			if !fatal {
				why.Detail = fmt.Sprintf("%s (started %d times)", why.Detail, tries+1)
			}
			r.log.Warn("a sandbox's process failed", "sandbox", b.id, "reason", why.Reason)
			r.set(b, n, false, nil, why, nil)
			return
		}
		r.log.Info("a sandbox's process ended; starting it again", "sandbox", b.id, "count", tries+1)
		r.set(b, n, true, nil, nil, why)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, r.cfg.BackoffMax)
	}
}

// once runs the task's process to its end and says why it ended.
func (r *Runner) once(ctx context.Context, b *box, n *run, l launch, mark runMark) (why *scheduler.Failure, fatal bool) {
	if ctx.Err() != nil {
		return &scheduler.Failure{Reason: fsm.ReasonCrashed, Detail: "stopped"}, true
	}
	ports, err := r.takePorts(l.template.Ports)
	if err != nil {
		return &scheduler.Failure{Reason: fsm.ReasonDriver, Detail: err.Error()}, false
	}
	defer r.giveBack(ports)
	cmd := exec.Command(l.command)
	for _, a := range l.args {
		cmd.Args = append(cmd.Args, l.expand(a, ports))
	}
	// The task may have removed its working directory; a workspace that is
	// gone stays gone, and the start fails.
	if _, err := os.Stat(l.workspace); err == nil {
		_ = os.MkdirAll(l.dir, 0o700) // the start tells
	}
	cmd.Dir, cmd.Env = l.dir, l.environ(mark.Mark, ports)
	cmd.Stdout, cmd.Stderr = outputWriter{b.out, b.out.stdout}, outputWriter{b.out, b.out.stderr}
	// A child that left the group may hold the pipes; the sweep ends it.
	cmd.WaitDelay = time.Second
	if err := r.spawner.start(cmd); err != nil {
		return &scheduler.Failure{Reason: fsm.ReasonDriver, Detail: "the task can't be started: " + err.Error()}, true
	}
	r.noteProcess(b, mark, cmd.Process.Pid)
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	r.set(b, n, true, &fsm.Placement{
		AllocID: fmt.Sprintf("%s-%d", mark.Mark[:8], cmd.Process.Pid), NodeID: host,
		Address: localAddress, Ports: ports, Workspace: l.workspace,
	}, nil, nil)
	r.log.Info("a sandbox's process started", "sandbox", b.id, "count", cmd.Process.Pid)
	err = r.wait(ctx, cmd)
	return crashed(cmd, err, b.out.last(l.key, l.sealKey)), false
}

// noteProcess writes down which process is the task. The mark is on disk
// already, so a failure here costs little.
func (r *Runner) noteProcess(b *box, mark runMark, pid int) {
	ticks, err := startTicks(pid)
	if err != nil {
		return // it has ended already
	}
	mark.PID, mark.Started = pid, ticks
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.SandboxID == "" {
		return
	}
	st := b.state
	st.Run = &mark
	if err := writeState(b.dir, st); err != nil {
		r.log.Warn("a sandbox's process was not written down", "sandbox", b.id, "error", err)
		return
	}
	b.state = st
}

// wait waits for the task's end; when ctx ends it asks the task to stop, and
// makes it after the grace.
func (r *Runner) wait(ctx context.Context, cmd *exec.Cmd) error {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	signalGroup(cmd.Process.Pid, syscall.SIGTERM)
	grace := time.NewTimer(r.cfg.StopGrace)
	defer grace.Stop()
	select {
	case err := <-ended:
		return err
	case <-grace.C:
	}
	signalGroup(cmd.Process.Pid, syscall.SIGKILL)
	return <-ended
}

func crashed(cmd *exec.Cmd, err error, last string) *scheduler.Failure {
	how := "ended"
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		how = "ended with " + exit.String()
	case cmd.ProcessState != nil:
		how = "ended with " + cmd.ProcessState.String()
	}
	f := &scheduler.Failure{Reason: fsm.ReasonCrashed, Detail: "the task " + how}
	if last != "" {
		f.Detail += "; its last output: " + last
	}
	return f
}
