package agent

import (
	"encoding/json"
	"strings"

	"bivouac.dev/bivouac/httpapi/decode"
)

// ConversationInfo is the part of a conversation's state that the control plane reads.
type ConversationInfo struct {
	// ID is a UUID with dashes; HexID converts it.
	ID string `json:"id"`
	// ExecutionStatus is in lower case: idle, running and so on.
	ExecutionStatus string  `json:"execution_status"`
	Title           *string `json:"title"`
	CreatedAt       string  `json:"created_at"`
	UpdatedAt       string  `json:"updated_at"`
	// Metrics and Stats are passed on unchanged; nil if absent.
	Metrics json.RawMessage `json:"metrics,omitempty"`
	Stats   json.RawMessage `json:"stats,omitempty"`
}

// HexID returns the id in the control plane's format: 32 lower-case hex digits.
func (c ConversationInfo) HexID() string { return HexID(c.ID) }

// HexID removes the dashes from a UUID and converts it to lower case.
func HexID(id string) string {
	return strings.ToLower(strings.ReplaceAll(id, "-", ""))
}

// DashedID formats 32 hex digits as a UUID with dashes. It returns other texts unchanged.
func DashedID(hex string) string { return decode.Dashed(hex) }

// CreateRequest is the body of POST /api/conversations (PROTOCOL.md, "Conversations: create"). It
// holds secrets: build it for one call, never log or store it.
type CreateRequest struct {
	// ConversationID is a UUID with dashes.
	ConversationID       string        `json:"conversation_id"`
	ParentConversationID *string       `json:"parent_conversation_id,omitempty"`
	Workspace            Workspace     `json:"workspace"`
	AgentSettings        AgentSettings `json:"agent_settings"`
	InitialMessage       *Message      `json:"initial_message,omitempty"`
	ConfirmationPolicy   Kind          `json:"confirmation_policy"`
	SecurityAnalyzer     *Kind         `json:"security_analyzer,omitempty"`
	MaxIterations        int64         `json:"max_iterations,omitempty"`
	// MaxBudget is the largest cost in US dollars, 0 for no limit. Upstream's server ignores it.
	MaxBudget float64           `json:"max_budget_per_task,omitempty"`
	Secrets   map[string]Secret `json:"secrets"`
	Plugins   json.RawMessage   `json:"plugins,omitempty"`
	// HookConfig is what Client.Hooks returned.
	HookConfig    json.RawMessage    `json:"hook_config,omitempty"`
	Tags          map[string]string  `json:"tags"`
	UserID        string             `json:"user_id,omitempty"`
	Observability *ObservabilityMeta `json:"-"`
	// Autotitle lets the server derive a title from the first message.
	Autotitle bool `json:"autotitle"`
}

// ObservabilityMeta is passed to the agent server's tracing.
type ObservabilityMeta struct {
	Metadata map[string]any `json:"observability_metadata,omitempty"`
	Tags     []string       `json:"observability_tags,omitempty"`
	SpanName string         `json:"observability_span_name,omitempty"`
}

// MarshalJSON encodes the observability members at the top level, next to the others.
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

// Workspace is the conversation's working directory.
type Workspace struct {
	// Kind is "LocalWorkspace".
	Kind string `json:"kind"`
	// WorkingDir is an absolute path inside the sandbox.
	WorkingDir string `json:"working_dir"`
}

// Kind is an object that has only a kind.
type Kind struct {
	Kind string `json:"kind"`
}

// AgentSettings describe the agent. They are the simplest of the three ways to specify one
// (PROTOCOL.md, "Conversations: create").
type AgentSettings struct {
	// AgentKind is "openhands" or "acp".
	AgentKind string `json:"agent_kind"`
	LLM       LLM    `json:"llm"`
	// MCPConfig is {"mcpServers":{name:{…}}}; it may hold credentials.
	MCPConfig    json.RawMessage `json:"mcp_config,omitempty"`
	AgentContext *AgentContext   `json:"agent_context,omitempty"`
	Condenser    *Condenser      `json:"condenser,omitempty"`
	// Tools are those of a native agent; none means the agent server's own choice.
	Tools []Tool `json:"tools,omitempty"`

	// The rest is for "acp". ACPServer is the agent's id. Without ACPCommand it is one whose command
	// line the agent server knows. ACPArgs and ACPEnv add to that, ACPModel and ACPSessionMode are in
	// the agent's own words.
	ACPServer      string            `json:"acp_server,omitempty"`
	ACPCommand     []string          `json:"acp_command,omitempty"`
	ACPArgs        []string          `json:"acp_args,omitempty"`
	ACPEnv         map[string]string `json:"acp_env,omitempty"`
	ACPModel       string            `json:"acp_model,omitempty"`
	ACPSessionMode string            `json:"acp_session_mode,omitempty"`
}

// Tool is a tool that an agent shall have.
type Tool struct {
	Name   string         `json:"name"`
	Params map[string]any `json:"params,omitempty"`
}

// LLM is the model and how to call it.
type LLM struct {
	Model   string `json:"model,omitempty"`
	APIKey  string `json:"api_key,omitempty"`
	BaseURL string `json:"base_url,omitempty"`
	// API is the one in which the model is asked, "" for chat completions (preset.APIOf).
	API string `json:"api,omitempty"`
	// UsageID is the model's role; "agent" for the main one.
	UsageID string `json:"usage_id"`
	// ModelSettings are what the operator says of the model.
	ModelSettings
}

// ModelSettings are fsm.ModelSettings; no sandbox has fsm. The agent server finds out what is nil.
type ModelSettings struct {
	MaxInputTokens    *int64   `json:"max_input_tokens,omitempty"`
	MaxOutputTokens   *int64   `json:"max_output_tokens,omitempty"`
	Temperature       *float64 `json:"temperature,omitempty"`
	Timeout           *int64   `json:"timeout,omitempty"`
	NumRetries        *int64   `json:"num_retries,omitempty"`
	Stream            *bool    `json:"stream,omitempty"`
	DisableVision     *bool    `json:"disable_vision,omitempty"`
	NativeToolCalling *bool    `json:"native_tool_calling,omitempty"`
}

// AgentContext is text added to the agent's prompt.
type AgentContext struct {
	SystemMessageSuffix string `json:"system_message_suffix,omitempty"`
	// Skills is what Client.Skills returned.
	Skills json.RawMessage `json:"skills,omitempty"`
}

// Condenser configures the condensing of long histories.
type Condenser struct {
	Enabled bool  `json:"enabled"`
	MaxSize int64 `json:"max_size,omitempty"`
}

// Message is a message to a conversation. As the initial message it always runs; SendMessage
// respects Run.
type Message struct {
	Role    string         `json:"role"`
	Content []ContentBlock `json:"content"`
	Run     bool           `json:"run"`
	// ID is the message's event id, a UUID, "" for one of the server's choice. The built-in server stores
	// a message with an id once; others ignore it.
	ID string `json:"id,omitempty"`
}

// ContentBlock is a text or an image block.
type ContentBlock struct {
	Type        string
	Text        string
	ImageURLs   []string
	CachePrompt bool
}

// MarshalJSON encodes only the members of the block's type, even if empty: the server refuses a
// block without them and a text block with others.
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

// StaticSecret returns a Secret that contains the value itself.
func StaticSecret(value string) Secret { return Secret{Kind: "StaticSecret", Value: value} }
