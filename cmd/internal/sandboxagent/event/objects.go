package event

import (
	"encoding/json"
	"strings"
)

// Text is a text block.
type Text struct {
	// Type is "text".
	Type        string `json:"type"`
	Text        string `json:"text"`
	CachePrompt bool   `json:"cache_prompt"`
}

// NewText returns a text block.
func NewText(s string) Text { return Text{Type: "text", Text: s} }

// Content is a text or an image block.
type Content struct {
	// Type is "text" or "image"; Text is set for the one, ImageURLs for the other.
	Type      string
	Text      string
	ImageURLs []string
	// CachePrompt allows a model's provider to keep the prompt up to here.
	CachePrompt bool
}

// TextContent returns a text block.
func TextContent(s string) Content { return Content{Type: "text", Text: s} }

// MarshalJSON encodes only the members of the block's type, as readers with closed models require.
func (c Content) MarshalJSON() ([]byte, error) {
	if c.Type != "image" {
		return json.Marshal(Text{"text", c.Text, c.CachePrompt})
	}
	urls := c.ImageURLs
	if urls == nil {
		urls = []string{}
	}
	return json.Marshal(struct {
		Type        string   `json:"type"`
		ImageURLs   []string `json:"image_urls"`
		CachePrompt bool     `json:"cache_prompt"`
	}{"image", urls, c.CachePrompt})
}

