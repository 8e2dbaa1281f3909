package local

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestFreeze: the agent and its tasks stop and continue together.
func TestFreeze(t *testing.T) {
	dir := t.TempDir()
	start := func(env ...string) int {
		cmd := exec.Command("/bin/sleep", "600")
		cmd.Env = env
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd.Process.Pid
	}
	agent, task := start(), start("NOMAD_ALLOC_DIR="+filepath.Join(dir, "data", "alloc", "a", "alloc"))
	other := start("NOMAD_ALLOC_DIR=/elsewhere/data/alloc")
	n := &Nomad{Server: Server{Dir: dir, proc: &Process{pid: agent}}}
	// A process shows as stopped only after it was scheduled again.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	is := func(pid int, stopped bool) error {
		return until(ctx, nil, "a process that stops or goes on", func(context.Context) error {
			raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
			if got := strings.Contains(string(raw), ") T "); err == nil && got != stopped {
				err = fmt.Errorf("process %d is stopped: %v", pid, got)
			}
			return err
		})
	}
	for _, stopped := range []bool{true, false} {
		err := n.Thaw()
		if stopped {
			err = n.Freeze()
		}
		for _, pid := range []int{agent, task} {
			if err == nil {
				err = is(pid, stopped)
			}
		}
		if err == nil {
			err = is(other, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
