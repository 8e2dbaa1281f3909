package agentserver

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A switch of the model alone stays behind the gateway, and no key of a vendor comes in by one.
func TestRelay_ASwitchStaysInTheGateway(t *testing.T) {
	t.Parallel()
	n := newGatewayNode(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		sends(w, `{"id":"a","choices":[{"index":0,"message":{"role":"assistant","content":"Hello."},`+
			`"finish_reason":"stop"}]}`)
	})
	data := t.TempDir()
	serve := func() *server {
		return serveAt(t, data, func(c *Config) { c.APIURLs, c.newEngine = []string{n.URL}, newEngine })
	}
	s := serve()
	s.want(201, "POST", "/api/conversations",
		fmt.Sprintf(`{"conversation_id":%q,"workspace":{"working_dir":%q},"agent_settings":{"agent_kind":"openhands",
		"llm":{"model":"anthropic/first","stream":false,"base_url":"%s/llm/v1","api_key":"%s"}}}`, convID, t.TempDir(),
			n.URL, n.token(convID)))
	asks := func(model string) {
		t.Helper()
		before := n.requests()
		if got := s.want(200, "POST", convPath+"/ask_agent", `{"question":"beside?"}`); got != `{"response":"Hello."}` {
			t.Errorf("the answer is %s", got)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.bodies) != before+1 || !strings.Contains(n.bodies[before], fmt.Sprintf(`"model":%q`, model)) {
			t.Errorf("the gateway got %q, want one request for %s", n.bodies[before:], model)
		}
	}
	asks("first")
	s.want(200, "POST", convPath+"/switch_llm", `{"llm":{"model":"openai/second","stream":false}}`)
	asks("second")
	shown := decodeJSON[info](t, s.want(200, "GET", convPath, "")).Agent.LLM
	if shown.Model != "openai/second" || shown.BaseURL == nil || *shown.BaseURL != n.URL+"/llm/v1" || shown.APIKey == nil {
		t.Errorf("it shows %+v", shown)
	}
	// A client sends back what it was shown.
	s.want(200, "POST", convPath+"/switch_llm",
		`{"llm":{"model":"third","stream":false,"api_key":"**********","base_url":"`+n.URL+`/llm/v1/"}}`)
	// The control plane sends the gateway's address and a token along.
	s.want(200, "POST", convPath+"/switch_llm",
		`{"llm":{"model":"third","stream":false,"api_key":"`+n.token(convID)+`","base_url":"`+n.URL+`/llm/v1"}}`)
	for _, access := range []string{`"api_key":"sk-KEYCANARY"`, `"base_url":"https://models.example.org/v1"`} {
		if got := s.want(400, "POST", convPath+"/switch_llm",
			`{"llm":{"model":"x",`+access+`}}`); !strings.Contains(got, "name a model alone") {
			t.Errorf("%s: %s", access, got)
		}
	}
	s.s.close()
	s = serve()
	asks("third")
}
