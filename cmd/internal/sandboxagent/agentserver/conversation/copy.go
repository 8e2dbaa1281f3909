package conversation

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/httpapi/decode"
)

var (
	// ErrNoEvent means that a conversation has no event of this id.
	ErrNoEvent = errors.New("the conversation has no such event")
	// ErrExists means that a conversation has this id.
	ErrExists = errors.New("a conversation with this id exists")
)

// Copy is what a client wants of a copy.
type Copy struct {
	// ID is the copy's; a new one where it is empty.
	ID string
	// From is the last event to copy; nil copies all.
	From *string
	// Title and tags replace those of the source unless they are nil.
	Title        *string
	Tags         map[string]string
	ResetMetrics bool
}

// Fork stores a new, idle conversation with a copy of the events. It works in the same directory. The
// error is ErrNoEvent, ErrExists or ErrTooMany where the client is to be told.
func (s *Service) Fork(c *Conversation, q Copy) (*Conversation, error) {
	if q.ID == "" {
		q.ID = newID()
	}
	if s.store.get(q.ID) != nil {
		return nil, ErrExists
	}
	m, events, request, err := s.copyOf(c, q.From)
	if err != nil {
		return nil, err
	}
	m.ID, m.CreatedAt, m.UpdatedAt = q.ID, now(), now()
	if q.Title != nil {
		m.Title, m.Autotitle = q.Title, false
	}
	if q.Tags != nil {
		m.Tags = q.Tags
	}
	if q.ResetMetrics {
		events = append(events, engine.Update(engine.KeyStats, event.Stats{UsageToMetrics: map[string]event.Metrics{}}))
	}
	fresh := s.store.prepare(m, request)
	fresh.copying = true
	forked, created, err := s.store.create(fresh, append(events, statusEvent(engine.StatusIdle)), request)
	switch {
	case err != nil:
		return nil, err
	case !created:
		return nil, ErrExists
	}
	forked.mu.Lock()
	forked.copying = false
	forked.tellStored()
	forked.mu.Unlock()
	s.logger.Info("conversation forked", "conversation", forked.Id, "former", c.Id)
	return forked, nil
}

// copyOf is what a fork of a conversation is made of: its description, its events, which are the
// caller's own, and its create request. Actions that are open in the copy have an error there.
func (s *Service) copyOf(c *Conversation, from *string) (m Meta, events []event.Event, request []byte, err error) {
	c.mu.Lock()
	l, err := c.events()
	var raw []json.RawMessage
	until := ""
	found := from == nil
	if err == nil {
		m, request = c.meta, slices.Clone(c.request)
		all := l.entries
		if from != nil {
			var n int
			if n, found = l.byID[decode.Dashed(*from)]; found {
				all = nil
				for _, at := range l.lineage(n) {
					all = append(all, l.entries[at])
				}
			}
		}
		for _, e := range all {
			var b json.RawMessage
			if b, err = l.body(e); err != nil {
				break
			}
			raw = append(raw, b)
			until = e.ID
		}
	}
	c.mu.Unlock()
	switch {
	case err != nil:
		return Meta{}, nil, nil, err
	case !found:
		return Meta{}, nil, nil, ErrNoEvent
	}
	if request == nil {
		if request, err = s.store.request(c.Id); err != nil {
			return Meta{}, nil, nil, err
		}
	}
	state := json.RawMessage(nil)
	for _, b := range raw {
		e, err := event.Decode(b)
		if err != nil {
			return Meta{}, nil, nil, fmt.Errorf("copying an event: %w", err)
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
	source := decode.Dashed(c.Id)
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
