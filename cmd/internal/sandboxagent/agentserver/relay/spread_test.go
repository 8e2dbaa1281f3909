package relay

import (
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/relay/relaytest"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
)

// perUser is how many requests of a user a node takes at once, as the gateway's own default.
const perUser = 64

// limited is a node whose requests wait for release, and which takes perUser of them.
func limited(t *testing.T, release <-chan struct{}, whose string) *relaytest.Node {
	t.Helper()
	slots := make(chan struct{}, perUser)
	return relaytest.NewNode(t, testKey, []string{convID, otherID}, func(w http.ResponseWriter, _ *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			w.Header().Set("X-Bivouac-Limit", whose)
			w.Header().Set("Retry-After", "1")
			wire.WriteJSON(w, http.StatusTooManyRequests, map[string]any{"error": map[string]string{"code": "bivouac_busy"}})
			return
		}
		<-release
		relaytest.Sends(w, "ok")
	})
}

// Requests begin at any node, so that as many are served as all nodes take, and a node that is full
// gives way to one that is not.
func TestRelay_RequestsSpreadOverTheNodes(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var nodes []*relaytest.Node
	var urls []string
	for range 3 {
		n := limited(t, release, "user")
		nodes, urls = append(nodes, n), append(urls, n.URL)
	}
	r := New(config.Config{APIURLs: urls, Keys: []string{testKey}, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(r.Close)
	llm := r.agent(t, convID, nodes[0].Token(convID))
	var wg sync.WaitGroup
	for range 3 * perUser {
		wg.Go(func() {
			if resp, text := relaytest.Chat(t, llm, "question"); resp.StatusCode != http.StatusOK || text != "ok" {
				t.Errorf("%d %s", resp.StatusCode, text)
			}
		})
	}
	for full := 0; full < 3 && !t.Failed(); { // each has its share, which only those that gave way can fill
		runtime.Gosched()
		full = 0
		for _, n := range nodes {
			if n.Requests() >= perUser {
				full++
			}
		}
	}
	close(release)
	wg.Wait()
	for i, n := range nodes {
		if got := n.Requests(); got < perUser || got > 3*perUser {
			t.Errorf("node %d was asked %d times", i, got)
		}
	}
}

// A limit that every node has is told with its owner, and an endpoint's own is asked for once.
func TestRelay_ALimitSaysWhoseItIs(t *testing.T) {
	t.Parallel()
	full := func(whose string) *relaytest.Node {
		return relaytest.NewNode(t, testKey, []string{convID}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Bivouac-Limit", whose)
			code := map[bool]string{true: "rate_limit_exceeded", false: "bivouac_busy"}[whose == "endpoint"]
			wire.WriteJSON(w, http.StatusTooManyRequests, map[string]any{"error": map[string]string{"code": code}})
		})
	}
	down := relaytest.NewNode(t, testKey, []string{convID}, func(w http.ResponseWriter, _ *http.Request) {
		wire.WriteJSON(w, http.StatusServiceUnavailable, map[string]any{"error": map[string]string{"code": "bivouac_failed"}})
	})
	for _, c := range []struct {
		whose string
		asked int
	}{{"user", 2}, {"node", 2}, {"endpoint", 1}} {
		one, two := full(c.whose), full(c.whose)
		r := relayOf(t, one.URL, down.URL, two.URL)
		resp, text := relaytest.Chat(t, r.agent(t, convID, one.Token(convID)), "question")
		if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("X-Bivouac-Limit") != c.whose ||
			!strings.Contains(text, "code") {
			t.Errorf("%s: %d %v %s", c.whose, resp.StatusCode, resp.Header, text)
		}
		if n := one.Requests() + two.Requests(); n != c.asked {
			t.Errorf("%s: %d requests, want %d", c.whose, n, c.asked)
		}
	}
}

// A node that failed is asked after the others for a while, wherever a request begins.
func TestRelay_AFailedNodeIsAskedLast(t *testing.T) {
	t.Parallel()
	gone := relaytest.NewNode(t, testKey, []string{convID}, nil)
	gone.Close()
	one := relaytest.NewNode(t, testKey, []string{convID}, relaytest.Says200("ok"))
	r := relayOf(t, gone.URL, one.URL, one.URL)
	if got := r.order(); got[0] != 0 {
		t.Errorf("it begins with %v", got)
	}
	if resp, text := relaytest.Chat(t, r.agent(t, convID, one.Token(convID)), "x"); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	for begin := range 3 {
		r.begin = func(int) int { return begin }
		if got := r.order(); len(got) != 3 || got[2] != 0 {
			t.Errorf("from %d on it asks %v", begin, got)
		}
	}
}
