package conversationapi

import (
	"errors"
	"net/http"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
)

// HandleRun handles POST /api/conversations/{id}/run.
func (a *API) HandleRun(w http.ResponseWriter, r *http.Request) {
	c := a.find(w, r)
	if c == nil {
		return
	}
	err := a.conversations.StartRun(c)
	if errors.Is(err, conversation.ErrRunning) {
		wire.WriteDetail(w, http.StatusConflict, "Conversation already running. Wait for completion or pause first.")
		return
	}
	a.done(w, r, err)
}

// HandlePause handles POST /api/conversations/{id}/pause: after the present step.
func (a *API) HandlePause(w http.ResponseWriter, r *http.Request) {
	if c := a.known(w, r); c != nil {
		a.doneOr(w, r, a.conversations.Pause(c, resumes(r)), http.StatusBadRequest, "Bad Request")
	}
}

// HandleInterrupt handles POST /api/conversations/{id}/interrupt: at once.
func (a *API) HandleInterrupt(w http.ResponseWriter, r *http.Request) {
	if c := a.known(w, r); c != nil {
		a.doneOr(w, r, a.conversations.Interrupt(r.Context(), c, resumes(r)), http.StatusBadRequest, "Bad Request")
	}
}

// resumes reports whether what a pause stops goes on by itself after the server's next start.
func resumes(r *http.Request) bool { return r.URL.Query().Get("resume") == "true" }

// known is find for the calls that answer 400 to an unknown conversation.
func (a *API) known(w http.ResponseWriter, r *http.Request) *conversation.Conversation {
	c := a.lookup(r)
	if c == nil {
		wire.WriteDetail(w, http.StatusBadRequest, "Bad Request")
	}
	return c
}

// HandlePreparePause handles POST /api/conversations/prepare-for-sandbox-pause. Everything is on
// disk already; it ends the engines' processes, frees the indexes in memory and sends the webhooks.
func (a *API) HandlePreparePause(w http.ResponseWriter, r *http.Request) {
	a.conversations.PreparePause(r.Context())
	w.WriteHeader(http.StatusNoContent)
}

// HandleRespond handles POST /api/conversations/{id}/events/respond_to_confirmation.
func (a *API) HandleRespond(w http.ResponseWriter, r *http.Request) {
	c := a.find(w, r)
	if c == nil {
		return
	}
	o, ok := wire.ReadObject(w, r)
	if !ok {
		return
	}
	accept := o.Boolean("accept")
	if o.Value("accept") == nil {
		wire.Missing(o, "accept")
	}
	reason := wire.TextOr(o.Text("reason", wire.MaxReason), "User rejected the action")
	if wire.Refused(w, o) {
		return
	}
	err := a.conversations.Respond(c, *accept, reason)
	if errors.Is(err, conversation.ErrNotAsked) || errors.Is(err, conversation.ErrRunning) {
		wire.WriteDetail(w, http.StatusConflict, "No action waits for a confirmation")
		return
	}
	a.done(w, r, err)
}
