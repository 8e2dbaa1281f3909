package local

import (
	"bytes"
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

// command says how a program is started.
type command struct {
	name string // also of its files: <dir>/<name>.log, .pid
	dir  string
	path string
	args []string
	env  []string // added to cleanEnv
	// detach lets the program outlive this process. Otherwise the kernel kills it with this
	// process, so that a panic in a test leaves nothing running.
	detach bool
	// inherit is a file that the program keeps open, or nil.
	inherit *os.File
}

// process is a program started by this process, or by an earlier one that wrote the pid file.
// It is identified by pid and start time, because pids are reused.
type process struct {
	name    string
	pid     int
	started string // field 22 of /proc/<pid>/stat, in clock ticks since boot
	log     string
	pidFile string
}

// start runs the command and appends its output to its log.
func (c command) start() (*process, error) {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.name, err)
	}
	p := &process{name: c.name, log: filepath.Join(c.dir, c.name+".log"), pidFile: filepath.Join(c.dir, c.name+".pid")}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.name, err)
	}
	defer out.Close()
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir = c.dir
	cmd.Env = append(cleanEnv(), c.env...)
	cmd.Stdout, cmd.Stderr = out, out
	// Its own process group: Ctrl-C in the terminal is for this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if !c.detach {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if c.inherit != nil {
		cmd.ExtraFiles = []*os.File{c.inherit}
	}
	if err := startAndReap(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.name, err)
	}
	p.pid = cmd.Process.Pid
	p.started = startTime(p.pid)
	if err := writeFile(p.pidFile, []byte(fmt.Sprintf("%d %s\n", p.pid, p.started)), 0o600); err != nil {
		return nil, errors.Join(err, p.kill())
	}
	return p, nil
}

// startAndReap starts cmd and waits for its end in the background; its log tells how it ended.
// A thread is kept for it meanwhile: the kernel sends the death signal when the thread that
// started the process ends, and other code may end threads (scheduler/process does so on
// purpose).
func startAndReap(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return <-started
}

// findProcess reads a pid file. It returns nil if there is none or the process has ended.
func findProcess(dir, name string) *process {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), pidFile: filepath.Join(dir, name+".pid")}
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
	if p.pid <= 0 || !p.alive() {
		return nil
	}
	return p
}

// alive reports whether the process runs; a zombie does not.
func (p *process) alive() bool {
	t := startTime(p.pid)
	return t != "" && t == p.started
}

// stop sends SIGTERM and waits; after the grace period it sends SIGKILL.
func (p *process) stop(grace time.Duration) error {
	if p == nil || !p.alive() {
		return nil
	}
	if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stopping %s (pid %d): %w", p.name, p.pid, err)
	}
	if p.waitGone(grace) {
		return p.forget()
	}
	return p.kill()
}

// kill sends SIGKILL and waits.
func (p *process) kill() error {
	if p == nil || !p.alive() {
		return nil
	}
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing %s (pid %d): %w", p.name, p.pid, err)
	}
	if !p.waitGone(10 * time.Second) {
		return fmt.Errorf("killing %s: pid %d is still there after 10 s", p.name, p.pid)
	}
	return p.forget()
}

func (p *process) forget() error {
	if err := os.Remove(p.pidFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (p *process) waitGone(limit time.Duration) bool {
	for end := time.Now().Add(limit); p.alive(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// failure returns an error about a process with the last lines of its log.
func (p *process) failure(what string) error {
	return fmt.Errorf("%s %s; the end of %s:\n%s", p.name, what, p.log, tail(p.log, 15))
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

// tail returns the last lines of a file.
func tail(path string, lines int) string {
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
