package fsm

// StartSecrets are the secrets of a start task: the member "json" of the entry at StartTask.Secrets.
// The API writes it, and the start reads it.
type StartSecrets struct {
	// Secrets are those of the conversation, by name.
	Secrets   map[string]string `json:"secrets"`
	MCPConfig *MCPConfig        `json:"mcp_config"`
	Plugins   []PluginSource    `json:"plugins"`
	// Metadata is the request's observability_metadata.
	Metadata JSONObject `json:"observability_metadata,omitempty"`
}

// MCPConfig is an MCPConfig with defaults filled in (API.md, "MCP configuration"). All of it is
// treated as secret: URLs and arguments often hold tokens, too.
type MCPConfig struct {
	SSEServers   []MCPSSEServer   `json:"sse_servers"`
	StdioServers []MCPStdioServer `json:"stdio_servers"`
	SHTTPServers []MCPHTTPServer  `json:"shttp_servers"`
}

// MCPSSEServer is a server of tools that is called over SSE.
type MCPSSEServer struct {
	URL    string  `json:"url"`
	APIKey *string `json:"api_key"`
}

// MCPHTTPServer is a server of tools that is called over streamable HTTP.
type MCPHTTPServer struct {
	URL    string  `json:"url"`
	APIKey *string `json:"api_key"`
	// Timeout is in seconds.
	Timeout *int64 `json:"timeout"`
}

// MCPStdioServer is a server of tools that is started in the sandbox.
type MCPStdioServer struct {
	Name    string            `json:"name"`
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
}
