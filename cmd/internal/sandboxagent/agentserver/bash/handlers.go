package bash

import (
	"net/http"
	"path"
	"strings"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/httpapi/decode"
)

// startCommand reads a command request and starts it, or responds with the error.
func (b *Runner) startCommand(w http.ResponseWriter, r *http.Request) *command {
	o, ok := wire.ReadObject(w, r)
	if !ok {
		return nil
	}
	req := readCommand(o)
	if wire.Refused(w, o) {
		return nil
	}
	if req.dir != nil {
		own := b.place(*req.dir)
		req.dir = &own
	}
	c, err := b.start(req.text, req.dir, req.timeout, req.env)
	if err != nil {
		wire.WriteDetail(w, http.StatusServiceUnavailable, "Too many commands are running")
		return nil
	}
	return c
}

// commandRequest is a validated request for a command.
type commandRequest struct {
	text    string
	dir     *string
	timeout time.Duration
	env     map[string]string
}

// readCommand reads a request; it is valid if o has no problems.
func readCommand(o decode.Object) commandRequest {
	text := o.Text("command", wire.MaxText)
	if o.Value("command") == nil {
		wire.Missing(o, "command")
	}
	dir := o.Text("cwd", wire.MaxText)
	if dir != nil && !path.IsAbs(*dir) {
		o.Rule("cwd", "cwd must be an absolute path")
	}
	timeout := time.Duration(wire.Positive(o, "timeout", int64(defaultTimeout/time.Second))) * time.Second
	if timeout <= 0 || timeout > maxTimeout {
		o.Fail("timeout", nil, decode.LessEqual(int64(maxTimeout/time.Second)))
	}
	return commandRequest{text: wire.TextOr(text, ""), dir: dir, timeout: timeout, env: readCommandEnv(o)}
}

// readCommandEnv reads what is added to the command's environment: texts, which are neither stored nor
// shown.
func readCommandEnv(o decode.Object) map[string]string {
	dict, ok := o.Masked().Dict("env")
	if !ok {
		return nil
	}
	env := dict.TextMap(wire.MaxText, wire.MaxText)
	for name := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(env[name], 0) {
			dict.Rule(name, "this is not a variable of the environment")
		}
	}
	return env
}

// HandleStart handles POST /api/bash/start_bash_command.
func (b *Runner) HandleStart(w http.ResponseWriter, r *http.Request) {
	if c := b.startCommand(w, r); c != nil {
		wire.WriteJSON(w, http.StatusOK, c.info)
	}
}

// HandleExecute handles POST /api/bash/execute_bash_command. It waits for the end and responds
// with the last output, as the protocol requires.
func (b *Runner) HandleExecute(w http.ResponseWriter, r *http.Request) {
	c := b.startCommand(w, r)
	if c == nil {
		return
	}
	select {
	case <-c.done:
	case <-r.Context().Done():
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.outputs[len(c.outputs)-1]
	// Here the end is an event of its own, so the preceding output is added to it.
	for i := len(c.outputs) - 2; i >= 0 && (last.Stdout == nil || last.Stderr == nil); i-- {
		if last.Stdout == nil {
			last.Stdout = c.outputs[i].Stdout
		}
		if last.Stderr == nil {
			last.Stderr = c.outputs[i].Stderr
		}
	}
	wire.WriteJSON(w, http.StatusOK, last)
}
