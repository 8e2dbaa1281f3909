package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// maxOutput bounds how much of a command's output is kept, in bytes.
const maxOutput = 64 << 10

// Command is one shell command to run in a sandbox. Its text is kept by the
// agent server (bash events): no secret belongs in it.
type Command struct {
	Command string
	// Dir is absolute; empty is the server's default.
	Dir string
	// Timeout ends the command in the sandbox; whole seconds.
	Timeout time.Duration
}

// Output is what a command left.
type Output struct {
	// ExitCode is -1 when the command was ended by its timeout.
	ExitCode int
	// Stdout and Stderr are the last 64 KiB of each.
	Stdout, Stderr string
}

// RunCommand runs a command and waits for its end. A server without the call
// answers ErrRefused with status 404.
func (c *Client) RunCommand(ctx context.Context, baseURL, key string, cmd Command) (Output, error) {
	const op = "run command"
	seconds := int(cmd.Timeout / time.Second)
	if seconds < 1 {
		seconds = 300
	}
	in := map[string]any{"command": cmd.Command, "timeout": seconds}
	if cmd.Dir != "" {
		in["cwd"] = cmd.Dir
	}
	body, err := json.Marshal(in)
	if err != nil {
		return Output{}, &Error{Op: op, Kind: ErrRefused, Detail: "the command can't be encoded"}
	}
	var started struct {
		ID string `json:"id"`
	}
	r := request{op: op, method: http.MethodPost, url: baseURL + "/api/bash/start_bash_command", key: key, body: body}
	if err := c.call(ctx, c.cfg.CallTimeout, r, &started); err != nil {
		return Output{}, err
	}
	if started.ID == "" {
		return Output{}, &Error{Op: op, Kind: ErrBadAnswer, Detail: "the command has no id"}
	}
	// The sandbox ends the command itself; the margin is for reading its end.
	wait, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+30*time.Second)
	defer cancel()
	out, err := c.awaitCommand(wait, baseURL, key, started.ID)
	if err != nil && wait.Err() != nil && ctx.Err() == nil {
		return out, &Error{Op: op, Kind: ErrUnavailable, Detail: "the command did not end in its time"}
	}
	return out, err
}

type bashPage struct {
	Items []struct {
		Order    int    `json:"order"`
		ExitCode *int   `json:"exit_code"`
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
	} `json:"items"`
}

func (c *Client) awaitCommand(ctx context.Context, baseURL, key, id string) (Output, error) {
	var stdout, stderr string
	last := -1
	for pause := 50 * time.Millisecond; ; pause = min(pause*2, time.Second) {
		q := url.Values{
			"command_id__eq": {id}, "kind__eq": {"BashOutput"}, "sort_order": {"TIMESTAMP"}, "limit": {"100"},
		}
		if last >= 0 {
			q.Set("order__gt", strconv.Itoa(last))
		}
		var page bashPage
		r := request{op: "run command", method: http.MethodGet, key: key, url: baseURL + "/api/bash/bash_events/search?" + q.Encode()}
		if err := c.call(ctx, c.cfg.CallTimeout, r, &page); err != nil {
			return Output{Stdout: stdout, Stderr: stderr}, err
		}
		for _, e := range page.Items {
			if e.Order <= last {
				continue
			}
			last = e.Order
			stdout, stderr = tail(stdout+e.Stdout), tail(stderr+e.Stderr)
			if e.ExitCode != nil {
				return Output{ExitCode: *e.ExitCode, Stdout: stdout, Stderr: stderr}, nil
			}
			pause = 50 * time.Millisecond
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return Output{Stdout: stdout, Stderr: stderr}, ctx.Err()
		case <-t.C:
		}
	}
}

func tail(s string) string {
	if len(s) > maxOutput {
		s = s[len(s)-maxOutput:]
	}
	return strings.ToValidUTF8(s, "")
}
