package agentserver

import (
	"errors"
	"net/http"
)

// handleRun handles POST /api/conversations/{id}/run.
func (s *Server) handleRun(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	c.control.Lock()
	err := s.start(c)
	c.control.Unlock()
	if errors.Is(err, errRunning) {
		writeDetail(w, http.StatusConflict, "Conversation already running. Wait for completion or pause first.")
		return
	}
	s.done(w, r, err, http.StatusNotFound, "Not Found")
}

// handlePause handles POST /api/conversations/{id}/pause: after the present step.
func (s *Server) handlePause(w http.ResponseWriter, r *http.Request) {
	if c := s.known(w, r); c != nil {
		s.done(w, r, s.pause(c), http.StatusBadRequest, "Bad Request")
	}
}

// handleInterrupt handles POST /api/conversations/{id}/interrupt: at once.
func (s *Server) handleInterrupt(w http.ResponseWriter, r *http.Request) {
	if c := s.known(w, r); c != nil {
		s.done(w, r, s.interrupt(r.Context(), c), http.StatusBadRequest, "Bad Request")
	}
}

// known is find for the calls that answer 400 to an unknown conversation.
func (s *Server) known(w http.ResponseWriter, r *http.Request) *conversation {
	c := s.lookup(r)
	if c == nil {
		writeDetail(w, http.StatusBadRequest, "Bad Request")
	}
	return c
}

// handlePreparePause handles POST /api/conversations/prepare-for-sandbox-pause. Everything is on
// disk already; it ends the engines' processes, frees the indexes in memory and sends the webhooks.
func (s *Server) handlePreparePause(w http.ResponseWriter, r *http.Request) {
	s.unload()
	s.webhooks.flush(r.Context())
	w.WriteHeader(http.StatusNoContent)
}

// handleRespond handles POST /api/conversations/{id}/events/respond_to_confirmation.
func (s *Server) handleRespond(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	o, ok := readObject(w, r)
	if !ok {
		return
	}
	accept := o.Boolean("accept")
	if o.Value("accept") == nil {
		missing(o, "accept")
	}
	reason := textOr(o.Text("reason", maxReason), "User rejected the action")
	if refused(w, o) {
		return
	}
	err := s.respond(c, *accept, reason)
	if errors.Is(err, errNotAsked) || errors.Is(err, errRunning) {
		writeDetail(w, http.StatusConflict, "No action waits for a confirmation")
		return
	}
	s.done(w, r, err, http.StatusNotFound, "Not Found")
}
