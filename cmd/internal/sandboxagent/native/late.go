package native

import (
	"encoding/json"
	"slices"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

var _ engine.Reader = (*Engine)(nil)

// lateState is the native engine's agent_state: the messages that came while the model wrote the answer
// before it. They are stored before that answer, and the model reads them after it.
type lateState struct {
	Late []string `json:"late_message_ids"`
}

// reads notes that the model is given these events.
func (e *Engine) reads(events []event.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastRead = events[len(events)-1].Envelope().ID
}

// LastRead implements engine.Reader.
func (e *Engine) LastRead() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lastRead
}

// late stores which messages came between the request with these events and its answer.
func (e *Engine) late(read []event.Event) error {
	events, err := e.conv.Events()
	if err != nil {
		return err
	}
	var late lateState
	for _, ev := range events[len(read):] {
		if _, acts := ev.(*event.Action); acts || ev.Envelope().Source == event.SourceAgent {
			break // the answer
		}
		if m, is := ev.(*event.Message); is && m.Source == event.SourceUser {
			late.Late = append(late.Late, m.ID)
		}
	}
	if late.Late == nil {
		return nil
	}
	return e.conv.Append(engine.Update(engine.KeyAgentState, late))
}

// moved puts the late messages that a state update names behind the answer before it.
func moved(shown []event.Event, u *event.StateUpdate) []event.Event {
	var late lateState
	if u.Key != engine.KeyAgentState || json.Unmarshal(u.Value, &late) != nil {
		return shown
	}
	for _, id := range late.Late {
		n := slices.IndexFunc(shown, func(e event.Event) bool { return e.Envelope().ID == id })
		if n >= 0 {
			m := shown[n]
			shown = append(slices.Delete(shown, n, n+1), m)
		}
	}
	return shown
}
