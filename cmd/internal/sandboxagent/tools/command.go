package tools

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
)

// Tree is a command with every process that it starts. They are found again when they have left its
// session too.
type Tree struct {
	cmd    *exec.Cmd
	cookie string
	exited atomic.Bool
}

// NewTree prepares a command that has not started: it gets a session of its own, the user as (nil is
// the process's own), and environ without the server's keys. The caller starts it and waits for it.
func NewTree(cmd *exec.Cmd, environ []string, as *syscall.Credential) *Tree {
	t := &Tree{cmd: cmd, cookie: rand.Text()}
	cmd.Env = append(slices.Clip(withoutKeys(environ)), cookieName+"="+t.cookie)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: as}
	return t
}

// Wait waits for the command as its own Wait does. It is called once.
func (t *Tree) Wait() error {
	err := t.cmd.Wait()
	t.exited.Store(true)
	return err
}

// Kill kills the processes of a command that was started, after Wait too.
func (t *Tree) Kill() {
	leader := -1 // the number of a process that was waited for may be another's by now
	if !t.exited.Load() {
		leader = t.cmd.Process.Pid
	}
	killTree(leader, t.cookie, t.cmd.SysProcAttr.Credential)
}

// LookPath finds a program as a shell in dir with this environment does.
func LookPath(name, dir string, environ []string) (string, error) {
	var path string
	for _, kv := range environ {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	var candidates []string
	switch {
	case filepath.IsAbs(name):
		candidates = []string{name}
	case strings.Contains(name, "/"):
		candidates = []string{filepath.Join(dir, name)}
	default:
		for _, d := range filepath.SplitList(path) {
			if filepath.IsAbs(d) {
				candidates = append(candidates, filepath.Join(d, name))
			}
		}
	}
	for _, c := range candidates {
		if st, err := os.Stat(c); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return c, nil
		}
	}
	return "", fmt.Errorf("%s is not installed in this sandbox (PATH is %s)", name, path)
}
