package hooks

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func run(t *testing.T, command string, timeout int) Result {
	t.Helper()
	d := Definition{Type: "command", Command: command, Timeout: timeout}
	return d.Run(t.Context(), Input{
		EventType:  "PreToolUse",
		ToolName:   "terminal",
		ToolInput:  []byte(`{"command":"ls"}`),
		SessionID:  "s",
		WorkingDir: t.TempDir(),
	},
		Process{Env: os.Environ()})
}

func TestRun_Decisions(t *testing.T) {
	for command, want := range map[string]Result{
		"true":                {Success: true},
		"echo no >&2; exit 2": {ExitCode: 2, Blocked: true, Stderr: "no\n", Reason: "no"},
		"exit 2":              {ExitCode: 2, Blocked: true, Reason: "A hook forbids it"},
		"exit 1":              {ExitCode: 1},
		`echo '{"decision":"DENY","reason":"never"}'`: {
			Success: true,
			Blocked: true,
			Stdout:  `{"decision":"DENY","reason":"never"}` + "\n",
			Reason:  "never",
		},
		`echo '{"continue":false}'`: {
			Success: true,
			Blocked: true,
			Stdout:  `{"continue":false}` + "\n",
			Reason:  "A hook forbids it",
		},
		`echo '{"decision":"allow","additionalContext":"know"}'`: {
			Success: true,
			Stdout:  `{"decision":"allow","additionalContext":"know"}` + "\n",
			Context: "know",
		},
		`grep -q '"tool_input":{"command":"ls"}' && echo $OPENHANDS_EVENT_TYPE $OPENHANDS_TOOL_NAME`: {
			Success: true,
			Stdout:  "PreToolUse terminal\n",
		},
		"kill -9 $$": {ExitCode: -1, Error: "the hook failed: signal: killed"},
	} {
		if got := run(t, command, 20); got != want {
			t.Errorf("%s: %+v, want %+v", command, got, want)
		}
	}
}

// TestRun_Hangs: a command that does not end is killed with what it started, and forbids nothing.
func TestRun_Hangs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	got := run(t, "sleep 600 & echo $! > "+file+"; wait", 1)
	if got.Blocked || got.ExitCode != -1 || !strings.Contains(got.Error, "within 1 seconds") {
		t.Errorf("%+v", got)
	}
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatal("what the hook started goes on")
		case <-tick.C:
		}
	}
}

// TestRun_OutputIsBounded: a command that prints without an end costs no memory, and one in the
// background keeps nothing waiting.
func TestRun_OutputIsBounded(t *testing.T) {
	if got := run(t, "head -c 50000000 /dev/zero | tr '\\0' a", 60); !got.Success || len(got.Stdout) != maxOutput {
		t.Errorf("%d bytes, %+v", len(got.Stdout), got.Error)
	}
	if got := run(t, "sleep 30 & echo $!; exit 2", 20); !got.Blocked {
		t.Errorf("%+v", got)
	} else if pid, err := strconv.Atoi(strings.TrimSpace(got.Stdout)); err != nil ||
		syscall.Kill(pid, syscall.SIGKILL) != nil {
		t.Errorf("no command in the background: %q, %v", got.Stdout, err)
	}
}
