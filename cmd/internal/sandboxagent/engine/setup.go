package engine

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"syscall"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// Setup is what a conversation was created with. It has secret values: an engine never logs it.
type Setup struct {
	// ID is the conversation's, 32 hex digits.
	ID string
	// Dir is a directory of the conversation's own on the workspace, for what an engine keeps.
	Dir string
	// WorkingDir is the project's directory.
	WorkingDir string
	Agent      Agent
	// Secrets are the conversation's, by name.
	Secrets map[string]Secret
	// Environ is the environment for agents and shells, without the server's keys.
	Environ []string
	// Credential is the user that agents and shells run as; nil is the server's own.
	Credential *syscall.Credential
	Logger     *slog.Logger
}

// Secret is a secret of the conversation.
type Secret struct {
	Value       string `json:"value"`
	Description string `json:"description,omitempty"`
}

// Agent says which engine it is and how it is set up. Its JSON is that of agent_settings in the
// create request (PROTOCOL.md, "Conversations: create").
type Agent struct {
	// Kind is "openhands" for the native loop or "acp".
	Kind string `json:"agent_kind"`
	LLM  LLM    `json:"llm"`
	// MCPConfig is {"mcpServers":{name:{…}}}.
	MCPConfig json.RawMessage `json:"mcp_config,omitempty"`
	// Suffix is text after the system prompt.
	Suffix    string    `json:"-"`
	Condenser Condenser `json:"condenser"`
	// Skills are those of the create request, in the protocol's form (cmd/internal/sandboxagent/skills).
	Skills []json.RawMessage `json:"-"`
	// Hooks are the commands of the create request's hook_config (cmd/internal/sandboxagent/hooks).
	Hooks json.RawMessage `json:"-"`
	// Tools are the names of the tools to use; none means all.
	Tools []string `json:"-"`
	ACP   ACP      `json:"-"`
}

// LLM is a model and how to call it.
type LLM struct {
	// Model may have a provider's prefix, such as "openai/".
	Model  string `json:"model"`
	APIKey string `json:"api_key"`
	// BaseURL is the endpoint's address, up to and with "/v1"; empty is the provider's own.
	BaseURL string `json:"base_url"`
	// API is completions, responses or messages; empty is what the model and BaseURL tell.
	API string `json:"api,omitempty"`
	// UsageID names the use of the model in the stats.
	UsageID string `json:"usage_id"`
	// Stream asks for the answer in parts; null is yes.
	Stream          *bool    `json:"stream,omitempty"`
	Temperature     *float64 `json:"temperature,omitempty"`
	TopP            *float64 `json:"top_p,omitempty"`
	MaxOutputTokens *int     `json:"max_output_tokens,omitempty"`
	// MaxInputTokens is the model's context window; 0 is found out.
	MaxInputTokens int `json:"max_input_tokens,omitempty"`
	// ReasoningEffort is none, low, medium, high or empty.
	ReasoningEffort string `json:"reasoning_effort,omitempty"`
	// Timeout is the time for one call, in seconds; 0 is the engine's default.
	Timeout    int  `json:"timeout,omitempty"`
	NumRetries *int `json:"num_retries,omitempty"`
	// InputCostPerToken and OutputCostPerToken are US dollars.
	InputCostPerToken  *float64 `json:"input_cost_per_token,omitempty"`
	OutputCostPerToken *float64 `json:"output_cost_per_token,omitempty"`
	// DisableVision says whether the model takes no pictures; null is found out.
	DisableVision *bool `json:"disable_vision,omitempty"`
	// NativeToolCalling is false for a model that writes its calls as texts; null is found out.
	NativeToolCalling *bool `json:"native_tool_calling,omitempty"`
}

// Condenser configures the condensation of long histories.
type Condenser struct {
	// Enabled is true if absent.
	Enabled *bool `json:"enabled,omitempty"`
	// MaxSize is the number of events above which the history is condensed; 0 is 240.
	MaxSize int `json:"max_size,omitempty"`
	// KeepFirst is the number of first events that are kept; 0 is 2.
	KeepFirst int `json:"keep_first,omitempty"`
}

// ACP is the setup of an agent that speaks the Agent Client Protocol. Its JSON has the members of
// agent_settings with agent_kind "acp".
type ACP struct {
	// Server is the agent's id: one of the spec's agents, a preset's, or "custom".
	Server  string            `json:"acp_server,omitempty"`
	Command []string          `json:"acp_command,omitempty"`
	Args    []string          `json:"acp_args,omitempty"`
	Env     map[string]string `json:"acp_env,omitempty"`
	Model   string            `json:"acp_model,omitempty"`
	// SessionMode is auto or one of the agent's modes.
	SessionMode string `json:"acp_session_mode,omitempty"`
	// PromptTimeout is the time without an update, in seconds; 0 is 1800.
	PromptTimeout float64 `json:"acp_prompt_timeout,omitempty"`
	// StartupTimeout is the time until the session is open, in seconds; 0 is 90.
	StartupTimeout  float64           `json:"acp_startup_timeout,omitempty"`
	ResumeSessionID string            `json:"acp_resume_session_id,omitempty"`
	IsolateDataDir  bool              `json:"acp_isolate_data_dir,omitempty"`
	FileSecrets     map[string]string `json:"acp_file_secrets,omitempty"`
}

// Reader tells what the agent was given of the conversation.
type Reader interface {
	// LastRead is the id of the last event that the model or the agent was given. What is later waits for
	// another step.
	LastRead() string
}

// Asker answers a question beside the conversation: nothing is stored.
type Asker interface {
	Ask(ctx context.Context, question string) (string, error)
}

// Verdict is what a judge says of a goal.
type Verdict struct {
	// Score is the probability that all of it is reached.
	Score    float64 `json:"score"`
	Complete bool    `json:"complete"`
	Missing  string  `json:"missing"`
}

// Judge judges by the history whether an objective is reached. No step runs meanwhile.
type Judge interface {
	Judge(ctx context.Context, objective string) (Verdict, error)
}

// Titler makes a title of at most 50 characters of a conversation's first message.
type Titler interface {
	Title(ctx context.Context, message string) (string, error)
}

// Switcher changes the model that the next step calls.
type Switcher interface {
	SwitchLLM(ctx context.Context, llm LLM) error
}

// ModelSwitcher chooses another of an ACP agent's models, from the next step on.
type ModelSwitcher interface {
	SwitchModel(ctx context.Context, model string) error
}

// ErrNoCondenser means that an engine, or its settings, condense no history.
var ErrNoCondenser = errors.New("the agent condenses no history")

// HistoryCondenser condenses the history outside a step.
type HistoryCondenser interface {
	// Condenses reports whether Condense does anything.
	Condenses() bool
	// Condense condenses the history, as the user asks. No step runs meanwhile.
	Condense(ctx context.Context) error
}

// SecretsUpdater takes secrets that were added after the engine was made.
type SecretsUpdater interface {
	UpdateSecrets(secrets map[string]Secret)
}

// Prompter makes the event that begins the conversation. The server stores it before the first
// message. It returns within ctx, without tools that are not there by then.
type Prompter interface {
	SystemPrompt(ctx context.Context) *event.SystemPrompt
}

// Augmenter adds to a message of the user what the model shall read with it, such as the skills that
// it triggers, before the message is stored. It returns the state updates that belong to it.
type Augmenter interface {
	Augment(m *event.Message) []event.Event
}
