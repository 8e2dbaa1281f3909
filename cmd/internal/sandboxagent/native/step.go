package native

import (
	"context"
	"errors"
	"fmt"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// Step implements engine.Engine. A step executes the open actions, or condenses the history, or
// calls the model and executes what it asks for.
func (e *Engine) Step(ctx context.Context) (engine.Outcome, error) {
	outcome, err := e.step(ctx)
	if ctx.Err() != nil {
		return engine.Continue, ctx.Err()
	}
	if err == nil && outcome == engine.Finished {
		return e.mayStop(ctx)
	}
	if err != nil || outcome != engine.Continue {
		return outcome, err
	}
	return e.repeats()
}

func (e *Engine) step(ctx context.Context) (engine.Outcome, error) {
	box, err := e.open(ctx)
	if err != nil {
		return engine.Continue, err
	}
	events, err := e.conv.Events()
	if err != nil {
		return engine.Continue, err
	}
	if events, err = e.begin(events, box); err != nil {
		return engine.Continue, err
	}
	if open := event.OpenActions(events); len(open) > 0 {
		return e.execute(ctx, box, open)
	}
	model := e.model()
	if done, err := e.condense(ctx, model, events); done || err != nil {
		return engine.Continue, err
	}
	shown := e.shown(events)
	p := prompt{
		messages: messages(shown, true), thoughts: thoughtsOf(shown), tools: definitions(box),
		onDelta: e.delta, withdraw: e.withdraw,
	}
	e.reads(events)
	a, err := model.full(ctx, p)
	if err != nil {
		if err := e.spent(model, usageAgent, a); err != nil {
			return engine.Continue, err
		}
	}
	var r *refusal
	if errors.As(err, &r) {
		return engine.Continue, e.refused(r, events)
	}
	if err != nil {
		return engine.Continue, err
	}
	outcome, err := e.answered(ctx, box, a, events, e.counted(model, usageAgent, a))
	if err == nil {
		err = e.late(events)
	}
	if err == nil && outcome == engine.Continue && a.cuts > 0 {
		err = e.conv.Append(nudge(fmt.Sprintf(cutsText, a.cuts)))
	}
	return outcome, err
}

// delta sends a part of an answer.
func (e *Engine) delta(text, reasoning string) {
	d := &event.StreamingDelta{Head: event.Head{Source: event.SourceAgent}}
	if text != "" {
		d.Content = &text
	}
	if reasoning != "" {
		d.ReasoningContent = &reasoning
	}
	e.conv.Send(d)
}

// brokenOff stands in the place of what was shown of an answer that broke off.
const brokenOff = "(The answer broke off.)"

// withdraw takes back the parts of an answer that were sent: a message of the agent replaces them on
// the page. It is not stored, as they were not.
func (e *Engine) withdraw() {
	m := userMessage(event.SourceAgent, brokenOff)
	m.LLMMessage.Role = "assistant"
	e.conv.Send(m)
}

const (
	// nudgeEmpty follows an answer without a text and without a call.
	nudgeEmpty = "Your last answer had neither a text nor a tool call. Go on with a tool call, " +
		"or answer if the task is done."
	// nudgeCut follows one that the limit of output cut before that.
	nudgeCut = "Your last answer was cut by the limit of its length before it had a text or a tool call. " +
		"Think less, and write long files in parts."
	// cutsText says that the model did not see all of its last request.
	cutsText = "The model's server leaves out parts of requests above %d tokens, without a word. " +
		"The conversation is kept shorter from now on."
	// filteredText follows an answer that a content filter held back.
	filteredText = "The model's content filter blocked the last answer. Please rephrase it, or go on in another way."
	// mostFiltered is how many blocked answers in a row end the run.
	mostFiltered = 3
)

// nudge is a hint to the model that no user wrote.
func nudge(text string) *event.Message { return userMessage(event.SourceEnvironment, text) }

func userMessage(source, text string) *event.Message {
	return &event.Message{
		Head:            event.Head{Source: source},
		LLMMessage:      event.LLMMessage{Role: "user", Content: []event.Content{event.TextContent(text)}},
		ActivatedSkills: []string{}, ExtendedContent: []event.Text{},
	}
}

// refused deals with a request that the server did not accept: the history is condensed, or the
// model is asked to say it in another way.
func (e *Engine) refused(r *refusal, events []event.Event) error {
	if r.kind == refusedContent {
		return e.filtered(r.detail, events)
	}
	if !e.Condenses() {
		if r.kind == refusedHistory {
			return &engine.Failure{
				Code:   codeBadRequest,
				Detail: "The model's server refuses the history, and the condenser is off: " + r.detail,
			}
		}
		return &engine.Failure{
			Code:   codeContext,
			Detail: "The conversation is longer than the model's context, and the condenser is off: " + r.detail,
		}
	}
	return e.conv.Append(&event.CondensationRequest{Head: event.Head{Source: event.SourceEnvironment}})
}

// filtered appends the request to rephrase, unless that did not help before.
func (e *Engine) filtered(detail string, events []event.Event) error {
	n := 1
	for i := len(events) - 1; i >= 0; i-- {
		m, is := events[i].(*event.Message)
		if !is {
			if _, acted := events[i].(*event.Action); acted {
				break
			}
			continue
		}
		if m.LLMMessage.Text() != filteredText {
			break
		}
		n++
	}
	if n > mostFiltered {
		return &engine.Failure{
			Code:   codePolicy,
			Detail: "The model's content filter blocks its answers. Change the task's wording. " + detail,
		}
	}
	return e.conv.Append(userMessage(event.SourceUser, filteredText))
}
