package httpapi

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/httpapi/proxy"
)

func TestProxy_HealthNeedsNoKey(t *testing.T) {
	h, behind := newProxyHarness(t)
	answer := func(status int, text string) {
		behind.serve(func(port string, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, port+text)
			return true
		})
	}
	answer(200, " is well")
	for _, path := range []string{"/health", "/alive"} {
		got := h.ask("GET", h.at("AGENT_SERVER", path), "").want(t, 200)
		if string(got.body) != "AGENT_SERVER is well" || got.header.Get("Content-Type") != "application/json" ||
			got.header.Get("Location") != "" {
			t.Errorf("%v %s", got.header, got.body)
		}
		if seen := behind.last(); seen.uri != path || seen.header.Get(proxy.HeaderKey) != "" {
			t.Errorf("the agent server got %+v", seen)
		}
	}
	answer(200, strings.Repeat("x", 100_000))
	if got := h.ask("GET", h.at("AGENT_SERVER", "/health"), "").want(t, 200); len(got.body) != 4<<10 {
		t.Errorf("%d bytes", len(got.body))
	}
	for _, status := range []int{302, 401, 500} {
		answer(status, "")
		h.ask("GET", h.at("AGENT_SERVER", "/alive"), "").want(t, 503)
	}
	before := behind.count()
	h.ask("GET", h.at("AGENT_SERVER", "/ready"), "").want(t, 401)
	h.ask("POST", h.at("AGENT_SERVER", "/health"), "").want(t, 401)
	h.ask("GET", h.at("WORKER_1", "/health"), "").want(t, 401)
	h.ask("GET", h.at("AGENT_SERVER", "/health"), "", proxy.HeaderKey, "wrong").want(t, 401)
	// The response does not show whether the sandbox exists, and nothing is woken.
	unknown := h.ask("GET", h.front.URL+proxy.Path+"nosuchsandbox/AGENT_SERVER/health", "").want(t, 503)
	h.pause()
	commands := h.cluster.count()
	paused := h.ask("GET", h.at("AGENT_SERVER", "/health?wake=true"), "").want(t, 503)
	if string(paused.body) != string(unknown.body) || h.cluster.count() != commands || behind.count() != before {
		t.Errorf("%s and %s, %d commands", unknown.body, paused.body, h.cluster.count()-commands)
	}
}

// Concurrent checks make one query at a time to the agent server, and a hanging one uses none of
// the owner's sessions.
func TestProxy_HealthWithoutAKeyIsBounded(t *testing.T) {
	h, behind := newProxyHarness(t)
	release := make(chan struct{})
	behind.serve(func(_ string, _ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/health" {
			<-release
		}
		return false
	})
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() { h.ask("GET", h.at("AGENT_SERVER", "/health"), "") })
	}
	until(t, "it is asked", func() bool { return behind.count() > 0 })
	h.ask("GET", h.at("AGENT_SERVER", "/x"), "", proxy.HeaderKey, h.key).want(t, 200)
	until(t, "no session is left", func() bool { return h.server.proxy.Load().Sessions == 0 })
	asked := 0
	for _, one := range behind.all() {
		if one.uri == "/health" {
			asked++
		}
	}
	close(release)
	group.Wait()
	if asked != 1 {
		t.Errorf("it was asked %d times at once", asked)
	}
}
