package httpapi

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
)

// raised sets the newest protocol version, which makes Apply check a command's key.
func (h *harness) raised() *harness {
	h.t.Helper()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	return h
}

// revoke revokes a key through another node.
func (h *harness) revoke(key string) {
	h.t.Helper()
	h.apply("", &fsm.APIKeyRevokeBody{ID: h.cluster.store.View().APIKeyByLookup(apikey.LookupOf(key)).ID})
}

// lag keeps this node's own store as it is while change happens elsewhere.
func (h *harness) lag(change func()) {
	h.t.Helper()
	before := h.cluster.store.View()
	change()
	h.behind(before)
}

// behind sets this node's own store to an earlier view until it hears from the cluster.
func (h *harness) behind(before *fsm.View) {
	h.cluster.set(func(c *fakeCluster) { c.behind, c.catchUp, c.contact = before, true, time.Now() })
}

// answersFromItself are the routes that use only local state, so that operators can use them
// without a leader.
func answersFromItself(r route) bool { return r.name == "cluster.status" }

// TestRevoked_EveryRoute: a node that has not heard of a revocation refuses the key at once and
// does nothing for it.
func TestRevoked_EveryRoute(t *testing.T) {
	t.Parallel()
	for _, r := range routes() {
		if r.access == open || r.access == signIn {
			continue // TestSession_EndsEverywhere has the sessions
		}
		t.Run(r.name, func(t *testing.T) {
			h := newHarness(t, withLogs(&fakeLogs{})).withSpec().withSettings().raised()
			sb := h.createSandbox(h.alice)
			h.observe(sb, running())
			method, path, body := sampleRequest(r, sb, h.conversation("alice", sb))
			switch r.name {
			case "settings.put":
				body = `{"llm_api_key":"sk-1"}`
			case "spec.pool":
				path, body = path+"/pool", `{"size":1}`
			case "snapshot.restore":
				path += "?keys=keep"
			}
			key := h.alice
			switch r.access {
			case operator:
				key = h.root
			case sandboxKey:
				key = h.secrets.last(fsm.SandboxKeyPath(sb))["key"]
			}
			h.lag(func() {
				h.revoke(h.alice)
				h.revoke(h.root)
				if r.access == sandboxKey {
					h.apply("alice", &fsm.SandboxDeleteBody{ID: sb})
				}
			})
			sum, written, sent, members := h.cluster.store.Checksum(), h.secrets.written(), len(
				h.agents.sent(),
			), len(
				h.cluster.members,
			)
			index := h.cluster.store.Index()
			res := h.do(key, method, path, body)
			if answersFromItself(r) {
				res.want(t, http.StatusOK)
				return
			}
			res.want(t, http.StatusUnauthorized)
			if h.cluster.store.Index() == index && h.cluster.store.Checksum() != sum {
				t.Error("the state changed without a command")
			}
			for _, o := range h.cluster.outcomes {
				if o == nil {
					t.Error("a command was applied")
				}
			}
			if n := h.secrets.written(); n != written {
				t.Errorf("%d secrets were written", n-written)
			}
			if n := len(h.agents.sent()); n != sent {
				t.Error("a message was sent")
			}
			if n := len(h.cluster.members); n != members {
				t.Errorf("members were changed: %v", h.cluster.members)
			}
			h.cluster.set(func(c *fakeCluster) { c.behind = nil })
			h.do(key, method, path, body).want(t, http.StatusUnauthorized)
		})
	}
}

// TestRevoked_RepeatedRequest: an Idempotency-Key returns no recorded result to a revoked key, and
// the refusal is not recorded.
func TestRevoked_RepeatedRequest(t *testing.T) {
	h := newHarness(t).withSpec().raised()
	second := h.issue("alice", false)
	h.do(h.alice, "POST", "/api/v1/sandboxes", "", request.HeaderIdempotencyKey, "one").want(t, 200)
	before := h.cluster.store.View()
	h.revoke(h.alice)
	for _, key := range []string{"one", "two"} {
		h.behind(before)
		h.do(h.alice, "POST", "/api/v1/sandboxes", "", request.HeaderIdempotencyKey, key).want(t, 401)
	}
	h.cluster.set(func(c *fakeCluster) { c.behind = nil })
	for _, key := range []string{"one", "two"} {
		h.do(second, "POST", "/api/v1/sandboxes", "", request.HeaderIdempotencyKey, key).want(t, 200)
	}
	if n := len(slices.Collect(h.cluster.store.View().AllSandboxes())); n != 2 {
		t.Errorf("%d sandboxes", n)
	}
}

