package fsm

import "time"

// Settings are one user's settings, without secret values
// (seed-api.md 2.1, api-contract.md A.1).
type Settings struct {
	UserID string         `json:"user_id"`
	Values SettingsValues `json:"values"`

	// LLMAPIKey, SearchAPIKey and SandboxAPIKey are zero when not set. Their
	// entries hold the member "value".
	LLMAPIKey     SecretRef `json:"llm_api_key"`
	SearchAPIKey  SecretRef `json:"search_api_key"`
	SandboxAPIKey SecretRef `json:"sandbox_api_key"`
	// MCPConfig points at the whole MCP configuration document (member "json"):
	// its api_key, env, url and args may all carry credentials. Zero means null.
	MCPConfig SecretRef `json:"mcp_config"`

	UpdatedAt time.Time `json:"updated_at"`
}

// SettingsValues are the members of Settings that are no secrets. A nil
// pointer is the API's null; it is left out here, because every node stores and
// reads what is written.
type SettingsValues struct {
	Language                           *string  `json:"language,omitempty"`
	Agent                              *string  `json:"agent,omitempty"`
	MaxIterations                      *int64   `json:"max_iterations,omitempty"`
	SecurityAnalyzer                   *string  `json:"security_analyzer,omitempty"`
	ConfirmationMode                   *bool    `json:"confirmation_mode,omitempty"`
	LLMModel                           *string  `json:"llm_model,omitempty"`
	LLMBaseURL                         *string  `json:"llm_base_url,omitempty"`
	RemoteRuntimeResourceFactor        *int64   `json:"remote_runtime_resource_factor,omitempty"`
	EnableDefaultCondenser             bool     `json:"enable_default_condenser"`
	EnableSoundNotifications           bool     `json:"enable_sound_notifications"`
	EnableProactiveConversationStarter bool     `json:"enable_proactive_conversation_starters"`
	EnableSolvabilityAnalysis          bool     `json:"enable_solvability_analysis"`
	UserConsentsToAnalytics            *bool    `json:"user_consents_to_analytics,omitempty"`
	SandboxBaseContainerImage          *string  `json:"sandbox_base_container_image,omitempty"`
	SandboxRuntimeContainerImage       *string  `json:"sandbox_runtime_container_image,omitempty"`
	MaxBudgetPerTask                   *float64 `json:"max_budget_per_task,omitempty"`
	Email                              *string  `json:"email,omitempty"`
	EmailVerified                      *bool    `json:"email_verified,omitempty"`
	GitUserName                        *string  `json:"git_user_name,omitempty"`
	GitUserEmail                       *string  `json:"git_user_email,omitempty"`
	CondenserMaxSize                   *int64   `json:"condenser_max_size,omitempty"`
	V1Enabled                          *bool    `json:"v1_enabled,omitempty"`
}

// CustomSecret is a named secret of a user (secrets_store.custom_secrets).
type CustomSecret struct {
	UserID      string `json:"user_id"`
	Name        string `json:"name"`
	Description string `json:"description"`
	// Ref's entry holds the member "value".
	Ref SecretRef `json:"ref"`
}
