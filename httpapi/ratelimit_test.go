package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// The rate is so low that nothing is refilled while a test runs: a client has two requests, the
// second of which waits.
func slowRate(c *Config) { c.RatePerSecond = 0.001 }

// All requests here come from one address, as those of sandboxes behind one machine do.
func TestLimits_AFloodRefusesNoNeighbour(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	token, bobs := h.token(), h.bobs()
	bobsBox := h.createSandbox(h.bob)
	h.observe(bobsBox, running())
	bobsKey := h.secrets.last(fsm.SandboxKeyPath(bobsBox))["key"]
	now := h.server.cfg.Reloadable()
	now.RatePerSecond = 0.001
	if err := h.server.Reload(now); err != nil {
		t.Fatal(err)
	}
	floods := map[string]func(context.Context) int{
		"no key": func(context.Context) int { return h.do("", "GET", "/api/v1/sandboxes/search", "").status },
		"no key, models": func(ctx context.Context) int {
			return h.do("", "POST", pathChat, chatBody).status
		},
		"a key that is not good": func(context.Context) int {
			return h.do("nonsense", "GET", "/api/v1/sandboxes/search",
				"").status
		},
		"a token that is not good": func(context.Context) int {
			return h.do("", "POST", pathChat, chatBody, "Authorization", "Bearer nonsense").status
		},
		"a neighbour's model calls": func(ctx context.Context) int {
			return h.ask(ctx, token, pathChat,
				chatBody).StatusCode
		},
		"a neighbour": func(context.Context) int { return h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").status },
	}
	refused := map[string]bool{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for name, ask := range floods {
		for range 5 {
			all.Go(func() {
				status := ask(t.Context())
				mu.Lock()
				defer mu.Unlock()
				refused[name] = refused[name] || status == http.StatusTooManyRequests
			})
		}
	}
	all.Wait()
	for _, name := range []string{"no key", "a neighbour's model calls", "a neighbour"} {
		if !refused[name] {
			t.Errorf("the flood of %s is not refused", name)
		}
	}
	whole(t, h.ask(t.Context(), bobs, pathChat, chatBody), 200)
	h.do(h.bob, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
	h.do(bobsKey, "GET", fmt.Sprintf("/api/v1/sandboxes/%s/settings/secrets", bobsBox), "").want(t, 200)
	h.do("", "GET", "/api/v1/openapi-or-nothing", "").want(t, 429)
	h.do("", "GET", "/ready", "").want(t, 200)
}

// What a key that is not good asks for counts for its address.
func TestLimits_BadKeysCountForTheirAddress(t *testing.T) {
	t.Parallel()
	h := newHarness(t, slowRate)
	for range 2 {
		h.do("nonsense", "GET", "/api/v1/sandboxes/search", "").want(t, 401)
	}
	h.do("", "GET", "/api/v1/sandboxes/search", "").want(t, 429)
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
}
