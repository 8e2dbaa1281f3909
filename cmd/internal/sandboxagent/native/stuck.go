package native

import (
	"bytes"
	"slices"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// The limits of repetition, in steps of the agent.
const (
	stuckWindow      = 20 // events that are looked at
	stuckSame        = 4  // one action with one observation
	stuckErrors      = 3  // one action with errors: the agent is told, once
	stuckMonologue   = 3  // messages in a row
	stuckAlternating = 6  // two actions that alternate
)

const nudgeErrors = "The same call has failed several times. Do not repeat it: read the error, find its cause, " +
	"and try another way. If there is none, say what stops you."

// repeats looks for an agent that repeats itself. It hints at repeated errors once before the
// conversation is stuck.
func (e *Engine) repeats() (engine.Outcome, error) {
	if !e.flag(engine.KeyStuckDetection, true) {
		return engine.Continue, nil
	}
	events, err := e.conv.Events()
	if err != nil {
		return engine.Continue, err
	}
	turns := turnsOf(events)
	failures := sameErrors(turns)
	switch {
	case monologue(events) >= stuckMonologue, failures > stuckErrors,
		sameResults(turns, 1) >= stuckSame, sameResults(turns, 2) >= stuckAlternating:
		return engine.Stuck, nil
	case failures == stuckErrors && !hinted(events):
		return engine.Continue, e.conv.Append(nudge(nudgeErrors))
	}
	return engine.Continue, nil
}

// hinted reports whether the agent was told of its latest error already.
func hinted(events []event.Event) bool {
	for _, e := range slices.Backward(events) {
		switch e := e.(type) {
		case *event.AgentError:
			return false
		case *event.Message:
			if e.Source == event.SourceEnvironment && e.LLMMessage.Text() == nudgeErrors {
				return true
			}
		}
	}
	return false
}

// turn is an action with its result.
type turn struct {
	action *event.Action
	result event.Event
}

// turnsOf returns the actions since the last user message that have a result, from the last events
// that count.
func turnsOf(events []event.Event) []turn {
	var recent []event.Event
	for _, e := range slices.Backward(events) {
		if m, is := e.(*event.Message); is && m.Source == event.SourceUser || len(recent) == stuckWindow {
			break
		}
		switch e.(type) {
		case *event.Action, *event.Observation, *event.AgentError, *event.UserReject:
			recent = append(recent, e)
		}
	}
	slices.Reverse(recent)
	var turns []turn
	for i, e := range recent {
		a, is := e.(*event.Action)
		if !is {
			continue
		}
		for _, r := range recent[i+1:] {
			if id, is := resultOf(r); is && id == a.ToolCallID {
				turns = append(turns, turn{a, r})
				break
			}
		}
	}
	return turns
}

// monologue counts the agent's messages at the end, hints of the environment between them aside.
func monologue(events []event.Event) int {
	n := 0
	for _, e := range slices.Backward(events) {
		switch e := e.(type) {
		case *event.Message:
			if e.Source == event.SourceUser {
				return n
			}
			if e.Source == event.SourceAgent {
				n++
			}
		case *event.Action, *event.Observation, *event.AgentError:
			return n
		}
	}
	return n
}

// sameErrors counts the turns at the end with one action and errors.
func sameErrors(turns []turn) int {
	n := 0
	for _, t := range slices.Backward(turns) {
		if _, failed := t.result.(*event.AgentError); !failed || !sameAction(t.action, turns[len(turns)-1].action) {
			return n
		}
		n++
	}
	return n
}

// sameResults counts the turns at the end that repeat every period turns, with equal results.
// Period 2 does not count turns that are all the same.
func sameResults(turns []turn, period int) int {
	n := len(turns)
	if n < period {
		return 0
	}
	if period == 2 && sameAction(turns[n-1].action, turns[n-2].action) {
		return 0
	}
	count := period
	for i := n - period - 1; i >= 0; i-- {
		if !sameAction(turns[i].action, turns[i+period].action) || !sameResult(turns[i].result, turns[i+period].result) {
			break
		}
		count++
	}
	if _, failed := turns[n-1].result.(*event.AgentError); failed && period == 1 {
		return 0 // counted by sameErrors
	}
	return count
}

// sameAction compares two calls but for their ids. Invalid calls are compared by their arguments,
// so that an agent that corrects them is not taken for one that repeats them.
func sameAction(a, b *event.Action) bool {
	if a.Source != b.Source || a.ToolName != b.ToolName || !slices.Equal(a.Thought, b.Thought) ||
		!bytes.Equal(a.Action, b.Action) {
		return false
	}
	return a.Valid() || a.ToolCall.Arguments == b.ToolCall.Arguments
}

// sameResult compares two results but for their ids.
func sameResult(a, b event.Event) bool {
	switch a := a.(type) {
	case *event.Observation:
		o, is := b.(*event.Observation)
		return is && bytes.Equal(a.Observation, o.Observation)
	case *event.AgentError:
		o, is := b.(*event.AgentError)
		return is && a.Error == o.Error
	case *event.UserReject:
		_, is := b.(*event.UserReject)
		return is
	}
	return false
}
