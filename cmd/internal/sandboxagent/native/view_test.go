package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	openai "github.com/sashabaranov/go-openai"
	"pgregory.net/rapid"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// history draws a list of events that a conversation may have: batches that lack results, results
// twice or of no call, ids that repeat, messages anywhere, and condensations that split what they
// must not.
func history(t *rapid.T) []event.Event {
	var events []event.Event
	add := func(e event.Event) {
		e.Envelope().ID = fmt.Sprintf("e%d", len(events))
		events = append(events, e)
	}
	ids := rapid.SampledFrom([]string{"call_0", "call_1", "call_2", "x", ""})
	result := func(id string) event.Event {
		switch rapid.IntRange(0, 2).Draw(t, "result") {
		case 0:
			return &event.Observation{ToolCallID: id, Observation: json.RawMessage(`{"kind":"ProbeObservation",` +
				`"content":[{"type":"text","text":"out"}]}`)}
		case 1:
			return &event.UserReject{ToolCallID: id, RejectionReason: "no"}
		}
		return &event.AgentError{ToolCallID: id, Error: "broken"}
	}
	for n := rapid.IntRange(0, 25).Draw(t, "events"); n > 0; n-- {
		switch rapid.IntRange(0, 7).Draw(t, "kind") {
		case 0:
			add(userMessage(rapid.SampledFrom([]string{event.SourceUser, event.SourceEnvironment}).Draw(t, "source"), "hello"))
		case 1:
			m := userMessage(event.SourceAgent, rapid.SampledFrom([]string{"", "text"}).Draw(t, "text"))
			m.LLMMessage.Role = "assistant"
			add(m)
		case 2, 3, 4:
			response := fmt.Sprintf("r%d", rapid.IntRange(0, 9).Draw(t, "response"))
			for range rapid.IntRange(1, 3).Draw(t, "calls") {
				id := ids.Draw(t, "id")
				action, arguments := json.RawMessage(`{"kind":"ProbeAction"}`), `{"text":"a"}`
				if rapid.Bool().Draw(t, "invalid") {
					action, arguments = json.RawMessage("null"), rapid.SampledFrom([]string{
						"",
						"{",
						"[]",
						"null",
						"{}",
					}).Draw(t, "arguments")
				}
				add(&event.Action{
					ToolName:      "echo",
					ToolCallID:    id,
					LLMResponseID: response,
					Action:        action,
					ToolCall:      event.ToolCall{ID: id, Arguments: arguments},
				})
				if string(action) == "null" {
					add(&event.AgentError{ToolCallID: id, Error: "not valid"})
				}
			}
		case 5, 6:
			add(result(ids.Draw(t, "id")))
		case 7:
			c := &event.Condensation{}
			for _, e := range events {
				if rapid.IntRange(0, 2).Draw(t, "forget") == 0 {
					c.ForgottenEventIDs = append(c.ForgottenEventIDs, e.Envelope().ID, e.Envelope().ID+"-summary")
				}
			}
			text, at := "what was", rapid.IntRange(0, 9).Draw(t, "offset")
			c.Summary, c.SummaryOffset = &text, &at
			add(c)
		}
	}
	if rapid.Bool().Draw(t, "system") {
		add(&event.SystemPrompt{SystemPrompt: event.NewText("You are.")})
	}
	return events
}

// asRead turns messages into what a server reads.
func asRead(list []openai.ChatCompletionMessage) []modeltest.Message {
	var out []modeltest.Message
	for _, m := range list {
		read := modeltest.Message{Role: m.Role, Text: m.Content, CallID: m.ToolCallID}
		for _, c := range m.ToolCalls {
			read.Calls = append(read.Calls, modeltest.Call{ID: c.ID, Name: c.Function.Name, Raw: c.Function.Arguments})
		}
		out = append(out, read)
	}
	return out
}

// Whatever the history, each call that a model is shown has exactly one result, right after its
// answer, each id is used once, and no message is empty.
func TestView_EveryCallHasOneResult(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := history(t)
		list := messages(view(events), true)
		if err := modeltest.CheckResults(asRead(list)); err != nil {
			t.Fatalf("%v\n%+v", err, list)
		}
		used := map[string]bool{}
		for i, m := range list {
			if m.Content == "" && len(m.MultiContent) == 0 && len(m.ToolCalls) == 0 {
				t.Fatalf("message %d is empty: %+v", i, m)
			}
			if m.Role == openai.ChatMessageRoleSystem && i > 0 {
				t.Fatalf("the system prompt is message %d", i)
			}
			for _, c := range m.ToolCalls {
				if used[c.ID] {
					t.Fatalf("the id %s is used twice", c.ID)
				}
				used[c.ID] = true
			}
		}
	})
}

