package local

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
)

// Command says how a program is started.
type Command struct {
	Name string // also of its files: <Dir>/<Name>.log, .pid
	Dir  string
	Path string
	Args []string
	Env  []string // added to cleanEnv
	// Log is the file to which its output is appended, "" for <Dir>/<Name>.log.
	Log string
	// Detach lets the program outlive this process. Otherwise the kernel kills it with this
	// process, so that a panic in a test leaves nothing running.
	Detach bool
	// inherit is a file that the program keeps open, or nil.
	inherit *os.File
}

// Process is a program started by this process, or by an earlier one that wrote the pid file. One of
// an earlier process is identified by pid and start time, because pids are reused. A nil Process does
// not run.
type Process struct {
	name    string
	pid     int
	started string // field 22 of /proc/<pid>/stat, in clock ticks since boot
	log     string
	pidFile string

	// cmd has ended when the channel is closed; both are nil for a process of an earlier one.
	cmd   *exec.Cmd
	ended chan struct{}
}

// files returns a process that does not run yet.
func (c Command) files() *Process {
	return &Process{
		name:    c.Name,
		log:     cmp.Or(c.Log, filepath.Join(c.Dir, c.Name+".log")),
		pidFile: filepath.Join(c.Dir, c.Name+".pid"),
	}
}

// Start runs the command.
func (c Command) Start() (*Process, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Name, err)
	}
	p := c.files()
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Name, err)
	}
	defer out.Close()
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Dir = c.Dir
	cmd.Env = append(cleanEnv(), c.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	// Its own process group: Ctrl-C in the terminal is for this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if !c.Detach {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if c.inherit != nil {
		cmd.ExtraFiles = []*os.File{c.inherit}
	}
	p.cmd, p.ended = cmd, make(chan struct{})
	if err := p.startAndReap(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Name, err)
	}
	p.pid = cmd.Process.Pid
	p.started = startTime(p.pid)
	if err := writeFile(p.pidFile, []byte(fmt.Sprintf("%d %s\n", p.pid, p.started)), 0o600); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// startAndReap starts the program and waits for its end in the background; its log tells how it ended.
// A thread is kept for it meanwhile: the kernel sends the death signal when the thread that
// started the process ends, and other code may end threads (scheduler/process does so on
// purpose).
func (p *Process) startAndReap() error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
			close(p.ended)
		}
	}()
	return <-started
}

// findProcess reads a pid file. It returns nil if there is none or the process has ended.
func findProcess(dir, name string) *Process {
	p := Command{Name: name, Dir: dir}.files()
	raw, err := os.ReadFile(p.pidFile)
	if err != nil {
		return nil
	}
	fields := strings.Fields(string(raw))
	if len(fields) != 2 {
		return nil
	}
	p.pid, _ = strconv.Atoi(fields[0])
	p.started = fields[1]
	if p.pid <= 0 || !p.Alive() {
		return nil
	}
	return p
}

// Alive reports whether the process runs; a zombie does not.
func (p *Process) Alive() bool {
	switch {
	case p == nil:
		return false
	case p.ended != nil:
		select {
		case <-p.ended:
			return false
		default:
			return true
		}
	}
	t := startTime(p.pid)
	return t != "" && t == p.started
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.pid }

// ExitCode returns the exit code of a process that this one started and that has ended.
func (p *Process) ExitCode() int {
	<-p.ended
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal to a process that runs.
func (p *Process) Signal(signal syscall.Signal) error {
	if !p.Alive() {
		return nil
	}
	var err error
	if p.cmd != nil { // not by its pid, which is another process's once it was waited for
		err = p.cmd.Process.Signal(signal)
	} else {
		err = syscall.Kill(p.pid, signal)
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %s to %s (pid %d): %w", signal, p.name, p.pid, err)
	}
	return nil
}

// Stop sends SIGTERM and waits; after the grace period it sends SIGKILL.
func (p *Process) Stop(grace time.Duration) error {
	if !p.Alive() {
		return nil
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if p.waitGone(grace) {
		return p.forget()
	}
	return p.Kill()
}

// Kill sends SIGKILL and waits: without a limit for a process that this one started.
func (p *Process) Kill() error {
	if !p.Alive() {
		return nil
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	if p.ended != nil {
		<-p.ended
	}
	if !p.waitGone(10 * time.Second) {
		return fmt.Errorf("killing %s: pid %d is still there after 10 s", p.name, p.pid)
	}
	return p.forget()
}

func (p *Process) forget() error {
	if err := os.Remove(p.pidFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (p *Process) waitGone(limit time.Duration) bool {
	for end := time.Now().Add(limit); p.Alive(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// failure returns an error about a process with the last lines of its log.
func (p *Process) failure(what string) error {
	return fmt.Errorf("%s %s; the end of %s:\n%s", p.name, what, p.log, Tail(p.log, 15))
}

// startTime returns "" if there is no such process or it is a zombie.
func startTime(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	return startTimeOf(raw)
}

// startTimeOf parses a process's stat file (proc(5)). A killed process is shown as a zombie
// when its first thread has ended; while other threads have not, its sockets are open.
func startTimeOf(stat []byte) string {
	const state, threads, started = 0, 17, 19
	// The name in parentheses may contain anything; the fields follow the last ")".
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= started {
		return ""
	}
	switch left := string(fields[threads]); string(fields[state]) {
	case "Z", "X":
		if left == "0" || left == "1" {
			return ""
		}
	}
	return string(fields[started])
}

// Tail returns the last lines of a file.
func Tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// cleanEnv returns our environment without variables that point the programs to another Vault,
// Nomad or cloud.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "VAULT_") || strings.HasPrefix(kv, "NOMAD_") || strings.HasPrefix(kv, "AWS_") {
			continue
		}
		env = append(env, kv)
	}
	return env
}

// writeFile replaces a file atomically.
func writeFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return renameio.WriteFile(path, data, mode, renameio.WithTempDir(filepath.Dir(path)), renameio.IgnoreUmask())
}
