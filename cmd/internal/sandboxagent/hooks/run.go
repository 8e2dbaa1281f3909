package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// exitBlocks is the exit code by which a command forbids what it was asked about.
	exitBlocks = 2
	// maxOutput bounds what is kept of each output of a command, in bytes.
	maxOutput = 30_000
	// outputTime is how long a command's outputs may stay open after its end.
	outputTime = time.Second
)

// Input is what a command reads on its standard input, as JSON.
type Input struct {
	// EventType is the event in PascalCase, such as PreToolUse.
	EventType string `json:"event_type"`
	ToolName  string `json:"tool_name,omitempty"`
	// ToolInput is the action, ToolResponse the observation.
	ToolInput    json.RawMessage `json:"tool_input,omitempty"`
	ToolResponse json.RawMessage `json:"tool_response,omitempty"`
	Message      string          `json:"message,omitempty"`
	SessionID    string          `json:"session_id"`
	WorkingDir   string          `json:"working_dir"`
}

// Process says how a command runs: in which environment and as which user, nil for the caller's own.
type Process struct {
	Env        []string
	Credential *syscall.Credential
}

// Result is what a command said. A command that fails or takes too long forbids nothing.
type Result struct {
	Success, Blocked bool
	// ExitCode is -1 for a command that did not end by itself.
	ExitCode       int
	Stdout, Stderr string
	Reason         string
	// Context is text for the model.
	Context string
	Error   string
}

// Run runs the command in in.WorkingDir until it ends, its timeout is over or ctx ends; then it and
// what it started are killed. Exit code 2 and the decision "deny" forbid.
func (d Definition) Run(ctx context.Context, in Input, p Process) Result {
	text, err := json.Marshal(in)
	if err != nil {
		return Result{ExitCode: -1, Error: "the hook's input can't be written: " + err.Error()}
	}
	limited, cancel := context.WithTimeout(ctx, time.Duration(d.Timeout)*time.Second)
	defer cancel()
	cmd := exec.CommandContext(limited, "sh", "-c", d.Command)
	cmd.Dir, cmd.Stdin = in.WorkingDir, bytes.NewReader(text)
	cmd.Env = append(p.Env[:len(p.Env):len(p.Env)], "OPENHANDS_PROJECT_DIR="+in.WorkingDir,
		"OPENHANDS_SESSION_ID="+in.SessionID,
		"OPENHANDS_EVENT_TYPE="+in.EventType, "OPENHANDS_TOOL_NAME="+in.ToolName)
	var stdout, stderr bounded
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: p.Credential}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = outputTime
	err = cmd.Run()
	r := Result{Stdout: stdout.String(), Stderr: stderr.String()}
	if errors.Is(err, exec.ErrWaitDelay) { // it ended, and something in the background has its outputs
		err = nil
	}
	exit := (*exec.ExitError)(nil)
	switch {
	case limited.Err() != nil && err != nil:
		r.ExitCode, r.Error = -1, fmt.Sprintf("the hook did not end within %d seconds", d.Timeout)
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		r.ExitCode, r.Blocked = exit.ExitCode(), exit.ExitCode() == exitBlocks
	case err != nil:
		r.ExitCode, r.Error = -1, "the hook failed: "+err.Error()
	default:
		r.Success = true
	}
	r.read()
	return r
}

// read reads the decision that a command may print.
func (r *Result) read() {
	var said struct {
		Decision *string `json:"decision"`
		Reason   *string `json:"reason"`
		Context  *string `json:"additionalContext"`
		Continue *bool   `json:"continue"`
	}
	if r.Error == "" && json.Unmarshal([]byte(r.Stdout), &said) == nil {
		if said.Decision != nil && strings.EqualFold(*said.Decision, "deny") || said.Continue != nil && !*said.Continue {
			r.Blocked = true
		}
		if said.Reason != nil {
			r.Reason = *said.Reason
		}
		if said.Context != nil {
			r.Context = *said.Context
		}
	}
	if r.Blocked && r.Reason == "" {
		r.Reason = strings.TrimSpace(r.Stderr)
	}
	if r.Blocked && r.Reason == "" {
		r.Reason = "A hook forbids it"
	}
}

// bounded keeps the first maxOutput bytes.
type bounded struct{ kept bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	b.kept.Write(p[:min(len(p), maxOutput-b.kept.Len())])
	return len(p), nil
}

func (b *bounded) String() string { return strings.ToValidUTF8(b.kept.String(), "\uFFFD") }