// TestRevoked_Proxy: the proxy confirms keys with the cluster.
func TestRevoked_Proxy(t *testing.T) {
	for name, c := range map[string]struct {
		key    func(*proxyHarness) string
		change func(*proxyHarness)
	}{
		"its owner's key was revoked": {
			func(h *proxyHarness) string { return h.alice }, func(h *proxyHarness) { h.revoke(h.alice) }},
		"the sandbox was deleted": {
			func(h *proxyHarness) string { return h.key }, func(h *proxyHarness) {
				h.apply("alice",
					&fsm.SandboxDeleteBody{ID: h.id})
			}},
	} {
		t.Run(name, func(t *testing.T) {
			h, behind := newProxyHarness(t)
			behind.serve(echoes)
			h.raised()
			key := c.key(h)
			h.ask("GET", h.at("AGENT_SERVER", "/x"), "", proxy.HeaderKey, key).want(t, 200)
			before := behind.count()
			old := h.cluster.store.View()
			c.change(h)
			h.behind(old)
			h.ask("GET", h.at("AGENT_SERVER", "/x"), "", proxy.HeaderKey, key).want(t, 401)
			h.behind(old)
			h.ask("POST", h.at("WORKER_1", "/x"), "", proxy.HeaderKey, key).want(t, 401)
			h.behind(old) // a socket with its key in the first frame
			if code := ended(t, h.dialWithoutKey(key)); code != proxy.CloseUnauthorized {
				t.Errorf("the socket ended with %d, want 4001", code)
			}
			if n := behind.count(); n != before {
				t.Errorf("%d requests went through", n-before)
			}
			// Without a leader the key can't be confirmed: requests go on.
			h.behind(old)
			h.cluster.set(func(c *fakeCluster) { c.viewErr = fsm.Errorf(fsm.CodeNoLeader, "no leader") })
			h.ask("GET", h.at("AGENT_SERVER", "/x"), "", proxy.HeaderKey, key).want(t, 200)
		})
	}
}

// TestRevoked_OpenStreams: streams end when their key is revoked.
func TestRevoked_OpenStreams(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(echoes)
	h.raised()
	conn := h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey, h.alice)
	h.revoke(h.bob) // another key's revocation has no effect
	if got := say(t, conn, "one"); got != "echo one" {
		t.Fatalf("it came back as %q", got)
	}
	h.revoke(h.alice)
	if code := ended(t, conn); code == -1 {
		t.Error("the socket is still open")
	}
}

// TestRevoked_NodeThatWasCutOff runs three real nodes. The leader revokes a key while a follower is
// cut off; the follower then gets a request with the key at once.
func TestRevoked_NodeThatWasCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		leader := c.Leader()
		follower := c.Follower()
		propose := func(body fsm.Body, id string) {
			t.Helper()
			if _, err := c.Propose(t.Context(), leader, fsm.NewCommand(id, time.Now(), "", body)); err != nil {
				t.Fatal(err)
			}
		}
		key, err := apikey.New(strings.NewReader(strings.Repeat("\x01\x02\x03\x04\x05", 100)))
		if err != nil {
			t.Fatal(err)
		}
		c.Eventually("the protocol version is raised", func() bool {
			return c.Store(leader).View().ProtocolVersion() == fsm.ProtocolVersion
		})
		propose(&fsm.APIKeyCreateBody{Lookup: key.Lookup, Hash: key.Hash, Name: "k", UserID: "alice"}, "create")
		c.Settle()
		cfg := DefaultConfig()
		cfg.Registerer, cfg.Gatherer = prometheus.NewRegistry(), prometheus.NewRegistry()
		cfg.Logger = slog.New(slog.DiscardHandler)
		server, err := New(cfg, c.Node(follower), &fakeSecrets{entries: map[string][]map[string]string{}}, &fakeAgents{})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(method, path, body string) int {
			r := httptest.NewRequest(method, "http://example.org"+path, strings.NewReader(body))
			r.Header.Set(proxy.HeaderKey, key.Value)
			w := httptest.NewRecorder()
			server.Handler().ServeHTTP(w, r)
			return w.Code
		}
		if got := ask("POST", "/api/settings", `{}`); got != 200 {
			t.Fatalf("a good key: %d", got)
		}
		c.Isolate(follower)
		propose(&fsm.APIKeyRevokeBody{ID: 1}, "revoke")
		synctest.Wait() // the leader's call to the follower has failed
		c.Heal()
		if v, err := c.Node(follower).View(t.Context(), cluster.Stale); err != nil ||
			!v.APIKeyByLookup(key.Lookup).Valid(time.Now()) {
			t.Fatalf("the follower has heard of it: %v", err)
		}
		for _, one := range [][2]string{{"POST", "/api/settings"}, {"GET", "/api/settings"}} {
			if got := ask(one[0], one[1], `{}`); got != http.StatusUnauthorized {
				t.Errorf("%s %s with the revoked key: %d, want 401", one[0], one[1], got)
			}
		}
	})
}
