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

	"github.com/cenkalti/backoff/v5"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// sandbox is one sandbox on this machine. Start, Stop, Remove and Close hold op while they change
// it. mu guards the fields and is held only for short reads and writes.
type sandbox struct {
	id, dir string
	op      chan struct{}
	out     *output

	mu    sync.Mutex
	state state // SandboxID "" means there is no job and no workspace
	run   *run
}

// run is the lifetime of one version, restarts included. sandbox.mu guards live and the fields
// after it.
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

func newSandbox(id, dir string, maxLog int64) *sandbox {
	return &sandbox{id: id, dir: dir, op: make(chan struct{}, 1), out: newOutput(filepath.Join(dir, logsDir), maxLog)}
}

func (sb *sandbox) snapshot() state {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	st := sb.state
	st.Versions = append([]version(nil), st.Versions...)
	return st
}

func (sb *sandbox) exists() bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.state.SandboxID != ""
}

func (sb *sandbox) current() *run {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.run
}

// endRun ends the newest run and waits for it. It returns false if ctx ends first.
func (sb *sandbox) endRun(ctx context.Context) bool {
	n := sb.current()
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

// observe returns the sandbox as the scheduler sees it.
func (sb *sandbox) observe() scheduler.Observed {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	st := sb.state
	o := scheduler.Observed{SandboxID: sb.id, Exists: st.job(), Birth: st.Birth}
	if st.Purged {
		o.Workspace, o.WorkspaceID = true, st.WorkspaceID
		return o
	}
	o.Stopped, o.ModifyIndex, o.Version = st.Stopped, st.ModifyIndex, st.Version
	o.Rotations = st.Rotations
	n := sb.run
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

// set changes the observed state of a run and notifies the watchers.
func (r *Runner) set(sb *sandbox, n *run, live bool, p *fsm.Placement, failure, waiting *scheduler.Failure) {
	sb.mu.Lock()
	n.live, n.placement, n.failure, n.waiting = live, p, failure, waiting
	cluster := sb.state.ClusterID
	sb.mu.Unlock()
	r.changed(sb.id, cluster)
}

// supervise runs the task until ctx ends or the restarts are used up.
func (r *Runner) supervise(ctx context.Context, sb *sandbox, n *run, l launch, mark runMark) {
	pause := backoff.ExponentialBackOff{
		InitialInterval: r.cfg.BackoffMin, MaxInterval: r.cfg.BackoffMax, Multiplier: 2,
	}
	for tries := 0; ; tries++ {
		began := time.Now()
		why, fatal := r.once(ctx, sb, n, l, mark)
		if err := sweep(mark.Mark); err != nil {
			r.log.Error("killing what is left of a sandbox's process failed", "sandbox", sb.id, "error", err)
		}
		if ctx.Err() != nil {
			r.set(sb, n, false, nil, nil, nil)
			return
		}
		if time.Since(began) >= r.cfg.StableAfter {
			tries = 0
			pause.Reset()
		}
		if fatal || tries >= r.cfg.Restarts {
			if !fatal {
				why.Detail = fmt.Sprintf("%s (started %d times)", why.Detail, tries+1)
			}
			r.log.Warn("sandbox process failed", "sandbox", sb.id, "reason", why.Reason)
			r.set(sb, n, false, nil, why, nil)
			return
		}
		r.log.Info("sandbox process ended, starting it again", "sandbox", sb.id, "count", tries+1)
		r.set(sb, n, true, nil, nil, why)
		timer := time.NewTimer(pause.NextBackOff())
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// once runs the task's process to its end and says why it ended.
func (r *Runner) once(
	ctx context.Context,
	sb *sandbox,
	n *run,
	l launch,
	mark runMark,
) (why *scheduler.Failure, fatal bool) {
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
	// The task may have removed its working directory. A missing workspace is not recreated:
	// the start fails.
	if _, err := os.Stat(l.workspace); err == nil {
		_ = os.MkdirAll(l.dir, 0o700) // Start reports it
	}
	cmd.Dir, cmd.Env = l.dir, l.environ(mark.Mark, ports)
	cmd.Stdout, cmd.Stderr = outputWriter{sb.out, sb.out.stdout}, outputWriter{sb.out, sb.out.stderr}
	// A child that left the group may hold the pipes; the sweep ends it.
	cmd.WaitDelay = time.Second
	if err := r.spawner.start(cmd); err != nil {
		return &scheduler.Failure{Reason: fsm.ReasonDriver, Detail: "the task can't be started: " + err.Error()}, true
	}
	r.noteProcess(sb, mark, cmd.Process.Pid)
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	r.set(sb, n, true, &fsm.Placement{
		AllocID: fmt.Sprintf("%s-%d", mark.Mark[:8], cmd.Process.Pid), NodeID: host,
		Address: localAddress, Ports: ports, Workspace: l.workspace,
	}, nil, nil)
	r.log.Info("sandbox process started", "sandbox", sb.id, "pid", cmd.Process.Pid)
	err = r.wait(ctx, cmd)
	return crashed(cmd, err, sb.out.last(l.key, l.sealKey)), false
}

// noteProcess stores the task's process id. Leftovers are found by the mark, which is already
// on disk, so a failure here is only logged.
func (r *Runner) noteProcess(sb *sandbox, mark runMark, pid int) {
	ticks, err := startTicks(pid)
	if err != nil {
		return // the process has already ended
	}
	mark.PID, mark.Started = pid, ticks
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.state.SandboxID == "" {
		return
	}
	st := sb.state
	st.Run = &mark
	if err := writeState(sb.dir, st); err != nil {
		r.log.Warn("storing a sandbox's process id failed", "sandbox", sb.id, "error", err)
		return
	}
	sb.state = st
}

// wait waits for the task's end. When ctx ends it sends SIGTERM, and SIGKILL after the grace
// period.
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
