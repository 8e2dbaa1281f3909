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

// spawner starts processes from one thread that lives as long as it: the
// kernel sends a parent-death signal when the thread that forked ends, not the
// process, and Go ends threads as it likes.
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

// start starts cmd in a session of its own; it dies with this program.
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

// bootID tells this boot's process numbers from another's.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("local processes need Linux's /proc: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// startTicks gives when the process began, in clock ticks since boot.
func startTicks(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in brackets and may hold blanks
	// and brackets of its own.
	end := bytes.LastIndexByte(b, ')')
	fields := strings.Fields(string(b[end+1:]))
	if end < 0 || len(fields) < 20 {
		return 0, errors.New("/proc/<pid>/stat has another form than expected")
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// signalGroup signals the whole process group of a task that has not been
// waited for.
func signalGroup(pid int, sig syscall.Signal) {
	_ = syscall.Kill(-pid, sig) // gone already: fine
}

// sweep kills every process of the runs with these marks, however it left its
// task's group, and returns when none is left. A process is a run's when it has
// the mark in its environment; it is held by a handle while that is read again,
// so a number that is used anew meanwhile is safe.
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
			_ = p.Kill() // ended meanwhile: the next look tells
		}
		_ = p.Release() // only lets go of the handle
	}
	return found, nil
}

// hasMark reports whether the process has one of the environment entries. One
// that has ended, or is another user's, has none.
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

// killLeftovers kills what an earlier program left of these runs. The marks
// find nearly everything; a task itself is also known by its number and the
// time it began, should it have changed its environment.
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
		// With the handle held, the number can't change hands.
		if ticks, err := startTicks(m.PID); err == nil && ticks == m.Started {
			_ = p.Kill() // ended meanwhile: fine
		}
		_ = p.Release() // only lets go of the handle
	}
	if len(marks) == 0 {
		return nil
	}
	return sweep(marks...)
}

// lockFile takes the directory for this program alone; the kernel lets go of
// it when the program ends, however it does.
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

// unlockFile lets go of the directory at once: a child that is just being
// started holds a copy of the file until it has become another program.
func unlockFile(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}
