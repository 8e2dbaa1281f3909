package agentserver

import (
	"context"
	"errors"
	"sync"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// steps is an engine whose steps a test says. Without any it ends each run as idle.
type steps struct {
	conv engine.Conversation
	step func(ctx context.Context, e *steps, n int) (engine.Outcome, error)

	mu       sync.Mutex
	n        int
	notified int
	closed   int
}

func (e *steps) Step(ctx context.Context) (engine.Outcome, error) {
	e.mu.Lock()
	e.n++
	n := e.n
	e.mu.Unlock()
	if e.step == nil {
		return engine.Idle, nil
	}
	return e.step(ctx, e, n)
}

// Respond rejects the open actions, as the native loop does.
func (e *steps) Respond(accept bool, reason string) (bool, error) {
	if accept {
		return false, nil
	}
	events, err := e.conv.Events()
	if err != nil {
		return false, err
	}
	var list []event.Event
	for _, a := range event.OpenActions(events) {
		list = append(list,
			&event.UserReject{
				ToolName:        a.ToolName,
				ToolCallID:      a.ToolCallID,
				ActionID:        a.ID,
				RejectionReason: reason,
				RejectionSource: "user",
			})
	}
	return false, e.conv.Append(list...)
}

func (e *steps) Notify() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notified++
}

func (e *steps) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed++
	return nil
}

// act stores an action.
func (e *steps) act(id string) error {
	return e.conv.Append(&event.Action{Head: event.Head{Source: event.SourceAgent}, ToolName: "terminal", ToolCallID: id,
		Action: []byte(`{"kind":"TerminalAction","command":"true"}`), ToolCall: event.ToolCall{
			ID:        id,
			Name:      "terminal",
			Arguments: "{}",
			Origin:    "completion",
		}})
}

// observe stores the results of the open actions.
func (e *steps) observe() error {
	events, err := e.conv.Events()
	if err != nil {
		return err
	}
	for _, a := range event.OpenActions(events) {
		if err := e.conv.Append(&event.Observation{ToolName: a.ToolName, ToolCallID: a.ToolCallID, ActionID: a.ID,
			Observation: []byte(`{"kind":"TerminalObservation","content":[],"is_error":false}`)}); err != nil {
			return err
		}
	}
	return nil
}

// stepping makes the conversations' engines take these steps. The last one made is kept.
func stepping(kept **steps, step func(context.Context, *steps, int) (engine.Outcome, error)) func(*config.Config) {
	return func(cfg *config.Config) {
		cfg.NewEngine = func(_ engine.Setup, c engine.Conversation) (engine.Engine, error) {
			e := &steps{conv: c, step: step}
			if kept != nil {
				*kept = e
			}
			return e, nil
		}
	}
}

// settled waits until no run is in progress and returns the status.
func (s *server) settled(id string) string {
	s.t.Helper()
	c := s.s.conversations.Get(id)
	if c == nil {
		s.t.Fatal("there is no conversation " + id)
	}
	ended := make(chan struct{})
	go func() {
		c.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-s.t.Context().Done():
		s.t.Fatal("the run does not end")
	}
	i, err := c.Info()
	if err != nil {
		s.t.Fatal(err)
	}
	return i.ExecutionStatus
}

// kinds are the kinds of the stored events, a status as its value.
func (s *server) kinds(id string) []string {
	s.t.Helper()
	events, err := s.s.conversations.Get(id).Events()
	if err != nil {
		s.t.Fatal(err)
	}
	var list []string
	for _, e := range events {
		switch e := e.(type) {
		case *event.StateUpdate:
			list = append(list, string(e.Value))
		case *event.ConversationError:
			list = append(list, e.Code)
			s.t.Log(e.Detail)
		default:
			list = append(list, event.KindOf(e))
		}
	}
	return list
}

var errTest = errors.New("a fault of the test")

func kindsEqual(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("the events are\n%q, want\n%q", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("event %d of %q is not %q", i, got, want[i])
		}
	}
}
