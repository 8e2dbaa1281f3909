package httpapi

import (
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

// metricsOfEvents is what the events of a conversation say that it used models for, nil for nothing.
func metricsOfEvents(row *fsm.Conversation) *metricsBody {
	if row.Said == nil || row.Said.Usage == (fsm.AgentUsage{}) {
		return nil
	}
	u := row.Said.Usage
	return &metricsBody{ModelName: u.Model, AccumulatedCost: wire.Dollars(u.Cost), TokenUsage: tokenUsageBody{
		Model: u.Model, PromptTokens: u.Prompt, CompletionTokens: u.Completion, CacheReadTokens: u.CacheRead,
		CacheWriteTokens: u.CacheWrite, ReasoningTokens: u.Reasoning, ContextWindow: u.ContextWindow,
		PerTurnToken: u.PerTurn,
	}}
}

// addEvents adds what a conversation's events, and the model gateway, say of it.
func (b *conversationBody) addEvents(row *fsm.Conversation, settings *fsm.Settings) {
	if b.SandboxStatus == fsm.SandboxRunning {
		b.ExecutionStatus = statusOfEvents(row)
	}
	if row.Said != nil && b.LLMModel == nil {
		b.LLMModel = wire.OrNull(row.Said.Usage.Model)
	}
	b.Metrics = newMetricsBody(row, metricsOfEvents(row), settings)
}

// statusOfEvents is what the events of a conversation say that it does, nil for one without events.
func statusOfEvents(row *fsm.Conversation) *string {
	if row.Events == nil {
		return nil
	}
	status := "idle" // before the first run
	if row.Said != nil && row.Said.Status != "" {
		status = row.Said.Status
	}
	return &status
}
