package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one node's program. It can be started again after a kill.
type process struct {
	name string
	path string
	args []string
	dir  string

	cmd   *exec.Cmd
	ended chan struct{}
}

// start starts the program. Its output goes to a file beside its data.
func (p *process) start() error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(p.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	p.cmd = exec.Command(p.path, p.args...)
	p.cmd.Dir = p.dir
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	p.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // it is usually killed
		close(ended)
	}(p.cmd, p.ended)
	return nil
}

func (p *process) log() string { return filepath.Join(p.dir, "log") }

// kill sends SIGKILL.
func (p *process) kill() {
	if p.cmd != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
	}
}

func (p *process) alive() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// signal sends SIGSTOP and SIGCONT: a system must use no core while another is measured.
func (p *process) signal(s os.Signal) {
	if p.alive() {
		_ = p.cmd.Process.Signal(s)
	}
}

// tail returns the last lines of the output.
func (p *process) tail() string {
	raw, err := os.ReadFile(p.log())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// usage returns the process's CPU time so far and its resident memory.
func (p *process) usage() (cpu time.Duration, resident int64) {
	if !p.alive() {
		return 0, 0
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0
	}
	// The program's name, in brackets, may contain spaces.
	fields := strings.Fields(string(raw)[strings.LastIndexByte(string(raw), ')')+1:])
	if len(fields) < 22 {
		return 0, 0
	}
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(fields[i], 10, 64)
		return n
	}
	return time.Duration(number(11)+number(12)) * time.Second / ticksPerSecond, number(21) * int64(os.Getpagesize())
}

// until polls every 20 ms until there is no error, at most for limit.
func until(ctx context.Context, limit time.Duration, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, errors.Join(err, ctx.Err()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
