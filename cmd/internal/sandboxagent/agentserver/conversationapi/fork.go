package conversationapi

import (
	"errors"
	"net/http"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/httpapi/decode"
)

// HandleFork handles POST /api/conversations/{id}/fork: a new, idle conversation with a copy of the
// events, up to from_event_id where it is given. It works in the same directory.
func (a *API) HandleFork(w http.ResponseWriter, r *http.Request) {
	c, o, ok := a.opened(w, r)
	if !ok {
		return
	}
	id, from := wire.TextOr(o.UUID("id"), ""), o.UUID("from_event_id")
	title := o.Text("title", maxTitle)
	reset := o.BooleanOr("reset_metrics", true)
	tags := readTags(o)
	if wire.Refused(w, o) {
		return
	}
	if o.Value("tags") == nil {
		tags = nil
	}
	q := conversation.Copy{ID: id, From: from, Title: title, Tags: tags, ResetMetrics: reset}
	forked, err := a.conversations.Fork(c, q)
	switch {
	case errors.Is(err, conversation.ErrNoEvent):
		wire.WriteDetail(w, http.StatusNotFound, "from_event_id: the conversation has no such event")
		return
	case errors.Is(err, conversation.ErrTooMany):
		wire.WriteDetail(w, http.StatusTooManyRequests, "This sandbox holds too many conversations")
		return
	case errors.Is(err, conversation.ErrExists):
		wire.WriteDetail(w, http.StatusConflict, "A conversation with this id already exists")
		return
	case err != nil:
		a.doneOr(w, r, err, http.StatusNotFound, "Source conversation not found")
		return
	}
	a.writeInfo(w, r, http.StatusCreated, forked)
}

// HandleNavigate handles POST /api/conversations/{id}/navigate: the conversation goes on after an event,
// on another branch. Without one it begins anew.
func (a *API) HandleNavigate(w http.ResponseWriter, r *http.Request) {
	c, o, ok := a.opened(w, r)
	if !ok {
		return
	}
	id := o.UUID("event_id")
	if wire.Refused(w, o) {
		return
	}
	if id != nil {
		dashed := decode.Dashed(*id)
		id = &dashed
	}
	switch err := a.conversations.Navigate(c, id); {
	case errors.Is(err, conversation.ErrNoEvent):
		wire.WriteDetail(w, http.StatusNotFound, "event_id: the conversation has no such event")
	case errors.Is(err, conversation.ErrRunning):
		wire.WriteDetail(w, http.StatusConflict, "Conversation already running. Wait for completion or pause first.")
	case err != nil:
		a.doneOr(w, r, err, http.StatusNotFound, "Conversation not found")
	default:
		a.writeInfo(w, r, http.StatusOK, c)
	}
}
