package httpapi

import (
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/wire"
)

// metricsBody is the upstream's MetricsSnapshot of a conversation.
type metricsBody struct {
	ModelName string `json:"model_name"`
	// AccumulatedCost is in US dollars.
	AccumulatedCost  float64        `json:"accumulated_cost"`
	MaxBudgetPerTask *float64       `json:"max_budget_per_task"`
	TokenUsage       tokenUsageBody `json:"accumulated_token_usage"`
}

type tokenUsageBody struct {
	Model            string `json:"model"`
	PromptTokens     int64  `json:"prompt_tokens"`
	CompletionTokens int64  `json:"completion_tokens"`
	CacheReadTokens  int64  `json:"cache_read_tokens"`
	CacheWriteTokens int64  `json:"cache_write_tokens"`
	ReasoningTokens  int64  `json:"reasoning_tokens"`
	ContextWindow    int64  `json:"context_window"`
	PerTurnToken     int64  `json:"per_turn_token"`
	ResponseID       string `json:"response_id"`
}

// newMetricsBody is what the model gateway counted of a conversation, nil for nothing. The members
// that it does not count are 0.
func newMetricsBody(row *fsm.Conversation, settings *fsm.Settings) *metricsBody {
	if row.Models == (fsm.ModelUsage{}) {
		return nil
	}
	b := &metricsBody{ModelName: "default", AccumulatedCost: wire.Dollars(row.Models.Cost), TokenUsage: tokenUsageBody{
		Model: decode.OrZero(row.LLMModel), PromptTokens: row.Models.Input, CompletionTokens: row.Models.Output,
		CacheReadTokens: row.Models.Cached,
	}}
	if settings != nil {
		b.MaxBudgetPerTask = settings.Values.MaxBudgetPerTask
	}
	return b
}
