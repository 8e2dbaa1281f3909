package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

// TestInit_ReapsOrphans runs the program as process 1 of its own PID namespace, as a container
// does.
func TestInit_ReapsOrphans(t *testing.T) {
	cmd, url := startAsInit(t)
	agent := children(t, cmd.Process.Pid)
	if len(agent) != 1 {
		t.Fatalf("process 1 has the children %v", agent)
	}
	// Orphans that end at once, and one that keeps running. The shells between end first, so
	// all become children of process 1.
	body := execute(t, url,
		`for i in 1 2 3 4 5 6 7 8; do (sh -c 'exit 0' &) ; done; (setsid sleep 1000 >/dev/null 2>&1 &) ; echo done`)
	if !strings.Contains(body, `"exit_code":0`) || !strings.Contains(body, `done\n`) {
		t.Fatalf("the command: %s", body)
	}
	waitFor(t, "the orphan to come and the others to be reaped", func() bool {
		left := children(t, cmd.Process.Pid)
		return len(left) == 2
	})
	// It can still wait for its own children.
	if body := execute(t, url, "exit 7"); !strings.Contains(body, `"exit_code":7`) {
		t.Errorf("a command after it: %s", body)
	}
	// Process 1 forwards SIGTERM: a clean stop, which also ends the orphan.
	all := children(t, cmd.Process.Pid)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	for _, pid := range all {
		waitFor(t, "the end of all", func() bool { return state(pid) == "" || state(pid) == "Z" })
	}
}

func TestInit_EndsWithTheAgentServersCode(t *testing.T) {
	cmd, _ := startAsInit(t)
	agent := children(t, cmd.Process.Pid)
	if len(agent) != 1 {
		t.Fatalf("process 1 has the children %v", agent)
	}
	if err := syscall.Kill(agent[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 128+9 {
		t.Errorf("killed: %v", err)
	}
	cmd = namespaced(buildAgent(t), "--nonsense")
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("wrong flags: %v", err)
	}
}

func buildAgent(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "sandbox-agent")
	if err := local.BuildGo(t.Context(), "./cmd/sandbox-agent", bin); err != nil {
		t.Fatal(err)
	}
	return bin
}

// namespaced runs the program as process 1.
func namespaced(bin string, args ...string) *exec.Cmd {
	cmd := exec.Command(bin, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	return cmd
}

func startAsInit(t *testing.T) (*exec.Cmd, string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a process namespace needs root")
	}
	cmd := namespaced(buildAgent(t), "--port", "0")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "OH_CONVERSATIONS_PATH=" + t.TempDir()}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); errors.Is(err, syscall.EPERM) {
		t.Skip("no process namespaces here")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		var l struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "serving" {
			go func() { _, _ = io.Copy(io.Discard, stderr) }()
			return cmd, "http://" + l.Address
		}
	}
	t.Fatalf("the program did not begin to serve: %v", lines.Err())
	return nil, ""
}

func execute(t *testing.T, url, command string) string {
	t.Helper()
	in, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url+"/api/bash/execute_bash_command", "application/json",
		bytes.NewReader(in)) //nolint:noctx // the test's end is bound enough
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// children returns the processes whose parent is pid, including zombies.
func children(t *testing.T, pid int) []int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // one per thread
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(b)) {
			n, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, n)
		}
	}
	return out
}

// state returns the process's state, "" if there is no such process.
func state(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(b), ") ")
	return after[:1]
}

func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}
