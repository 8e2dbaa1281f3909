package agentserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/httpapi/decode"
)

var errNoEvent = errors.New("the conversation has no such event")

// handleFork handles POST /api/conversations/{id}/fork: a new, idle conversation with a copy of the
// events, up to from_event_id where it is given. It works in the same directory.
func (s *Server) handleFork(w http.ResponseWriter, r *http.Request) {
	c, o, ok := s.opened(w, r)
	if !ok {
		return
	}
	id, from := textOr(o.UUID("id"), ""), o.UUID("from_event_id")
	title := o.Text("title", maxTitle)
	reset := o.BooleanOr("reset_metrics", true)
	tags := readTags(o)
	if refused(w, o) {
		return
	}
	if id == "" {
		id, _ = decode.ParseUUID(newUUID())
	}
	if s.store.get(id) != nil {
		writeDetail(w, http.StatusConflict, "A conversation with this id already exists")
		return
	}
	m, events, request, err := s.copyOf(c, from)
	switch {
	case errors.Is(err, errNoEvent):
		writeDetail(w, http.StatusNotFound, "from_event_id: the conversation has no such event")
		return
	case err != nil:
		s.done(w, r, err, http.StatusNotFound, "Source conversation not found")
		return
	}
	m.ID, m.CreatedAt, m.UpdatedAt = id, now(), now()
	if title != nil {
		m.Title, m.Autotitle = title, false
	}
	if o.Value("tags") != nil {
		m.Tags = tags
	}
	if reset {
		events = append(events, engine.Update(engine.KeyStats, event.Stats{UsageToMetrics: map[string]event.Metrics{}}))
	}
	fresh := s.store.prepare(m, request)
	fresh.copying = true
	forked, created, err := s.store.create(fresh, append(events, statusEvent(engine.StatusIdle)), request)
	switch {
	case errors.Is(err, errTooMany):
		writeDetail(w, http.StatusTooManyRequests, "This sandbox holds too many conversations")
		return
	case err != nil:
		s.failed(w, r, err)
		return
	case !created:
		writeDetail(w, http.StatusConflict, "A conversation with this id already exists")
		return
	}
	forked.mu.Lock()
	forked.copying = false
	forked.mu.Unlock()
	s.logger.Info("conversation forked", "conversation", forked.id, "former", c.id)
	s.writeInfo(w, r, http.StatusCreated, forked)
}

// copyOf is what a fork of a conversation is made of: its description, its events, which are the
// caller's own, and its create request. Actions that are open in the copy have an error there.
func (s *Server) copyOf(c *conversation, from *string) (m meta, events []event.Event, request []byte, err error) {
	c.mu.Lock()
	l, err := c.events()
	var raw []json.RawMessage
	until := ""
	found := from == nil
	if err == nil {
		m, request = c.meta, slices.Clone(c.request)
		for _, e := range l.entries {
			var b json.RawMessage
			if b, err = l.body(e); err != nil {
				break
			}
			raw = append(raw, b)
			until = e.ID
			if from != nil && e.ID == decode.Dashed(*from) {
				found = true
				break
			}
		}
	}
	c.mu.Unlock()
	switch {
	case err != nil:
		return meta{}, nil, nil, err
	case !found:
		return meta{}, nil, nil, errNoEvent
	}
	if request == nil {
		if request, err = s.store.request(c.id); err != nil {
			return meta{}, nil, nil, err
		}
	}
	state := json.RawMessage(nil)
	for _, b := range raw {
		e, err := event.Decode(b)
		if err != nil {
			return meta{}, nil, nil, fmt.Errorf("copying an event: %w", err)
		}
		if u, ok := e.(*event.StateUpdate); ok && u.Key == engine.KeyAgentState {
			state = u.Value
		}
		events = append(events, e)
	}
	events = append(events,
		unfinished(event.OpenActions(events), "The conversation was forked before this tool call had a result.")...)
	if own := withoutSession(state); own != nil {
		events = append(events, engine.Update(engine.KeyAgentState, own))
	}
	source := decode.Dashed(c.id)
	m.Tags, m.ForkedFrom, m.ForkedFromEvent = maps.Clone(m.Tags), &source, &until
	return m, events, request, nil
}

// withoutSession is an ACP agent's state without its session, which stays the source's; nil if there
// is none in it. The agent then gets the history with the next prompt.
func withoutSession(state json.RawMessage) map[string]json.RawMessage {
	var members map[string]json.RawMessage
	if len(state) == 0 || json.Unmarshal(state, &members) != nil {
		return nil
	}
	if _, has := members["acp_session_id"]; !has {
		return nil
	}
	delete(members, "acp_session_id")
	return members
}

// handleNavigate handles POST /api/conversations/{id}/navigate, which is refused.
func (s *Server) handleNavigate(w http.ResponseWriter, r *http.Request) {
	c, o, ok := s.opened(w, r)
	if !ok {
		return
	}
	id := o.UUID("event_id")
	if o.Value("event_id") == nil {
		missing(o, "event_id")
	}
	if refused(w, o) {
		return
	}
	c.mu.Lock()
	l, err := c.events()
	known := err == nil && slices.ContainsFunc(l.entries, func(e eventEntry) bool { return e.ID == decode.Dashed(*id) })
	c.mu.Unlock()
	switch {
	case err != nil:
		s.done(w, r, err, http.StatusNotFound, "Conversation not found")
	case !known:
		writeDetail(w, http.StatusNotFound, "event_id: the conversation has no such event")
	default:
		writeDetail(w, http.StatusBadRequest, "A conversation has one branch here: fork it with from_event_id instead")
	}
}
