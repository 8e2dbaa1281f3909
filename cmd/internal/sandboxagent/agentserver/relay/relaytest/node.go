// Package relaytest has a node's model gateway for tests of the relay.
package relaytest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/scheduler/agent"
)

// Node is a node's gateway: it takes the present tokens and answers as a test says. Mu guards the
// fields below it.
type Node struct {
	*httptest.Server
	key    string
	answer http.HandlerFunc

	Mu     sync.Mutex
	Seen   []*http.Request
	Bodies []string
	// Generation is part of every token; a pause raises it. Fetched counts the tokens.
	Generation, Fetched int
	Known               map[string]bool
}

// NewNode starts a node that accepts a sandbox's key and gives tokens of the conversations. answer
// handles the requests with a present token.
func NewNode(t *testing.T, key string, conversations []string, answer http.HandlerFunc) *Node {
	t.Helper()
	n := &Node{key: key, answer: answer, Known: map[string]bool{}}
	for _, id := range conversations {
		n.Known[id] = true
	}
	n.Server = httptest.NewServer(n)
	t.Cleanup(n.Close)
	return n
}

// Token is the present token of a conversation.
func (n *Node) Token(id string) string {
	return fmt.Sprintf("bvllm.box.%s.TOKENCANARY%d", id, n.Generation)
}

// ServeHTTP implements http.Handler.
func (n *Node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Bivouac-Index", "7")
	if r.URL.Path == "/alive" {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	n.Mu.Lock()
	n.Seen, n.Bodies = append(n.Seen, r), append(n.Bodies, string(body))
	generation := n.Generation
	n.Mu.Unlock()
	if r.URL.Path == "/llm/token" {
		var in struct {
			ID string `json:"conversation_id"`
		}
		if json.Unmarshal(body, &in) != nil || r.Header.Get(agent.KeyHeader) != n.key || !n.Known[in.ID] {
			wire.WriteDetail(w, http.StatusNotFound, "the sandbox has no such conversation")
			return
		}
		n.Mu.Lock()
		n.Fetched++
		n.Mu.Unlock()
		wire.WriteJSON(w, 200, map[string]string{"token": n.Token(in.ID)})
		return
	}
	if !strings.HasSuffix(r.Header.Get("Authorization"), fmt.Sprintf("TOKENCANARY%d", generation)) {
		wire.WriteJSON(w, 401, map[string]any{"error": map[string]string{"code": "bivouac_token"}})
		return
	}
	n.answer(w, r)
}

// Requests is how many requests came, without those whether the node lives.
func (n *Node) Requests() int {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	return len(n.Seen)
}

// Change calls fn with Mu held.
func (n *Node) Change(fn func()) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	fn()
}

// Sends writes a part of a response and flushes it.
func Sends(w http.ResponseWriter, text string) {
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

// Chat asks the model as an agent does.
func Chat(t *testing.T, llm engine.LLM, body string) (*http.Response, string) {
	t.Helper()
	return Ask(t, llm.BaseURL+"/chat/completions", body, "Authorization", "Bearer "+llm.APIKey)
}

// Ask posts a body with headers, and returns the response and its body.
func Ask(t *testing.T, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// Says200 is a handler that responds with a text.
func Says200(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}
