package native

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// definitions are the tools as a model is told of them.
func definitions(box *toolbox) []openai.Tool {
	var list []openai.Tool
	for _, t := range box.tools {
		d := t.Definition()
		list = append(list, openai.Tool{Type: openai.ToolTypeFunction, Function: &openai.FunctionDefinition{
			Name: d.Name, Description: d.Description, Parameters: d.Parameters,
		}})
	}
	return list
}

// answered stores a model's answer and its stats, and executes its calls, unless the user confirms
// them first.
func (e *Engine) answered(
	ctx context.Context,
	box *toolbox,
	a *answer,
	events []event.Event,
	stats event.Event,
) (engine.Outcome, error) {
	if a.id == "" {
		a.id = "response_" + uuid.NewString()
	}
	if len(a.calls) > 0 {
		return e.called(ctx, box, a, events, stats)
	}
	if a.finish == "content_filter" {
		if err := e.conv.Append(stats); err != nil {
			return engine.Continue, err
		}
		return engine.Continue, e.filtered("", events)
	}
	m := &event.Message{
		Head: event.Head{Source: event.SourceAgent},
		LLMMessage: event.LLMMessage{
			Role: "assistant", Content: []event.Content{event.TextContent(a.text)}, ReasoningContent: optional(a.reasoning),
		},
		LLMResponseID: &a.id, ActivatedSkills: []string{}, ExtendedContent: []event.Text{},
	}
	if strings.TrimSpace(a.text) == "" {
		hint := nudgeEmpty
		if a.finish == cutOff {
			hint = nudgeCut
		}
		return engine.Continue, e.conv.Append(m, stats, nudge(hint))
	}
	if err := e.conv.Append(m, stats); err != nil || a.finish != cutOff {
		return engine.Finished, err
	}
	return engine.Continue, &engine.Failure{
		Code: codeOutput, Detail: fmt.Sprintf("The limit of output cut the answer and %d continuations of it. "+
			"Raise the model's limit, or ask for less at once.", mostContinued),
	}
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// called stores the calls of an answer, with the errors of those that are not valid.
func (e *Engine) called(
	ctx context.Context,
	box *toolbox,
	a *answer,
	events []event.Event,
	stats event.Event,
) (engine.Outcome, error) {
	used := callIDs(events)
	var list []event.Event
	var valid []*event.Action
	for i, c := range a.calls {
		item := a.items[c.ID]
		c.ID = freshID(used, c.ID)
		action, problem := e.action(box, a.id, c)
		if i == len(a.calls)-1 && a.cutCall() {
			problem = "The limit of output cut this call before its arguments were complete, and it was not executed. " +
				"Make it shorter, or do it in several calls."
		}
		action.ResponsesReasoningItem = item
		if a.api == preset.Responses {
			action.ToolCall.Origin = "responses"
		}
		if i == 0 {
			action.ReasoningContent = optional(a.reasoning)
			action.ThinkingBlocks = append(action.ThinkingBlocks, a.blocks...)
			if strings.TrimSpace(a.text) != "" {
				action.Thought = []event.Text{event.NewText(a.text)}
			}
		}
		list = append(list, action)
		if problem != "" {
			list = append(list, &event.AgentError{
				Head: event.Head{Source: event.SourceAgent}, ToolName: c.Function.Name, ToolCallID: c.ID, Error: problem,
				Classification: event.Classification{Kind: "agent_action", Retryable: true, UserAction: "none"},
			})
			continue
		}
		valid = append(valid, action)
		if c.Function.Name == tools.FinishName {
			break // what follows can't be meant
		}
	}
	if err := e.conv.Append(append(list, stats)...); err != nil {
		return engine.Continue, err
	}
	if len(valid) == 0 {
		return engine.Continue, nil
	}
	if e.asks(valid) {
		return engine.Waiting, nil
	}
	return e.execute(ctx, box, valid)
}

// action is the event of a call, and what is wrong with the call.
func (e *Engine) action(box *toolbox, response string, c openai.ToolCall) (action *event.Action, problem string) {
	name, arguments := c.Function.Name, c.Function.Arguments
	if strings.TrimSpace(arguments) == "" {
		arguments = "{}"
	}
	action = &event.Action{
		Head: event.Head{Source: event.SourceAgent}, Thought: []event.Text{}, ThinkingBlocks: []event.ThinkingBlock{},
		Action: json.RawMessage("null"), ToolName: name, ToolCallID: c.ID, LLMResponseID: response, SecurityRisk: riskUnknown,
		ToolCall: event.ToolCall{ID: c.ID, Name: name, Arguments: object(arguments), Origin: "completion"},
	}
	tool := box.find(name)
	if tool == nil {
		return action, fmt.Sprintf("There is no tool %q. The tools are: %s.", name, strings.Join(box.names(), ", "))
	}
	if err := objectError(arguments); err != nil {
		return action, fmt.Sprintf("The arguments of %s are not a JSON object: %v. Call it again with valid JSON.", name, err)
	}
	call, err := tool.Parse(arguments)
	if err != nil {
		return action, err.Error()
	}
	action.Action = call.Action
	action.Summary = optional(cmp.Or(call.Summary, name+": "+arguments))
	if e.analyzes() {
		action.SecurityRisk = cmp.Or(call.SecurityRisk, riskUnknown)
	}
	return action, ""
}

// objectError says why a text is not a JSON object.
func objectError(text string) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return err
	}
	if object == nil {
		return fmt.Errorf("it is null")
	}
	return nil
}

// object returns arguments that are a JSON object: those of a broken call are replaced, since
// servers refuse a history that has them.
func object(arguments string) string {
	err := objectError(arguments)
	if err == nil {
		return arguments
	}
	replaced, _ := json.Marshal(map[string]any{
		"_openhands_malformed_tool_call": true,
		"error":                          err.Error(),
	}) // texts always encode
	return string(replaced)
}

// callIDs are the ids of the calls so far.
func callIDs(events []event.Event) map[string]bool {
	used := map[string]bool{}
	for _, ev := range events {
		if a, is := ev.(*event.Action); is {
			used[a.ToolCallID] = true
		}
	}
	return used
}

// freshID returns the call's id, or a new one if it was used before: some models count the calls
// of each answer anew.
func freshID(used map[string]bool, id string) string {
	if id == "" || used[id] {
		id = "call_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	}
	used[id] = true
	return id
}
