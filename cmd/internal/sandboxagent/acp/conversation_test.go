package acp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// memory is a conversation in memory.
type memory struct {
	mu     sync.Mutex
	events []event.Event
	sent   []event.Event
	state  map[string]json.RawMessage
}

func newMemory() *memory {
	return &memory{state: map[string]json.RawMessage{}}
}

func (m *memory) Append(events ...event.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range events {
		h := e.Envelope()
		if h.Kind = event.KindOf(e); h.ID == "" {
			h.ID = uuid.NewString()
		}
		if u, ok := e.(*event.StateUpdate); ok {
			m.state[u.Key] = u.Value
		}
	}
	m.events = append(m.events, events...)
	return nil
}

func (m *memory) Send(e event.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent = append(m.sent, e)
}

func (m *memory) Events() ([]event.Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.events), nil
}

func (m *memory) State(key string) json.RawMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state[key]
}

// say adds a message of the user.
func (m *memory) say(text string) {
	_ = m.Append(&event.Message{Head: event.Head{Source: event.SourceUser},
		LLMMessage: event.LLMMessage{Role: "user", Content: []event.Content{event.TextContent(text)}}})
}

// story is the events in short, without the state that changes by the agent.
func (m *memory) story() []string {
	events, _ := m.Events()
	var list []string
	for _, e := range events {
		switch e := e.(type) {
		case *event.Message:
			list = append(list, e.Source+": "+e.LLMMessage.Text())
		case *event.ACPToolCall:
			list = append(list, fmt.Sprintf("call %s %s", e.Title, *e.Status))
		case *event.Action:
			text, _ := finishText(e)
			list = append(list, "finish: "+text)
		case *event.Observation:
			list = append(list, "finished")
		case *event.StateUpdate:
			if e.Key == engine.KeyStatus {
				list = append(list, "status "+string(e.Value))
			}
		}
	}
	return list
}

// step runs one step beside the test.
func step(ctx context.Context, e *Engine) <-chan stepped {
	done := make(chan stepped, 1)
	go func() {
		o, err := e.Step(ctx)
		done <- stepped{o, err}
	}()
	return done
}

type stepped struct {
	outcome engine.Outcome
	err     error
}
