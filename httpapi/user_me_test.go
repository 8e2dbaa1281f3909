package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

const pathMe = "/api/v1/users/me"

// me is what the tests read of the answer.
type me struct {
	ID      string  `json:"id"`
	Key     *string `json:"llm_api_key"`
	BaseURL *string `json:"llm_base_url"`
	Agent   struct {
		LLM modelAccess `json:"llm"`
	} `json:"agent_settings"`
}

func (h *modelHarness) me(key, sandboxKey string) (m me) {
	h.t.Helper()
	h.do("", http.MethodGet, pathMe+"?expose_secrets=true", "", "Authorization", "Bearer "+key, "X-Session-API-Key",
		sandboxKey).want(h.t, 200).json(h.t, &m)
	if m.Agent.LLM.APIKey != nil && *m.Agent.LLM.APIKey != *m.Key ||
		m.Agent.LLM.BaseURL != nil && *m.Agent.LLM.BaseURL != *m.BaseURL {
		h.t.Errorf("the two forms differ: %+v", m)
	}
	return m
}

// A sandbox that uses the gateway gets its URL and a token that works there, in place of the key.
func TestMe_ASandboxGetsTheGatewayAndAToken(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, &modeltest.Script{Key: modelKey, Stories: modeltest.Turns(modeltest.Text("ok")).Stories},
		func(c *Config) { c.APIURLs = []string{"http://10.1.2.3:8440/", "http://10.1.2.4:8440"} })
	m := h.me(h.alice, h.key)
	if m.ID != "alice" || *m.BaseURL != "http://10.1.2.3:8440/llm/v1" || *m.Agent.LLM.Model != "openai/gpt-test" ||
		*m.Key != h.token() {
		t.Fatalf("%+v with %v", m, *m.BaseURL)
	}
	whole(t, h.ask(t.Context(), *m.Key, pathChat, chatBody), 200)
	h.nowhere("the token", *m.Key)

	// Without the sandbox's key there is nothing, and with another's neither.
	plain := h.do("", http.MethodGet, pathMe, "", "Authorization", "Bearer "+h.alice, "X-Session-API-Key",
		h.key).want(t, 200)
	if text := string(plain.body); strings.Contains(text, "bvllm") || strings.Contains(text, modelKey) ||
		!strings.Contains(text, `"llm_api_key":null`) {
		t.Error(text)
	}
	bobs := h.createSandbox(h.bob)
	h.observe(bobs, running())
	bobsKey := h.secrets.last(fsm.SandboxKeyPath(bobs))["key"]
	for _, c := range []struct {
		key, sandbox string
		status       int
		says         string
	}{
		{
			h.alice,
			"",
			401,
			"X-Session-API-Key header is required",
		}, {h.alice, "nonsense", 401, "Invalid session API key"}, {h.alice, h.alice, 401, "Invalid session API key"},
		{
			h.alice,
			bobsKey,
			403,
			"does not belong to the authenticated user",
		}, {h.bob, h.key, 403, "does not belong"}, {"", h.key, 401, ""}, {h.key, h.key, 401, ""}, {*m.Key, h.key, 401, ""},
	} {
		res := h.do("", http.MethodGet, pathMe+"?expose_secrets=true", "", "Authorization", "Bearer "+c.key,
			"X-Session-API-Key", c.sandbox)
		if res.status != c.status || !strings.Contains(string(res.body), c.says) ||
			strings.Contains(string(res.body), modelKey) {
			t.Errorf("%q %q: %d %s", c.key, c.sandbox, res.status, res.body)
		}
	}
	if m := h.me(h.bob, bobsKey); m.Key != nil || *m.BaseURL != "http://10.1.2.3:8440/llm/v1" {
		t.Errorf("a sandbox without a conversation: %+v", m)
	}
	h.do(h.alice, "POST", pathSandboxes+"/"+h.sandbox+"/pause", "").want(t, 200)
	h.do("", http.MethodGet, pathMe+"?expose_secrets=true", "", "Authorization", "Bearer "+h.alice, "X-Session-API-Key",
		h.key).want(t, 401)
}

// Where sandboxes get the key, this hands it over as well, and to nobody else.
func TestMe_WithoutTheGatewayItIsTheKey(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*modelHarness){
		"off": func(h *modelHarness) {
			h.configure(fsm.LLM{
				Direct: true,
			})
		}, "no api_urls": func(h *modelHarness) { h.server.cfg.APIURLs = nil },
	} {
		h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")),
			func(c *Config) { c.APIURLs = []string{"http://10.1.2.3:8440"} })
		change(h)
		if m := h.me(h.alice, h.key); *m.Key != modelKey || *m.BaseURL != h.model.BaseURL() {
			t.Errorf("%s: %+v", what, m)
		}
		if res := h.do("", http.MethodGet, pathMe, "", "Authorization", "Bearer "+h.alice, "X-Session-API-Key",
			h.key).want(t, 200); strings.Contains(string(res.body), modelKey) {
			t.Errorf("%s: the key is in %s", what, res.body)
		}
		h.nowhere("the key", modelKey)
	}
}

// The MCP configuration holds secrets: a sandbox gets it, with its own key, and nobody else here.
func TestMe_MCPServersAreASandboxs(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	h.settings(h.alice, `{"mcp_config":{"stdio_servers":[{"name":"a","command":"b","env":{"TOKEN":"canary-mcp"}}]}}`)
	for query, shown := range map[string]bool{"": false, "?expose_secrets=true": true} {
		res := h.do("", http.MethodGet, pathMe+query, "", "Authorization", "Bearer "+h.alice, "X-Session-API-Key",
			h.key).want(t, 200)
		if strings.Contains(string(res.body), "canary-mcp") != shown {
			t.Errorf("%q: %s", query, res.body)
		}
	}
}
