package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent/bash"
)

// maxOutput limits how much of a command's output is kept, in bytes.
const maxOutput = 64 << 10

// Command is one shell command to run in a sandbox. The agent server stores its text (bash events),
// so it must not contain a secret.
type Command struct {
	Command string
	// Dir is absolute; empty means the server's default.
	Dir string
	// Env is added to the command's environment. The built-in server neither stores nor shows it, so it
	// may hold secrets. Upstream's server ignores it.
	Env map[string]string
	// Timeout is when the sandbox kills the command, in whole seconds. Less than a second means 300
	// s.
	Timeout time.Duration
}

// Output is a finished command's result.
type Output struct {
	// ExitCode is -1 if the command was killed: by its timeout, a signal or a restart of the agent
	// server.
	ExitCode int
	// Stdout and Stderr are the last 64 KiB of each.
	Stdout, Stderr string
}

// RunCommand runs a command and waits for its end. A server without this call returns ErrRefused
// with status 404.
func (c *Client) RunCommand(ctx context.Context, baseURL, key string, cmd Command) (Output, error) {
	id, err := c.StartCommand(ctx, baseURL, key, cmd)
	if err != nil {
		return Output{}, err
	}
	// The sandbox enforces the timeout; the margin is for reading the result.
	wait, cancel := context.WithTimeout(ctx, time.Duration(cmd.seconds())*time.Second+30*time.Second)
	defer cancel()
	out, err := c.awaitCommand(wait, baseURL, key, id)
	if err != nil && wait.Err() != nil && ctx.Err() == nil {
		return out, &Error{Op: opRunCommand, Kind: ErrUnavailable, Detail: "the command did not end in its time"}
	}
	return out, err
}

const opRunCommand = "run command"

// seconds is the command's timeout as the protocol has it.
func (cmd Command) seconds() int {
	if s := int(cmd.Timeout / time.Second); s >= 1 {
		return s
	}
	return 300
}

// StartCommand starts a command, does not wait for its end, and returns its id.
func (c *Client) StartCommand(ctx context.Context, baseURL, key string, cmd Command) (string, error) {
	in := map[string]any{"command": cmd.Command, "timeout": cmd.seconds()}
	if cmd.Dir != "" {
		in["cwd"] = cmd.Dir
	}
	if len(cmd.Env) > 0 {
		in["env"] = cmd.Env
	}
	body, err := json.Marshal(in)
	if err != nil {
		return "", &Error{Op: opRunCommand, Kind: ErrRefused, Detail: "the command can't be encoded"}
	}
	var started struct {
		ID string `json:"id"`
	}
	r := request{
		op:     opRunCommand,
		method: http.MethodPost,
		url:    baseURL + "/api/bash/start_bash_command",
		key:    key,
		body:   body,
	}
	if err := c.call(ctx, c.cfg.CallTimeout, r, &started); err != nil {
		return "", err
	}
	if started.ID == "" {
		return "", &Error{Op: opRunCommand, Kind: ErrBadAnswer, Detail: "the command has no id"}
	}
	return started.ID, nil
}

// Page is one page of a listing.
type Page[T any] struct {
	Items      []T     `json:"items"`
	NextPageID *string `json:"next_page_id"`
}

// BashCommand is a BashCommand event (PROTOCOL.md, "Commands").
type BashCommand struct {
	ID        string  `json:"id"`
	Timestamp string  `json:"timestamp"`
	Kind      string  `json:"kind"`
	Command   string  `json:"command"`
	Cwd       *string `json:"cwd"`
	Timeout   int     `json:"timeout"`
}

// BashOutput is a BashOutput event.
type BashOutput = bash.Output

func (c *Client) awaitCommand(ctx context.Context, baseURL, key, id string) (out Output, err error) {
	out.ExitCode, err = bash.Read(ctx, id, func(ctx context.Context, path string, page *bash.Page) error {
		r := request{op: opRunCommand, method: http.MethodGet, key: key, url: baseURL + path}
		return c.call(ctx, c.cfg.CallTimeout, r, page)
	}, func(one bash.Output) {
		out.Stdout = decode.Tail(out.Stdout+decode.OrZero(one.Stdout), maxOutput)
		out.Stderr = decode.Tail(out.Stderr+decode.OrZero(one.Stderr), maxOutput)
	})
	return out, err
}
