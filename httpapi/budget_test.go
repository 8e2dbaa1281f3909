//go:build !race

package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/deploy/local/ownprocess"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
)

// budgetSettings is the body of a POST /api/settings of typical size.
const budgetSettings = `{"language":"en","agent":"CodeActAgent","max_iterations":100,"confirmation_mode":true,` +
	`"llm_model":"anthropic/claude-sonnet-4","llm_base_url":"https://llm.example.org/v1",` +
	`"enable_default_condenser":true,` +
	`"git_user_name":"Ada","git_user_email":"ada@example.org"}`

// sink is a connection that takes every response.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(status int)      { s.status = status }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }

// requests returns a step that sends the same request again and again.
func (h *harness) requests(key, method, path, body string) func() {
	w := &sink{header: http.Header{}}
	r := httptest.NewRequest(method, "http://example.org"+path, nil)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Session-API-Key", key)
	text := strings.NewReader(body)
	if body != "" {
		r.Body, r.ContentLength = io.NopCloser(text), int64(len(body))
	}
	return func() {
		clear(w.header)
		text.Reset(body)
		h.handler.ServeHTTP(w, r)
		if w.status != http.StatusOK {
			h.t.Fatalf("%s %s: status %d", method, path, w.status)
		}
	}
}

// TestBudget holds the allocations of the API's part of a request: no socket, and a log at the level
// of production. A write has those of the fake cluster, which encodes, decodes and applies.
func TestBudget(t *testing.T) {
	if !ownprocess.Enter(t, "GOGC=off") {
		return
	}
	quiet := func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil)) }
	h := newHarness(t, quiet).newest()
	h.do(h.alice, http.MethodPost, "/api/settings", budgetSettings).want(t, http.StatusOK)
	v, err := h.cluster.View(context.Background(), cluster.Stale)
	if err != nil {
		t.Fatal(err)
	}
	stored := &storedSettings{v.Settings("alice"), json.RawMessage("null"), v.Providers("alice")}
	shown, err := newSettingsBody(stored)
	if err != nil {
		t.Fatal(err)
	}
	refused := fsm.Errorf(fsm.CodeNotFound, "there is none")
	w := &sink{header: http.Header{}}
	sandbox, behind := newProxyHarness(t, quiet)
	behind.serve(func(string, http.ResponseWriter, *http.Request) bool { return false })
	ownprocess.CheckBudget(t, []ownprocess.Step{
		{
			Name:   "a stale read of settings",
			Allocs: 63,
			Bytes:  3208,
			Run:    h.requests(h.alice, http.MethodGet, "/api/settings?stale", ""),
		},
		{
			Name:   "a linearizable read of settings",
			Allocs: 60,
			Bytes:  2792,
			Run:    h.requests(h.alice, http.MethodGet, "/api/settings", ""),
		},
		{Name: "settings: show", Allocs: 4, Bytes: 1656, Run: func() { _, _ = newSettingsBody(stored) }},
		{Name: "settings: send", Allocs: 5, Bytes: 208, Run: func() {
			clear(w.header)
			items := response.EncodedItems{Items: []json.RawMessage{shown}}
			_ = response.Response{Status: http.StatusOK, Body: items}.Write(w, func() {})
		}},
		{
			Name:   "a write of settings",
			Allocs: 216,
			Bytes:  15700,
			Run:    h.requests(h.alice, http.MethodPost, "/api/settings", budgetSettings),
		},
		{Name: "a refused request", Allocs: 14, Bytes: 288, Run: func() {
			clear(w.header)
			response.FailureOf(refused, response.FormatDetail, "").Write(w)
		}},
		// The sandbox's server and two sockets are part of it.
		{
			Name:   "a proxied request",
			Allocs: 232,
			Bytes:  20000,
			Loose:  2,
			Run: sandbox.requests(sandbox.key, http.MethodGet,
				strings.TrimPrefix(sandbox.at(fsm.PortAgentServer, "/health"), sandbox.front.URL), ""),
		},
	})
}
