package native

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
)

// execute executes actions in their order and stores the result of each as soon as it is there.
func (e *Engine) execute(ctx context.Context, box *toolbox, actions []*event.Action) (engine.Outcome, error) {
	outcome := engine.Continue
	for _, a := range actions {
		switch allowed, err := e.allows(ctx, a); {
		case err != nil:
			return engine.Continue, err
		case !allowed:
			continue
		}
		result, err := e.result(ctx, box, a)
		if ctx.Err() != nil {
			// What an interrupted tool returned is not its result. The server says so.
			return engine.Continue, ctx.Err()
		}
		if err != nil {
			return engine.Continue, err
		}
		if err := e.conv.Append(result...); err != nil {
			return engine.Continue, err
		}
		if err := e.executed(ctx, a, result); err != nil {
			return engine.Continue, err
		}
		if a.ToolName == tools.FinishName {
			outcome = engine.Finished
		}
	}
	return outcome, nil
}

// result executes one action.
func (e *Engine) result(ctx context.Context, box *toolbox, a *event.Action) ([]event.Event, error) {
	tool := box.find(a.ToolName)
	if tool == nil {
		return []event.Event{&event.AgentError{
			Head: event.Head{Source: event.SourceAgent}, ToolName: a.ToolName, ToolCallID: a.ToolCallID,
			Error:          fmt.Sprintf("The tool %s is not there any more.", a.ToolName),
			Classification: event.Classification{Kind: "agent_action", Retryable: true, UserAction: "none"},
		}}, nil
	}
	observed := tool.Run(ctx, a.Action)
	if call, err := tool.Parse(a.ToolCall.Arguments); err == nil && len(call.Ignored) > 0 {
		observed.Content = append(slices.Clone(observed.Content), event.TextContent(fmt.Sprintf(
			"[%s has no argument %s; the call was executed without it.]", a.ToolName, strings.Join(call.Ignored, ", "))))
	}
	observation, err := json.Marshal(observed)
	if err != nil {
		return nil, fmt.Errorf("the observation of %s can't be stored: %w", a.ToolName, err)
	}
	o := &event.Observation{
		Head: event.Head{Source: event.SourceEnvironment}, ToolName: a.ToolName, ToolCallID: a.ToolCallID, ActionID: a.ID,
		Observation: observation, ExtendedContent: []event.Text{},
	}
	return append([]event.Event{o}, e.rules(a, o)...), nil
}
