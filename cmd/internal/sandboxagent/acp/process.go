package acp

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/credential"
)

const (
	// stopWait is how long an agent may take to end after its stdin was closed.
	stopWait = time.Second
	// maxStderr is how much of the end of stderr is kept for the reason of a failure.
	maxStderr = 4 << 10
)

// command is what is started: a program, its arguments, and the whole environment.
type command struct {
	path string
	args []string
	env  []string
}

// key tells two commands apart.
func (c command) key() string {
	return strings.Join(append(append([]string{c.path}, c.args...), c.env...), "\x00")
}

// process is a running agent, in a process group of its own.
type process struct {
	cmd    *exec.Cmd
	stdin  *os.File
	stdout *os.File
	stderr *tail
	// mark is an entry of the environment that only this agent and its children have.
	mark string
	// exited is closed when the agent itself has ended; err is then its error.
	exited chan struct{}
	err    error
	once   sync.Once
}

// start starts an agent. The error of a program that is not there names it.
func start(c command, dir string, cred *syscall.Credential) (*process, error) {
	path, err := lookPath(c.path, dir, c.env)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, c.args...)
	mark := "BIVOUAC_ACP_PROCESS=" + rand.Text()
	cmd.Dir, cmd.Env = dir, append(slices.Clip(c.env), mark)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: cred}
	// Files instead of exec's pipes: Wait then returns when the agent ends, also while a child of it
	// holds the other end open.
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, inR.Close(), inW.Close())
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, inR.Close(), inW.Close(), outR.Close(), outW.Close())
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, errW
	err = cmd.Start()
	for _, f := range []*os.File{inR, outW, errW} {
		f.Close()
	}
	if err != nil {
		for _, f := range []*os.File{inW, outR, errR} {
			f.Close()
		}
		return nil, fmt.Errorf("starting %s: %w", path, err)
	}
	p := &process{cmd: cmd, stdin: inW, stdout: outR, stderr: &tail{}, mark: mark, exited: make(chan struct{})}
	go p.stderr.read(errR)
	go p.wait()
	return p, nil
}

// lookPath finds a program as a shell in dir with this environment does.
func lookPath(name, dir string, env []string) (string, error) {
	var path string
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	candidates := []string{name}
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			candidates[0] = filepath.Join(dir, name)
		}
	} else {
		candidates = candidates[:0]
		for _, d := range filepath.SplitList(path) {
			if filepath.IsAbs(d) {
				candidates = append(candidates, filepath.Join(d, name))
			}
		}
	}
	for _, c := range candidates {
		if i, err := os.Stat(c); err == nil && !i.IsDir() && i.Mode()&0o111 != 0 {
			return c, nil
		}
	}
	if strings.Contains(name, "/") {
		return "", fmt.Errorf("%s is not a program in this sandbox", name)
	}
	return "", fmt.Errorf("%s is not installed in this sandbox (PATH is %s)", name, path)
}

func (p *process) wait() {
	p.err = p.cmd.Wait()
	close(p.exited)
	p.killAll()
	// What the agent has written is read; a child that left the group may hold the pipe open.
	time.AfterFunc(stopWait, func() { p.stdout.Close() })
}

// stop ends the agent and its children, and waits for it. It may be called often.
func (p *process) stop() {
	p.once.Do(func() {
		p.stdin.Close()
		t := time.NewTimer(stopWait)
		defer t.Stop()
		select {
		case <-p.exited:
		case <-t.C:
		}
	})
	p.kill()
}

// kill ends the agent and its children at once, and waits for it.
func (p *process) kill() {
	p.killAll()
	<-p.exited
}

// killAll kills the agent's process group, and what has left the group but still has the mark in
// its environment, such as a shell's own group. It looks again for what was forked meanwhile.
func (p *process) killAll() {
	// A group that is gone already is what is wanted.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	for range 5 {
		killed := 0
		// Environments are read as the processes' user. A thread that can't become it finds none.
		_ = credential.Do(p.cmd.SysProcAttr.Credential, func() error { killed = killMarked(p.mark); return nil })
		if killed == 0 {
			return
		}
	}
}

// killMarked kills every process with the entry in its environment, and returns their number.
func killMarked(entry string) int {
	n := 0
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environs {
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(b, []byte(entry)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil &&
			syscall.Kill(pid, syscall.SIGKILL) == nil {
			n++
		}
	}
	return n
}

// tail keeps the end of what was written.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) read(f *os.File) {
	defer f.Close()
	_, _ = io.Copy(t, f) // it ends with the agent
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if n := len(t.buf); n > maxStderr {
		t.buf = append(t.buf[:0], t.buf[n-maxStderr:]...)
	}
	return len(b), nil
}

// String returns the last lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.buf), ""))
}
