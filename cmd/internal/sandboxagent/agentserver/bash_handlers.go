package agentserver

import (
	"net/http"
	"path"
	"strings"
	"time"

	"bivouac.dev/bivouac/httpapi/decode"
)

// startCommand reads a command request and starts it, or responds with the error.
func (s *Server) startCommand(w http.ResponseWriter, r *http.Request) *command {
	o, ok := readObject(w, r)
	if !ok {
		return nil
	}
	req := readCommand(o)
	if refused(w, o) {
		return nil
	}
	c, err := s.bash.start(req.text, req.dir, req.timeout, req.env)
	if err != nil {
		writeDetail(w, http.StatusServiceUnavailable, "Too many commands are running")
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
	text := o.Text("command", maxText)
	if o.Value("command") == nil {
		missing(o, "command")
	}
	dir := o.Text("cwd", maxText)
	if dir != nil && !path.IsAbs(*dir) {
		o.Rule("cwd", "cwd must be an absolute path")
	}
	timeout := time.Duration(positive(o, "timeout", int64(defaultTimeout/time.Second))) * time.Second
	if timeout <= 0 || timeout > maxTimeout {
		o.Fail("timeout", nil, decode.LessEqual(int64(maxTimeout/time.Second)))
	}
	return commandRequest{text: textOr(text, ""), dir: dir, timeout: timeout, env: readCommandEnv(o)}
}

// readCommandEnv reads what is added to the command's environment: texts, which are neither stored nor
// shown.
func readCommandEnv(o decode.Object) map[string]string {
	dict, ok := o.Masked().Dict("env")
	if !ok {
		return nil
	}
	env := dict.TextMap(maxText, maxText)
	for name := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(env[name], 0) {
			dict.Rule(name, "this is not a variable of the environment")
		}
	}
	return env
}

// handleBashStart handles POST /api/bash/start_bash_command.
func (s *Server) handleBashStart(w http.ResponseWriter, r *http.Request) {
	if c := s.startCommand(w, r); c != nil {
		writeJSON(w, http.StatusOK, c.info)
	}
}

// handleBashExecute handles POST /api/bash/execute_bash_command. It waits for the end and responds
// with the last output, as the protocol requires.
func (s *Server) handleBashExecute(w http.ResponseWriter, r *http.Request) {
	c := s.startCommand(w, r)
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
	writeJSON(w, http.StatusOK, last)
}