// UnmarshalJSON decodes either type.
func (c *Content) UnmarshalJSON(b []byte) error {
	var v struct {
		Type        string   `json:"type"`
		Text        string   `json:"text"`
		ImageURLs   []string `json:"image_urls"`
		CachePrompt bool     `json:"cache_prompt"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*c = Content(v)
	return nil
}

// LLMMessage is a message as a model knows it.
type LLMMessage struct {
	// Role is user, system, assistant or tool.
	Role                   string          `json:"role"`
	Content                []Content       `json:"content"`
	ToolCalls              []ToolCall      `json:"tool_calls"`
	ToolCallID             *string         `json:"tool_call_id"`
	Name                   *string         `json:"name"`
	ReasoningContent       *string         `json:"reasoning_content"`
	ThinkingBlocks         []ThinkingBlock `json:"thinking_blocks"`
	ResponsesReasoningItem Any             `json:"responses_reasoning_item"`
}

// ToolCall is a tool call as the model made it.
type ToolCall struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Arguments is JSON text.
	Arguments string `json:"arguments"`
	// Origin is "completion" or "responses", the API that it came by.
	Origin          string  `json:"origin"`
	ResponsesItemID *string `json:"responses_item_id"`
}

// ThinkingBlock is a block of a model's thinking, or a redacted one.
type ThinkingBlock struct {
	// Type is "thinking" or "redacted_thinking".
	Type      string  `json:"type"`
	Thinking  string  `json:"thinking"`
	Signature *string `json:"signature"`
	Data      string  `json:"data"`
}

// MarshalJSON encodes only the members of the block's type.
func (b ThinkingBlock) MarshalJSON() ([]byte, error) {
	if b.Type == "redacted_thinking" {
		return json.Marshal(struct {
			Type string `json:"type"`
			Data string `json:"data"`
		}{b.Type, b.Data})
	}
	return json.Marshal(struct {
		Type      string  `json:"type"`
		Thinking  string  `json:"thinking"`
		Signature *string `json:"signature"`
	}{b.Type, b.Thinking, b.Signature})
}

// ToolDefinition is a tool as a SystemPrompt lists it.
type ToolDefinition struct {
	Kind        string `json:"kind"`
	Description string `json:"description"`
	// ActionType and ObservationType are the kinds of the tool's actions and observations.
	ActionType      string           `json:"action_type"`
	ObservationType string           `json:"observation_type"`
	Annotations     *ToolAnnotations `json:"annotations"`
	Meta            Any              `json:"meta"`
	Title           string           `json:"title"`
}

// ToolAnnotations are hints of the Model Context Protocol about a tool.
type ToolAnnotations struct {
	Title           string `json:"title"`
	ReadOnlyHint    bool   `json:"readOnlyHint"`
	DestructiveHint bool   `json:"destructiveHint"`
	IdempotentHint  bool   `json:"idempotentHint"`
	OpenWorldHint   bool   `json:"openWorldHint"`
}

// Classification says what kind of error it is and what a user can do.
type Classification struct {
	// Kind is auth, quota, rate_limit, config, transient, agent_action, internal or unknown.
	Kind      string `json:"kind"`
	Retryable bool   `json:"retryable"`
	// UserAction is none, retry or settings.
	UserAction string  `json:"user_action"`
	ErrorID    *string `json:"error_id"`
}

// Classify returns the classification of a conversation error's code.
func Classify(code string) Classification {
	switch code {
	case "LLMAuthenticationError", "ACPAuthRequired":
		return Classification{Kind: "auth", UserAction: "settings"}
	case "LLMRateLimitError":
		return Classification{Kind: "rate_limit", Retryable: true, UserAction: "retry"}
	case "MaxBudgetReached", "LLMBudgetError":
		return Classification{Kind: "quota", UserAction: "settings"}
	case "LLMServiceUnavailableError", "LLMTimeoutError", "LLMNoResponseError", "ACPPromptError", "ACPStartupTimeout":
		return Classification{Kind: "transient", Retryable: true, UserAction: "retry"}
	case "LLMBadRequestError", "LLMNotConfigured", "ACPSpawnError", "ACPInitError":
		return Classification{Kind: "config", UserAction: "settings"}
	case "LLMContextWindowExceedError", "LLMOutputLimitError", "MaxIterationsReached", "UsagePolicyRefusal":
		return Classification{Kind: "agent_action", Retryable: true, UserAction: "retry"}
	case "InternalError":
		return Classification{Kind: "internal", Retryable: true, UserAction: "retry"}
	}
	return Classification{Kind: "unknown", UserAction: "none"}
}

// Metrics is what one use of a model has cost so far.
type Metrics struct {
	ModelName string `json:"model_name"`
	// AccumulatedCost is in US dollars.
	AccumulatedCost       float64    `json:"accumulated_cost"`
	MaxBudgetPerTask      *float64   `json:"max_budget_per_task"`
	AccumulatedTokenUsage TokenUsage `json:"accumulated_token_usage"`
}

// TokenUsage counts tokens.
type TokenUsage struct {
	Model            string `json:"model"`
	PromptTokens     int64  `json:"prompt_tokens"`
	CompletionTokens int64  `json:"completion_tokens"`
	CacheReadTokens  int64  `json:"cache_read_tokens"`
	CacheWriteTokens int64  `json:"cache_write_tokens"`
	ReasoningTokens  int64  `json:"reasoning_tokens"`
	// ContextWindow is the model's largest input, 0 if it is not known.
	ContextWindow int64 `json:"context_window"`
	// PerTurnToken is the tokens of the latest answer.
	PerTurnToken int64  `json:"per_turn_token"`
	ResponseID   string `json:"response_id"`
}

// Stats has the metrics of each use of a model, such as "agent" and "condenser".
type Stats struct {
	UsageToMetrics map[string]Metrics `json:"usage_to_metrics"`
}

// Text returns the text blocks, joined by line feeds.
func (m LLMMessage) Text() string {
	var parts []string
	for _, c := range m.Content {
		if c.Type != "image" {
			parts = append(parts, c.Text)
		}
	}
	return strings.Join(parts, "\n")
}

// finishMessage returns the message of a valid finish action.
func finishMessage(a *Action) (string, bool) {
	if a.ToolName != "finish" || !a.Valid() {
		return "", false
	}
	var f struct {
		Message string `json:"message"`
	}
	return f.Message, json.Unmarshal(a.Action, &f) == nil
}
