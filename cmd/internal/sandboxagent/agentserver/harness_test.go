package agentserver

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/scheduler/agent"
)

const (
	testKey = "KEYCANARY0123456789"
	convID  = "6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01"
	convUID = "6f0c4e3b-9a7d-4c1e-8f2b-5a6d7c8e9f01"
)

// server is a Server on a real HTTP server.
type server struct {
	t    *testing.T
	url  string
	s    *Server
	http *httptest.Server
	logs *bytes.Buffer
}

func serveAt(t *testing.T, dir string, edit func(*config.Config)) *server {
	t.Helper()
	logs := &bytes.Buffer{}
	cfg := config.Config{
		Keys: []string{"other", testKey}, ConversationsPath: dir, Version: "test", SecretKey: "SEALCANARY",
		Logger: slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		// The start file of whoever runs the tests may take seconds for each shell.
		Environ: append(os.Environ(), "HOME="+t.TempDir()),
	}
	stepping(nil, nil)(&cfg)
	if edit != nil {
		edit(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() { h.Close(); s.close() })
	return &server{t: t, url: h.URL, s: s, http: h, logs: logs}
}

func newServer(t *testing.T) *server {
	t.Helper()
	return serveAt(t, t.TempDir(), nil)
}

// inherits gives a server's commands and agents this process's environment and more.
func inherits(more ...string) func(*config.Config) {
	return func(c *config.Config) { c.Environ = append(os.Environ(), more...) }
}

// send makes one call with the key and returns status and body.
func (s *server) send(method, path, body string) (int, string) {
	s.t.Helper()
	return call(s.t, method, s.url+path, testKey, body)
}

func call(t *testing.T, method, url, key, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set(agent.KeyHeader, key)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// want makes a call and checks its status.
func (s *server) want(status int, method, path, body string) string {
	s.t.Helper()
	got, text := s.send(method, path, body)
	if got != status {
		s.t.Fatalf("%s %s: status %d, want %d: %s", method, path, got, status, text)
	}
	return text
}

func decodeJSON[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// createBody is a request with every kind of secret.
func createBody(t *testing.T, id string) string {
	t.Helper()
	b, err := json.Marshal(map[string]any{
		"conversation_id": id,
		"workspace":       map[string]any{"kind": "LocalWorkspace", "working_dir": t.TempDir() + "/project/app"},
		"agent_settings": map[string]any{
			"agent_kind": "openhands",
			"llm": map[string]any{"model": "anthropic/claude-sonnet-4", "api_key": "LLMCANARY", "usage_id": "agent",
				"base_url": "https://user:URLCANARY@llm.example.org/v1?k=URLCANARY", "extra_headers": map[string]string{
					"X": "HEADCANARY",
				}},
			"mcp_config": map[string]any{
				"mcpServers": map[string]any{"files": map[string]any{"command": "x", "env": map[string]string{"T": "MCPCANARY"}}},
			},
			"agent_context": map[string]any{"system_message_suffix": "be brief", "secrets": map[string]string{"A": "CTXCANARY"}},
		},
		"secrets": map[string]any{"GITHUB_TOKEN": map[string]string{"kind": "StaticSecret", "value": "TOKENCANARY"}},
		"initial_message": map[string]any{
			"role":    "user",
			"content": []any{map[string]any{"type": "text", "text": "Check the README"}},
		},
		"tags": map[string]string{"repo": "app"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// eventSeen are the members of an event that tests look at.
type eventSeen struct {
	ID        string          `json:"id"`
	Timestamp string          `json:"timestamp"`
	Kind      string          `json:"kind"`
	Source    string          `json:"source"`
	Key       string          `json:"key"`
	Value     json.RawMessage `json:"value"`
}
