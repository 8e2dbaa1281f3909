package agentserver

import (
	"net/http"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

// TestCreate_OneReader: an engine is set up from what was validated. A member whose name differs in
// case, or that comes twice, is no other way to hand over hooks, secrets or a model.
func TestCreate_OneReader(t *testing.T) {
	setUp := make(chan engine.Setup, 1)
	s := serveAt(t, t.TempDir(), func(cfg *config.Config) {
		then := cfg.NewEngine
		cfg.NewEngine = func(setup engine.Setup, c engine.Conversation) (engine.Engine, error) {
			setUp <- setup
			return then(setup, c)
		}
	})
	status, body := s.send("POST", "/api/conversations", `{
		"conversation_id": "`+convID+`", "workspace": {"working_dir": "`+t.TempDir()+`"},
		"agent_settings": {"llm": {"model": "openai/first", "Model": "openai/second", "base_url": "http://127.0.0.1:1/v1"},
			"LLM": {"model": "openai/third"}, "Mcp_Config": {"mcpServers": {"x": {"command": "true"}}}},
		"Agent_Settings": {"llm": {"model": "openai/fourth"}},
		"HOOK_CONFIG": {"stop": [{"hooks": [{"command": "true"}]}]},
		"secrets": {"A": "one"}, "Secrets": {"B": "two"},
		"secrets": {"C": {"kind": "StaticSecret", "value": "three", "Value": "four"}}
	}`)
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := s.send("POST", "/api/conversations/"+convUID+"/run", ""); status/100 != 2 {
		t.Fatalf("%d %s", status, body)
	}
	got := <-setUp
	if got.Agent.LLM.Model != "openai/first" || got.Agent.Hooks != nil || got.Agent.MCPConfig != nil {
		t.Errorf("model %q, hooks %s, MCP %s", got.Agent.LLM.Model, got.Agent.Hooks, got.Agent.MCPConfig)
	}
	if len(got.Secrets) != 1 || got.Secrets["C"].Value != "three" {
		t.Errorf("secrets %v", got.Secrets)
	}
}
