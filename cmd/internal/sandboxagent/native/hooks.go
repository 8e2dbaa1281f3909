package native

import (
	"context"
	"encoding/json"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/hooks"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
)

// allows runs the hooks that come before an action. If one forbids it, the action's result says so.
func (e *Engine) allows(ctx context.Context, a *event.Action) (bool, error) {
	in := hooks.Input{EventType: "PreToolUse", ToolName: a.ToolName, ToolInput: a.Action}
	reason, err := e.runHooks(ctx, hooks.PreToolUse, in, &a.ID)
	if err != nil || reason == nil {
		return err == nil, err
	}
	return false, e.conv.Append(&event.UserReject{
		Head:     event.Head{Source: event.SourceEnvironment},
		ToolName: a.ToolName, ToolCallID: a.ToolCallID, ActionID: a.ID, RejectionReason: *reason, RejectionSource: "hook",
	})
}

// executed runs the hooks that come after an action. They forbid nothing.
func (e *Engine) executed(ctx context.Context, a *event.Action, result []event.Event) error {
	o, is := result[0].(*event.Observation)
	if !is {
		return nil
	}
	in := hooks.Input{EventType: "PostToolUse", ToolName: a.ToolName, ToolInput: a.Action, ToolResponse: o.Observation}
	_, err := e.runHooks(ctx, hooks.PostToolUse, in, &a.ID)
	return err
}

// mayStop runs the hooks that come before the end of a run. If one forbids it, the model is told why
// and goes on.
func (e *Engine) mayStop(ctx context.Context) (engine.Outcome, error) {
	reason, err := e.runHooks(ctx, hooks.Stop, hooks.Input{EventType: "Stop"}, nil)
	if err != nil || reason == nil {
		return engine.Finished, err
	}
	return engine.Continue, e.conv.Append(nudge("A hook does not let you stop: " + *reason))
}

// runHooks runs the hooks of an event in turn until a hook forbids it, and returns that hook's reason.
func (e *Engine) runHooks(ctx context.Context, kind string, in hooks.Input, action *string) (*string, error) {
	in.SessionID, in.WorkingDir = e.setup.ID, e.setup.WorkingDir
	p := hooks.Process{Env: e.setup.Environ, Credential: e.setup.Credential}
	for _, d := range e.hooks.For(kind, in.ToolName) {
		if d.Async {
			e.background.Go(func() { _ = e.told(in, d, d.Run(e.life, in, p), action) }) // nobody waits for it
			continue
		}
		r := d.Run(ctx, in, p)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := e.told(in, d, r, action); err != nil {
			return nil, err
		}
		if r.Blocked {
			reason := tools.Mask(e.secretValues(), r.Reason)
			return &reason, nil
		}
	}
	return nil, nil
}

// told stores what a hook said.
func (e *Engine) told(in hooks.Input, d hooks.Definition, r hooks.Result, action *string) error {
	secrets := e.secretValues()
	mask := func(text string) string { return tools.Mask(secrets, text) }
	optional := func(text string) *string {
		if text == "" {
			return nil
		}
		text = mask(text)
		return &text
	}
	return e.conv.Append(&event.HookExecution{
		Head: event.Head{Source: event.SourceHook}, HookEventType: in.EventType, HookCommand: mask(d.Command),
		Success: r.Success, ExitCode: r.ExitCode, Blocked: r.Blocked, Stdout: mask(r.Stdout), Stderr: mask(r.Stderr),
		ToolName: optional(in.ToolName), Reason: optional(r.Reason), AdditionalContext: optional(r.Context),
		Error:    optional(r.Error),
		ActionID: action,
	})
}

// readHooks reads the conversation's hooks; nil for none.
func readHooks(raw json.RawMessage) (*hooks.Config, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	return hooks.Parse(raw)
}
