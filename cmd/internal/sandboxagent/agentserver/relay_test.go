package agentserver

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/relay/relaytest"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

// chat is a request to a model that a node got.
type chat struct {
	request *http.Request
	body    string
}

// chats are a node's, without those for tokens and for lists of models.
func chats(n *relaytest.Node) (list []chat) {
	n.Change(func() {
		for i, r := range n.Seen {
			if r.Method == http.MethodPost && r.URL.Path != "/llm/token" {
				list = append(list, chat{r, n.Bodies[i]})
			}
		}
	})
	return list
}

// A switch of the model alone stays behind the gateway, and no key of a vendor comes in by one.
func TestRelay_ASwitchStaysInTheGateway(t *testing.T) {
	t.Parallel()
	n := relaytest.NewNode(t, testKey, []string{convID}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		relaytest.Sends(w, `{"id":"a","choices":[{"index":0,"message":{"role":"assistant","content":"Hello."},`+
			`"finish_reason":"stop"}]}`)
	})
	data := t.TempDir()
	serve := func() *server {
		return serveAt(t, data, func(c *config.Config) { c.APIURLs, c.NewEngine = []string{n.URL}, newEngine })
	}
	s := serve()
	s.want(201, "POST", "/api/conversations",
		fmt.Sprintf(`{"conversation_id":%q,"workspace":{"working_dir":%q},"agent_settings":{"agent_kind":"openhands",
		"llm":{"model":"anthropic/first","stream":false,"base_url":"%s/llm/v1","api_key":"%s"}}}`, convID, t.TempDir(),
			n.URL, n.Token(convID)))
	asks := func(model string) {
		t.Helper()
		before := len(chats(n))
		if got := s.want(200, "POST", convPath+"/ask_agent", `{"question":"beside?"}`); got != `{"response":"Hello."}` {
			t.Errorf("the answer is %s", got)
		}
		if got := chats(n)[before:]; len(got) != 1 || !strings.Contains(got[0].body, fmt.Sprintf(`"model":%q`, model)) {
			t.Errorf("the gateway got %v, want one request for %s", got, model)
		}
	}
	asks("first")
	s.want(200, "POST", convPath+"/switch_llm", `{"llm":{"model":"openai/second","stream":false}}`)
	asks("second")
	shown := decodeJSON[conversation.Info](t, s.want(200, "GET", convPath, "")).Agent.LLM
	if shown.Model != "openai/second" || shown.BaseURL == nil || *shown.BaseURL != n.URL+"/llm/v1" || shown.APIKey == nil {
		t.Errorf("it shows %+v", shown)
	}
	// A client sends back what it was shown.
	s.want(200, "POST", convPath+"/switch_llm",
		`{"llm":{"model":"third","stream":false,"api_key":"**********","base_url":"`+n.URL+`/llm/v1/"}}`)
	// The control plane sends the gateway's address and a token along.
	s.want(200, "POST", convPath+"/switch_llm",
		`{"llm":{"model":"third","stream":false,"api_key":"`+n.Token(convID)+`","base_url":"`+n.URL+`/llm/v1"}}`)
	for _, access := range []string{`"api_key":"sk-KEYCANARY"`, `"base_url":"https://models.example.org/v1"`} {
		if got := s.want(400, "POST", convPath+"/switch_llm",
			`{"llm":{"model":"x",`+access+`}}`); !strings.Contains(got, "name a model alone") {
			t.Errorf("%s: %s", access, got)
		}
	}
	s.s.close()
	s = serve()
	asks("third")
	// A switch that names an API asks in it, and a later one of the model alone stays with it.
	s.want(200, "POST", convPath+"/switch_llm", `{"llm":{"model":"fourth","stream":false,"api":"messages"}}`)
	s.want(200, "POST", convPath+"/switch_llm", `{"llm":{"model":"fifth","stream":false}}`)
	asks("fifth")
	sent := chats(n)
	last := sent[len(sent)-1].request
	if last.URL.Path != "/llm/v1/messages" || last.Header.Get("Anthropic-Version") == "" {
		t.Errorf("it asked %s with %v", last.URL.Path, last.Header)
	}
}

func TestRelay_ADeletedConversationsKeyIsDead(t *testing.T) {
	t.Parallel()
	n := relaytest.NewNode(t, testKey, []string{convID}, relaytest.Says200("ok"))
	s := serveAt(t, t.TempDir(), func(c *config.Config) { c.APIURLs = []string{n.URL} })
	llm := s.gatewayModel(n)
	if resp, text := relaytest.Chat(t, llm, "x"); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	again, err := s.s.conversations.Setup(s.s.conversations.Get(convID))
	if err != nil || again.Agent.LLM.APIKey != llm.APIKey {
		t.Errorf("the conversation's next engine gets %+v, %v", again.Agent.LLM, err)
	}
	s.want(200, "DELETE", "/api/conversations/"+convID, "")
	if resp, text := relaytest.Chat(t, llm, "x"); resp.StatusCode != 401 {
		t.Errorf("after the deletion: %d %s", resp.StatusCode, text)
	}
}

// gatewayModel creates a conversation whose model is behind a node's gateway, and returns what its
// agent gets of the model.
func (s *server) gatewayModel(n *relaytest.Node) engine.LLM {
	s.t.Helper()
	s.want(201, "POST", "/api/conversations", fmt.Sprintf(`{"conversation_id":%q,"workspace":{"working_dir":%q},
		"agent_settings":{"agent_kind":"openhands","llm":{"model":"m","base_url":"%s/llm/v1","api_key":"%s"}}}`, convID,
		s.t.TempDir(), n.URL, n.Token(convID)))
	setup, err := s.s.conversations.Setup(s.s.conversations.Get(convID))
	if err != nil {
		s.t.Fatal(err)
	}
	return setup.Agent.LLM
}
