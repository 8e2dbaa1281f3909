package process

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

// spawner starts processes from one thread that lives as long as the spawner. The kernel sends
// a parent-death signal when the thread that forked ends, and Go ends threads at any time.
type spawner struct {
	jobs chan spawn
	done chan struct{}
}

type spawn struct {
	cmd    *exec.Cmd
	answer chan error
}

func newSpawner() *spawner {
	s := &spawner{jobs: make(chan spawn), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread()
		for j := range s.jobs {
			j.answer <- j.cmd.Start()
		}
	}()
	return s
}

// start starts cmd in a session of its own. The kernel kills it when this program ends.
func (s *spawner) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	j := spawn{cmd, make(chan error, 1)}
	s.jobs <- j
	return <-j.answer
}

// close ends the thread, and with it every process that still runs.
func (s *spawner) close() {
	close(s.jobs)
	<-s.done
}

// bootID returns the id of this boot. Process ids repeat in another boot.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("local processes need Linux's /proc: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// startTicks returns when the process started, in clock ticks since boot.
func startTicks(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in brackets; it may contain blanks and brackets.
	end := bytes.LastIndexByte(b, ')')
	fields := strings.Fields(string(b[end+1:]))
	if end < 0 || len(fields) < 20 {
		return 0, errors.New("/proc/<pid>/stat has another form than expected")
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// signalGroup signals the process group of a task that has not been waited for.
func signalGroup(pid int, sig syscall.Signal) {
	_ = syscall.Kill(-pid, sig) // an error means it has ended
}

// sweep kills every process of the runs with these marks, also those that left their task's
// group, and returns when none is left. A process belongs to a run if its environment has the
// mark. sweep holds a pidfd while it checks again, so a reused process id is safe.
func sweep(marks ...string) error {
	set := make(map[string]bool, len(marks))
	for _, m := range marks {
		set[markVariable+"="+m] = true
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		found, err := sweepOnce(set)
		if err != nil || found == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of sandboxes can't be killed", found)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func sweepOnce(entries map[string]bool) (int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	found := 0
	for _, d := range dirs {
		if !hasMark(d, entries) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if hasMark(d, entries) {
			found++
			_ = p.Kill() // the next pass finds out
		}
		_ = p.Release() // only closes the handle
	}
	return found, nil
}

// hasMark reports whether the process has one of the environment entries. The environment of an
// ended process, or of another user's, can't be read and has none.
func hasMark(dir string, entries map[string]bool) bool {
	env, err := os.ReadFile(dir + "/environ")
	if err != nil {
		return false
	}
	for e := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.HasPrefix(e, []byte(markVariable)) && entries[string(e)] {
			return true
		}
	}
	return false
}

// killLeftovers kills what an earlier program left of these runs. The marks find nearly
// everything. The task itself is also known by its process id and start time, in case it
// changed its environment.
func killLeftovers(runs []runMark, boot string) error {
	marks := make([]string, 0, len(runs))
	for _, m := range runs {
		marks = append(marks, m.Mark)
		if m.PID <= 0 || m.BootID != boot {
			continue
		}
		p, err := os.FindProcess(m.PID)
		if err != nil {
			continue
		}
		// While the handle is held the process id can't be reused.
		if ticks, err := startTicks(m.PID); err == nil && ticks == m.Started {
			_ = p.Kill() // an error means it has ended
		}
		_ = p.Release() // only closes the handle
	}
	if len(marks) == 0 {
		return nil
	}
	return sweep(marks...)
}

// lockFile locks the directory for this program. The kernel releases the lock when the program
// ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("%s is in use by another program", filepath.Dir(path))
	}
	return f, nil
}

// unlockFile unlocks explicitly: a child between fork and exec holds a copy of the file, so
// closing it does not release the lock at once.
func unlockFile(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}