// A result stands with its call whatever came between, and a lost one is named.
func TestView_Pairs(t *testing.T) {
	act := func(response, id string) *event.Action {
		return &event.Action{
			ToolName:      "echo",
			ToolCallID:    id,
			LLMResponseID: response,
			Action:        json.RawMessage(`{}`),
			ToolCall:      event.ToolCall{Arguments: "{}"},
		}
	}
	reject := func(id, reason string) *event.UserReject {
		return &event.UserReject{ToolCallID: id, RejectionReason: reason}
	}
	list := messages(view([]event.Event{
		userMessage(event.SourceUser, "first"),
		act("r1", "a"), act("r1", "b"), userMessage(event.SourceUser, "meanwhile"),
		reject("b", "b"), reject("a", "a"), reject("a", "again"),
		act("r2", "a"), reject("gone", "gone"),
	}), false)
	var got []string
	for _, m := range list {
		line := m.Role + " " + m.Content + m.ToolCallID
		for _, c := range m.ToolCalls {
			line += c.ID
		}
		got = append(got, line)
	}
	want := []string{
		"user first",
		"assistant ab",
		"tool Action rejected: aa",
		"tool Action rejected: bb",
		"user meanwhile",
		"assistant a_2",
		"tool " + noResult + "a_2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Runs with random answers, interrupts, restarts and rejections: the server accepts every history.
func TestStep_EveryHistoryIsAccepted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var answers []modeltest.Answer
		for range rapid.IntRange(1, 8).Draw(rt, "answers") {
			var a modeltest.Answer
			for i := range rapid.IntRange(0, 3).Draw(rt, "calls") {
				c := echo(fmt.Sprint(i))
				c.ID = rapid.SampledFrom([]string{"", "call_0", "call_1"}).Draw(rt, "id")
				switch rapid.IntRange(0, 5).Draw(rt, "call") {
				case 0:
					c.Name = "nothing"
				case 1:
					c.Raw = `{"text":`
				case 2:
					c = finishing("Done.")
				}
				a.Calls = append(a.Calls, c)
			}
			if len(a.Calls) == 0 {
				a.Text = rapid.SampledFrom([]string{"", "A text."}).Draw(rt, "text")
			}
			answers = append(answers, a)
		}
		policy := rapid.SampledFrom([]string{"NeverConfirm", "AlwaysConfirm"}).Draw(rt, "policy")
		breaks := rapid.SliceOfN(rapid.IntRange(0, 3), 0, 6).Draw(rt, "breaks")
		r := newRig(t, modeltest.InOrder(answers...))
		defer r.server.Down()
		defer r.Engine.Close()
		r.memory.set(t, engine.KeyConfirmationPolicy, engine.Policy{Kind: policy})
		r.say("go")
		for i := range 8 {
			p := newProbe("echo")
			ctx, cancel := context.WithCancel(t.Context())
			broken := i < len(breaks) && breaks[i] > 0
			if broken {
				r.add(&tripwire{probe: p, trip: cancel, after: breaks[i]})
			} else {
				r.add(p)
			}
			outcome, err := r.Step(ctx)
			cancel()
			var f *engine.Failure
			if errors.As(err, &f) {
				rt.Fatalf("%v\n%s", err, strings.Join(r.story(), "\n"))
			}
			if errors.Is(err, context.Canceled) {
				r.interrupted()
			}
			switch {
			case outcome == engine.Waiting && rapid.Bool().Draw(rt, "reject"):
				if _, err := r.Respond(false, "no"); err != nil {
					rt.Fatal(err)
				}
			case outcome == engine.Finished || outcome == engine.Stuck:
				r.say("on")
			}
			if rapid.Bool().Draw(rt, "restart") {
				r.restart()
			}
		}
	})
}

// tripwire interrupts the run in its nth call.
type tripwire struct {
	*probe
	trip  context.CancelFunc
	after int
}

func (w *tripwire) Run(ctx context.Context, action json.RawMessage) tools.Observation {
	if w.after--; w.after == 0 {
		w.trip()
	}
	return w.probe.Run(ctx, action)
}

// interrupted writes the errors that the server writes after an interrupt.
func (r *rig) interrupted() {
	r.t.Helper()
	for _, a := range event.OpenActions(r.events()) {
		err := r.memory.Append(&event.AgentError{
			Head: event.Head{
				Source: event.SourceAgent,
			}, ToolName: a.ToolName, ToolCallID: a.ToolCallID, Error: "Tool call interrupted before completion.",
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
}
