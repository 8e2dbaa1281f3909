package llm

import (
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// TestUnderstand_WhatAgentsSend: the members that Codex 0.137 and OpenCode 1.18 were seen to send pass
// while models have prices, and of their headers those that endpoints need.
func TestUnderstand_WhatAgentsSend(t *testing.T) {
	t.Parallel()
	for name, agent := range map[string]struct{ members, headers, dropped string }{
		"codex": {
			"client_metadata include input instructions parallel_tool_calls prompt_cache_key reasoning store tool_choice tools",
			"Accept Content-Type User-Agent X-Client-Request-Id",
			"Authorization Originator Session-Id Thread-Id X-Codex-Beta-Features X-Codex-Turn-Metadata X-Codex-Window-Id",
		},
		"opencode": {
			"max_tokens messages stream_options tool_choice tools", "Accept Content-Type User-Agent",
			"Authorization X-Session-Affinity X-Session-Id",
		},
	} {
		body := `{"model":"gpt-5","stream":true`
		for _, member := range strings.Fields(agent.members) {
			body += `,"` + member + `":null`
		}
		q := &request{grant: &grant{policy: fsm.LLM{Prices: []fsm.Price{{Model: "*"}}}}, body: []byte(body + "}")}
		if err := q.understand(); err != nil || q.name != "gpt-5" || !q.stream {
			t.Errorf("%s: %v", name, err)
		}
		for _, header := range strings.Fields(agent.headers) {
			if !passes(http.CanonicalHeaderKey(header)) {
				t.Errorf("%s: the header %s does not pass", name, header)
			}
		}
		for _, header := range strings.Fields(agent.dropped) {
			if passes(http.CanonicalHeaderKey(header)) {
				t.Errorf("%s: the header %s passes", name, header)
			}
		}
	}
}
