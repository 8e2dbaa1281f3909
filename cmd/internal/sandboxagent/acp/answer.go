package acp

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// finish stores the end of a turn.
func (e *Engine) finish(s *session, t *turn, a promptAnswer) (engine.Outcome, error) {
	stats := e.stats(s, t, a)
	if a.StopReason == "refusal" {
		return 0, e.broken(&engine.Failure{Code: codeRefusal, Source: event.SourceAgent,
			Detail: cmp.Or(e.masked(t.text.String()), "The agent refused to go on with this message.")}, stats)
	}
	if t.rejected {
		// The user said no, and the agent stopped without a word.
		if err := e.conversation.Append(stats); err != nil {
			return 0, err
		}
		return engine.Idle, nil
	}
	text := cmp.Or(strings.TrimSpace(e.masked(t.text.String())), noResponse)
	arguments, err := json.Marshal(map[string]string{"message": text})
	if err != nil {
		return 0, err
	}
	action, err := json.Marshal(map[string]string{"kind": "FinishAction", "message": text})
	if err != nil {
		return 0, err
	}
	result, err := json.Marshal(map[string]any{
		"kind":     "FinishObservation",
		"content":  []event.Text{event.NewText(text)},
		"is_error": false,
	})
	if err != nil {
		return 0, err
	}
	id := "call_" + uuid.NewString()
	done := &event.Action{
		Head: event.Head{
			Source: event.SourceAgent,
			ID:     uuid.NewString(),
		}, Thought: []event.Text{}, ThinkingBlocks: []event.ThinkingBlock{},
		Action: action, ToolName: "finish", ToolCallID: id, LLMResponseID: uuid.NewString(), SecurityRisk: "UNKNOWN",
		ToolCall: event.ToolCall{ID: id, Name: "finish", Arguments: string(arguments), Origin: "completion"},
	}
	if thought := e.masked(t.thought.String()); thought != "" {
		done.ReasoningContent = &thought
	}
	return engine.Finished, e.conversation.Append(done, &event.Observation{
		Head: event.Head{Source: event.SourceEnvironment}, ToolName: "finish", ToolCallID: id, ActionID: done.ID,
		Observation: result, ExtendedContent: []event.Text{},
	}, stats)
}

// broken stores the message that tells a failure of a turn, with more events, and returns the failure.
func (e *Engine) broken(f *engine.Failure, more ...event.Event) error {
	list := append([]event.Event{agentMessage("ACP error: " + f.Detail)}, more...)
	if err := e.conversation.Append(list...); err != nil {
		return err
	}
	return f
}

func agentMessage(text string) *event.Message {
	return &event.Message{
		Head: event.Head{Source: event.SourceAgent}, ActivatedSkills: []string{}, ExtendedContent: []event.Text{},
		LLMMessage: event.LLMMessage{Role: "assistant", Content: []event.Content{event.TextContent(text)}},
	}
}

// stats adds a turn's tokens and cost to the conversation's.
func (e *Engine) stats(s *session, t *turn, a promptAnswer) event.Event {
	var all event.Stats
	_ = json.Unmarshal(e.conversation.State(engine.KeyStats), &all) // none is zero
	if all.UsageToMetrics == nil {
		all.UsageToMetrics = map[string]event.Metrics{}
	}
	name := cmp.Or(s.info.CurrentModel, e.llm().Model, "default")
	m := all.UsageToMetrics["agent"]
	m.ModelName = name
	u := &m.AccumulatedTokenUsage
	u.Model = name
	if a.Usage != nil {
		u.PromptTokens += int64(a.Usage.Input)
		u.CompletionTokens += int64(a.Usage.Output)
		u.CacheReadTokens += int64(a.Usage.CacheRead)
		u.CacheWriteTokens += int64(a.Usage.CacheWrite)
		u.ReasoningTokens += int64(a.Usage.Thought)
		u.PerTurnToken = int64(cmp.Or(a.Usage.Total, a.Usage.Input+a.Usage.Output))
	} else if q := a.Meta.Quota.TokenCount; q.Input+q.Output > 0 {
		u.PromptTokens += int64(q.Input)
		u.CompletionTokens += int64(q.Output)
		u.PerTurnToken = int64(q.Input + q.Output)
	}
	if t.size > 0 {
		u.ContextWindow = int64(t.size)
	}
	// The agent tells the session's cost so far; a new process may begin again at nothing.
	if t.cost >= 0 {
		m.AccumulatedCost += max(0, t.cost-s.cost)
		s.cost = t.cost
	}
	all.UsageToMetrics["agent"] = m
	return engine.Update(engine.KeyStats, all)
}
