package agent

import (
	"encoding/json"
	"strings"
)

// ConversationInfo is what the agent server says of a conversation; only what
// the control plane reads.
type ConversationInfo struct {
	// ID is a dashed UUID on the wire; use HexID for ours.
	ID string `json:"id"`
	// ExecutionStatus is lower case (api-contract.md A.0.7).
	ExecutionStatus string  `json:"execution_status"`
	Title           *string `json:"title"`
	CreatedAt       string  `json:"created_at"`
	UpdatedAt       string  `json:"updated_at"`
	// Metrics and Stats are handed on as they are; nil when left out.
	Metrics json.RawMessage `json:"metrics,omitempty"`
	Stats   json.RawMessage `json:"stats,omitempty"`
}

// HexID gives the id as the control plane writes it: 32 lower-case hex digits.
func (c ConversationInfo) HexID() string { return HexID(c.ID) }

// HexID takes the dashes out of a UUID and lowers its case.
func HexID(id string) string {
	return strings.ToLower(strings.ReplaceAll(id, "-", ""))
}

// DashedID puts the dashes into 32 hex digits; anything else comes back as it
// is.
func DashedID(hex string) string {
	if len(hex) != 32 {
		return hex
	}
	return hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:]
}

// CreateRequest is the body of POST /api/conversations (api-contract.md C.3).
// It holds secret values: it is built for one call and never logged or kept.
type CreateRequest struct {
	// ConversationID is a dashed UUID.
	ConversationID       string             `json:"conversation_id"`
	ParentConversationID *string            `json:"parent_conversation_id,omitempty"`
	Workspace            Workspace          `json:"workspace"`
	AgentSettings        AgentSettings      `json:"agent_settings"`
	InitialMessage       *Message           `json:"initial_message,omitempty"`
	ConfirmationPolicy   Kind               `json:"confirmation_policy"`
	SecurityAnalyzer     *Kind              `json:"security_analyzer,omitempty"`
	MaxIterations        int64              `json:"max_iterations,omitempty"`
	Secrets              map[string]Secret  `json:"secrets"`
	Plugins              json.RawMessage    `json:"plugins,omitempty"`
	Tags                 map[string]string  `json:"tags"`
	UserID               string             `json:"user_id,omitempty"`
	Observability        *ObservabilityMeta `json:"-"`
	// Autotitle lets the server make a title of the first message.
	Autotitle bool `json:"autotitle"`
}

// ObservabilityMeta is passed through to the agent server's tracing.
type ObservabilityMeta struct {
	Metadata map[string]any `json:"observability_metadata,omitempty"`
	Tags     []string       `json:"observability_tags,omitempty"`
	SpanName string         `json:"observability_span_name,omitempty"`
}

// MarshalJSON puts the observability members beside the others, as the wire
// has them.
func (r CreateRequest) MarshalJSON() ([]byte, error) {
	type plain CreateRequest
	var o ObservabilityMeta
	if r.Observability != nil {
		o = *r.Observability
	}
	return json.Marshal(struct {
		plain
		ObservabilityMeta
	}{plain(r), o})
}

// Workspace is where the conversation works.
type Workspace struct {
	// Kind is "LocalWorkspace".
	Kind string `json:"kind"`
	// WorkingDir is absolute, as the agent server sees it.
	WorkingDir string `json:"working_dir"`
}

// Kind is an object the agent server tells apart by its kind alone.
type Kind struct {
	Kind string `json:"kind"`
}

// AgentSettings describe the agent; the simplest of the three ways C.3 gives.
type AgentSettings struct {
	// AgentKind is "openhands".
	AgentKind string `json:"agent_kind"`
	LLM       LLM    `json:"llm"`
	// MCPConfig is {"mcpServers":{name:{…}}}; it may hold credentials.
	MCPConfig    json.RawMessage `json:"mcp_config,omitempty"`
	AgentContext *AgentContext   `json:"agent_context,omitempty"`
	Condenser    *Condenser      `json:"condenser,omitempty"`
}

// LLM says which model is called and how.
type LLM struct {
	Model   string `json:"model,omitempty"`
	APIKey  string `json:"api_key,omitempty"`
	BaseURL string `json:"base_url,omitempty"`
	// UsageID names the model's role; "agent" for the main one.
	UsageID string `json:"usage_id"`
}

// AgentContext is added to the agent's prompt.
type AgentContext struct {
	SystemMessageSuffix string `json:"system_message_suffix,omitempty"`
}

// Condenser shortens long histories.
type Condenser struct {
	Enabled bool  `json:"enabled"`
	MaxSize int64 `json:"max_size,omitempty"`
}

// Message is the first message; the server always runs it.
type Message struct {
	Role    string         `json:"role"`
	Content []ContentBlock `json:"content"`
	Run     bool           `json:"run"`
}

// ContentBlock is a text or an image block.
type ContentBlock struct {
	Type        string
	Text        string
	ImageURLs   []string
	CachePrompt bool
}

// MarshalJSON writes the member the block's type must have, empty or not, and no
// other: the server refuses a block without it, and a text block with more.
func (b ContentBlock) MarshalJSON() ([]byte, error) {
	if b.Type == "image" {
		urls := b.ImageURLs
		if urls == nil {
			urls = []string{}
		}
		return json.Marshal(struct {
			Type        string   `json:"type"`
			ImageURLs   []string `json:"image_urls"`
			CachePrompt bool     `json:"cache_prompt"`
		}{b.Type, urls, b.CachePrompt})
	}
	return json.Marshal(struct {
		Type        string `json:"type"`
		Text        string `json:"text"`
		CachePrompt bool   `json:"cache_prompt"`
	}{b.Type, b.Text, b.CachePrompt})
}

// Secret is one secret given to a conversation.
type Secret struct {
	// Kind is "StaticSecret".
	Kind  string `json:"kind"`
	Value string `json:"value"`
}

// StaticSecret makes a Secret whose value is handed over now.
func StaticSecret(value string) Secret { return Secret{Kind: "StaticSecret", Value: value} }
