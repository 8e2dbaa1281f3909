package conversation

import (
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent"
)

// Create stores a conversation and starts the run of its initial message, if it has one. If the id
// exists, it returns that conversation and created is false. request is the create request, to be
// encrypted. A description without an id gets a new one.
func (s *Service) Create(
	m Meta,
	initial *agent.Message,
	request []byte,
) (c *Conversation, created bool, err error) {
	if m.ID == "" {
		m.ID = newID()
	}
	m.CreatedAt = now()
	m.UpdatedAt = m.CreatedAt
	fresh := s.store.prepare(m, request)
	c, created, err = s.store.create(fresh, s.firstEvents(fresh, initial), request)
	if !created {
		s.release(fresh)
		return c, false, err
	}
	s.logger.Info("conversation created", "conversation", c.Id)
	s.begin(c, initial != nil)
	return c, true, err
}

// firstEvents are a new conversation's first events. An initial message always runs, whatever its
// member run says; the status says so from the first moment, so that a crash before the run is told.
func (s *Service) firstEvents(c *Conversation, initial *agent.Message) []event.Event {
	if initial == nil {
		return []event.Event{statusEvent(engine.StatusIdle)}
	}
	return append(s.opening(c, messageEvent(*initial)), statusEvent(engine.StatusRunning))
}

// begin starts the run of a new conversation's initial message.
func (s *Service) begin(c *Conversation, run bool) {
	s.entitle(c)
	if !run {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == nil && !c.deleted {
		_ = s.launch(c) // fails only when the server stops
	}
}
