package agentserver

import (
	"math"
	"net/http"
	"path"
	"time"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

// startCommand reads a command request and starts it, or responds with the error.
func (s *Server) startCommand(w http.ResponseWriter, r *http.Request) *command {
	o, ok := readObject(w, r)
	if !ok {
		return nil
	}
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
	if refused(w, o) {
		return nil
	}
	c, err := s.bash.start(*text, dir, timeout)
	if err != nil {
		writeDetail(w, http.StatusServiceUnavailable, "Too many commands are running")
		return nil
	}
	return c
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

// handleBashSearch handles GET /api/bash/bash_events/search for the outputs of one command. Here
// command_id__eq is required.
func (s *Server) handleBashSearch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, ok := limitOf(w, q)
	if !ok {
		return
	}
	out := agent.Page[agent.BashOutput]{Items: []agent.BashOutput{}}
	c := s.bash.get(q.Get("command_id__eq"))
	if c == nil || (q.Get("kind__eq") != "" && q.Get("kind__eq") != "BashOutput") {
		writeJSON(w, http.StatusOK, out)
		return
	}
	after := -1
	if text := q.Get("order__gt"); text != "" {
		var problems decode.Problems
		n := decode.Query{Values: q, Problems: &problems}.Integer("order__gt", -1, math.MinInt32, math.MaxInt32)
		if problems.Err() != nil {
			writeInvalid(w, problems.List)
			return
		}
		after = int(n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.finished {
		c.seal(false)
	}
	for _, e := range c.outputs {
		if e.Order <= after {
			continue
		}
		if len(out.Items) == limit {
			out.NextPageID = &e.ID
			break
		}
		out.Items = append(out.Items, e)
	}
	writeJSON(w, http.StatusOK, out)
}
