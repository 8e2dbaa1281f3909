package agentserver

import (
	"net/http"
	"path"
	"strconv"
	"time"
)

// startCommand reads a command request and starts it, or answers the error.
func (s *Server) startCommand(w http.ResponseWriter, r *http.Request) *command {
	m := readObject(w, r)
	if m == nil {
		return nil
	}
	var d reader
	text := d.str(m, "command")
	if text == nil && m["command"] == nil {
		d.missing("command")
	}
	dir := d.str(m, "cwd")
	if dir != nil && !path.IsAbs(*dir) {
		d.value("cwd must be an absolute path", *dir, "cwd")
	}
	timeout := time.Duration(d.positive(m, "timeout", int64(defaultTimeout/time.Second))) * time.Second
	if timeout <= 0 || timeout > maxTimeout {
		d.fail("less_than_equal", "Input should be less than or equal to 86400", nil, "timeout")
	}
	if len(d.errs) > 0 {
		writeInvalid(w, d.errs)
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

// handleBashExecute handles POST /api/bash/execute_bash_command: it waits for
// the end and answers the last output, as the protocol has it.
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
	// The end is an event of its own here; the output before it goes along.
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

// handleBashSearch handles GET /api/bash/bash_events/search for the outputs of
// one command (command_id__eq is required here).
func (s *Server) handleBashSearch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, ok := limitOf(w, q)
	if !ok {
		return
	}
	out := page[bashOutput]{Items: []bashOutput{}}
	c := s.bash.get(q.Get("command_id__eq"))
	if c == nil || (q.Get("kind__eq") != "" && q.Get("kind__eq") != "BashOutput") {
		writeJSON(w, http.StatusOK, out)
		return
	}
	after := -1
	if text := q.Get("order__gt"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			writeInvalid(w, []fieldError{{Type: "int_parsing", Loc: []string{"query", "order__gt"},
				Msg: "Input should be a valid integer, unable to parse string as an integer", Input: text}})
			return
		}
		after = n
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
