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
)

// command is how a program is started.
type command struct {
	name string // also names its log and pid file: <dir>/<name>.log, .pid
	dir  string
	path string
	args []string
	env  []string // added to cleanEnv
	// detach lets the program outlive this process; otherwise the kernel kills
	// it when we die, so that a test run that panics leaves nothing behind.
	detach bool
	// inherit is a file the program keeps open while it lives; nil is none.
	inherit *os.File
}

// process is a program that was started, by this process or by an earlier one
// that wrote the pid file. It is known by pid and start time: a pid alone may
// have been given to somebody else since.
type process struct {
	name    string
	pid     int
	started string // field 22 of /proc/<pid>/stat, in clock ticks since boot
	log     string
	pidFile string
}

// start runs the command with its output appended to its log.
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
	// A process group of its own: Ctrl-C in the terminal is ours to handle.
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

// startAndReap starts cmd and waits for its end in the background; how it
// ended is read from its log. A thread is kept for it meanwhile: the death
// signal comes when the thread that started a process ends, and other code may
// end threads (scheduler/process does, on purpose).
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

// findProcess reads a pid file; nil when there is none or it has ended.
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

// stop asks the process to end, waits, and after the grace period kills it.
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

// kill ends the process the hard way, as a power cut would.
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

// failure is what to say of a process that is not what it should be: the last
// lines of its log.
func (p *process) failure(what string) error {
	return fmt.Errorf("%s %s; the end of %s:\n%s", p.name, what, p.log, tail(p.log, 15))
}

// startTime is empty when there is no such process or it is a zombie.
func startTime(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	return startTimeOf(raw)
}

// startTimeOf reads a process's stat file (proc(5)). A killed process passes for
// a zombie as soon as its first thread has ended; as long as others have not, its
// sockets are open.
func startTimeOf(stat []byte) string {
	const state, threads, started = 0, 17, 19
	// The name in parentheses may hold anything; the fields follow the last ")".
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

// tail gives the last lines of a file.
func tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// cleanEnv is our environment without what would point the programs at another
// Vault, Nomad or cloud.
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

// writeFile replaces a file in one step.
func writeFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	if err := os.Chmod(tmp, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
