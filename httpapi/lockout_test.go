package httpapi

import (
	"context"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/proxy"
)

// lockouts are the ways to lock alice out, who has one key.
func lockouts() map[string]func(*harness) {
	return map[string]func(*harness){
		"her last key is revoked": func(h *harness) { h.revoke(h.alice) },
		"her last key is disabled": func(h *harness) {
			h.apply("", &fsm.APIKeyDisableBody{ID: h.cluster.store.View().APIKeyByLookup(apikey.LookupOf(h.alice)).ID})
		},
		"she is disabled": func(h *harness) {
			h.do(h.root, "POST", "/api/v1/operator/users/alice/disable", "").want(h.t, 200)
		},
	}
}

// TestLockedOut: with the last key of a user revoked or disabled, or the user disabled, the
// sandbox's key runs no commands and reads no secrets, and open streams end, whatever authorised
// them.
func TestLockedOut(t *testing.T) {
	for name, lock := range lockouts() {
		t.Run(name, func(t *testing.T) {
			h, behind := newProxyHarness(t)
			behind.serve(echoes)
			h.raised()
			secrets := "/api/v1/sandboxes/" + h.id + "/settings/secrets"
			requests := map[string]func() reply{
				"a command with the sandbox's key": func() reply {
					return h.ask("POST", h.at("AGENT_SERVER", "/api/bash/execute_bash_command"), `{"command":"id"}`, proxy.HeaderKey,
						h.key)
				},
				"a page with the sandbox's key": func() reply {
					return h.ask("GET", h.at("WORKER_1", "/x"), "",
						proxy.HeaderKey, h.key)
				},
				"secrets with the sandbox's key": func() reply { return h.do(h.key, "GET", secrets, "") },
				"the API key at the proxy": func() reply {
					return h.ask("GET", h.at("AGENT_SERVER", "/x"), "",
						proxy.HeaderKey, h.alice)
				},
				"the API key at the API": func() reply { return h.do(h.alice, "GET", "/api/v1/sandboxes/search", "") },
				"a resume with ?wake=true and key": func() reply {
					return h.ask("GET", h.at("AGENT_SERVER", "/x?wake=true"), "",
						proxy.HeaderKey, h.key)
				},
			}
			for what, ask := range requests {
				if got := ask(); got.status/100 == 4 {
					t.Fatalf("before, %s: %d %s", what, got.status, got.body)
				}
			}
			streams := map[string]*websocket.Conn{
				"the API key":       h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey, h.alice),
				"the sandbox's key": h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey, h.key),
			}
			lock(h.harness)
			for what, conn := range streams {
				if code := ended(t, conn); code == -1 {
					t.Errorf("the stream by %s was not ended", what)
				}
			}
			arrived := behind.count()
			for what, ask := range requests {
				if got := ask(); got.status != 401 {
					t.Errorf("%s: %d %s", what, got.status, got.body)
				}
			}
			if n := behind.count() - arrived; n != 0 {
				t.Errorf("%d requests went through", n)
			}
		})
	}
}

// TestLockedOut_Cookie: the cookie of a sandbox's host opens nothing for who is locked out.
func TestLockedOut_Cookie(t *testing.T) {
	for name, lock := range lockouts() {
		t.Run(name, func(t *testing.T) {
			h, behind := newProxyHarness(t, withDomain)
			behind.serve(echoes)
			h.raised()
			cookie, _ := cookieOf(t,
				h.ask("GET", h.front.URL, "", "Host", h.host("VSCODE"), proxy.HeaderKey, h.key).want(t, 200))
			page := func() reply {
				return h.ask("GET", h.front.URL+"/x", "", "Host", h.host("VSCODE"), "Cookie", cookie)
			}
			page().want(t, 200)
			lock(h.harness)
			page().want(t, 401)
		})
	}
}

// TestLockedOut_WithoutALeader: a node that has heard of the lockout refuses also when there is no
// leader to ask.
func TestLockedOut_WithoutALeader(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(echoes)
	h.raised()
	h.do(h.root, "POST", "/api/v1/operator/users/alice/disable", "").want(t, 200)
	h.cluster.set(func(c *fakeCluster) { c.contact, c.viewErr = time.Now(), fsm.Errorf(fsm.CodeNoLeader, "no leader") })
	h.ask("GET", h.at("AGENT_SERVER", "/x"), "", proxy.HeaderKey, h.key).want(t, 401)
	h.ask("GET", h.at("AGENT_SERVER", "/x"), "", proxy.HeaderKey, h.alice).want(t, 401)
}

// TestLockedOut_Expiry: streams end when the last key of their user expires, without any command.
func TestLockedOut_Expiry(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(echoes)
	h.raised()
	soon, err := apikey.New(randomBytes{})
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(3 * time.Second)
	h.apply("",
		&fsm.APIKeyCreateBody{Lookup: soon.Lookup, Hash: soon.Hash, Name: "soon", UserID: "alice", ExpiresAt: &end})
	h.revoke(h.alice)
	byKey := h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey, soon.Value)
	bySandbox := h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey, h.key)
	for _, conn := range []*websocket.Conn{byKey, bySandbox} {
		if code := ended(t, conn); code == -1 {
			t.Error("the stream was not ended")
		}
	}
	h.do(soon.Value, "GET", "/api/v1/sandboxes/search", "").want(t, 401)
}

// randomBytes is a source of equal bytes for a key.
type randomBytes struct{}

// Read implements io.Reader.
func (randomBytes) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i)
	}
	return len(p), nil
}

// TestStreams_EndWithoutALeader: a node that has had no leader for MaxStale ends its streams, since
// it can't learn who was locked out.
func TestStreams_EndWithoutALeader(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(echoes)
	conn := h.mustDial("AGENT_SERVER", eventSocket, proxy.HeaderKey, h.key)
	if got := say(t, conn, "one"); got != "echo one" {
		t.Fatalf("it came back as %q", got)
	}
	h.cluster.set(func(c *fakeCluster) { c.contact = time.Now().Add(-proxy.DefaultConfig().MaxStale - time.Second) })
	if code := ended(t, conn); code != websocket.StatusServiceRestart {
		t.Errorf("it ended with %d", code)
	}
}

// TestUser_Disable: the user's open starts fail and running sandboxes are paused; nothing is
// deleted. After enabling, the user's own requests work again.
func TestUser_Disable(t *testing.T) {
	h := newHarness(t).withSpec().withSettings().raised()
	sb := h.createSandbox(h.alice)
	h.observe(sb, running())
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{}`).want(t, 200)
	h.do(h.root, "POST", "/api/v1/operator/users/root/disable", "").want(t, 409)
	h.do(h.root, "POST", "/api/v1/operator/users/nobody/disable", "").want(t, 404).is(t, `{"detail":"User not found"}`)
	h.do(h.alice, "POST", "/api/v1/operator/users/bob/disable", "").want(t, 403)
	var user struct {
		ID         string
		DisabledAt *time.Time `json:"disabled_at"`
	}
	h.do(h.root, "POST", "/api/v1/operator/users/alice/disable", "").want(t, 200).json(t, &user)
	if user.ID != "alice" || user.DisabledAt == nil {
		t.Errorf("the answer is %+v", user)
	}
	v, err := h.cluster.View(context.Background(), cluster.Stale)
	if err != nil {
		t.Fatal(err)
	}
	if row := v.SandboxAny(sb); row.Desired != fsm.DesiredPaused || row.PausedBy != fsm.PausedByDisabled {
		t.Errorf("the sandbox is %s by %q", row.Desired, row.PausedBy)
	}
	if open := v.OpenStartTasks(); len(open) != 0 {
		t.Errorf("%d starts are open", len(open))
	}
	h.do(h.alice, "POST", "/api/v1/sandboxes", "").want(t, 401)
	h.do(h.root, "POST", "/api/v1/operator/users/alice/enable", "").want(t, 200)
	h.do(h.alice, "POST", "/api/v1/sandboxes/"+sb+"/resume", "").want(t, 200)
}

// TestAPIKey_Create_Expires: the expiry is a time in the future, and needs a cluster that knows it.
func TestAPIKey_Create_Expires(t *testing.T) {
	h := newHarness(t)
	keys := "/api/v1/operator/keys"
	later := `{"user":"carol","name":"x","expires_at":"2999-01-02T15:04:05Z"}`
	h.do(h.root, "POST", keys, later).want(t, 409)
	h.raised()
	var made struct {
		ExpiresAt *time.Time `json:"expires_at"`
	}
	h.do(h.root, "POST", keys, later).want(t, 201).json(t, &made)
	if made.ExpiresAt == nil || made.ExpiresAt.Year() != 2999 {
		t.Errorf("made %+v", made)
	}
	for _, bad := range []string{`"2020-01-02T15:04:05Z"`, `"tomorrow"`, `5`} {
		h.do(h.root, "POST", keys, `{"user":"carol","name":"x","expires_at":`+bad+`}`).want(t, 422)
	}
}

// TestKeyUses: a node sends one command for all keys that it saw, and none while the noted times
// are within the hour.
func TestKeyUses(t *testing.T) {
	h := newHarness(t).raised()
	uses := h.server.keys.uses
	send := func() int {
		before := h.cluster.count()
		uses.send(t.Context(), time.Second)
		return h.cluster.count() - before
	}
	for range 3 {
		h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
		h.do(h.bob, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
	}
	h.do("bvk_"+h.alice[4:len(h.alice)-1]+"!", "GET", "/api/v1/sandboxes/search", "").want(t, 401)
	h.cluster.set(func(c *fakeCluster) { c.proposeErr = fsm.Errorf(fsm.CodeNoLeader, "no leader") })
	send()
	h.cluster.set(func(c *fakeCluster) { c.proposeErr = nil })
	if n := send(); n != 1 {
		t.Errorf("%d commands, want 1", n)
	}
	for _, key := range []string{h.alice, h.bob} {
		if k := h.cluster.store.View().APIKeyByLookup(apikey.LookupOf(key)); k.LastUsedAt == nil ||
			time.Since(*k.LastUsedAt) > time.Minute {
			t.Errorf("key %d was last used at %v", k.ID, k.LastUsedAt)
		}
	}
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
	if n := send(); n != 0 {
		t.Errorf("%d commands within the hour", n)
	}
}

// TestUser_Delete: everything of a user goes, with the values in the secret store, and nothing of
// another's. It can be repeated.
func TestUser_Delete(t *testing.T) {
	h := newHarness(t).withSpec().withSettings().raised()
	sb, theirs := h.createSandbox(h.alice), h.createSandbox(h.bob)
	h.conversation("alice", sb)
	h.do(h.alice, "POST", settingsPath, `{"llm_api_key":"sk-1"}`).want(t, 200)
	h.do(h.bob, "POST", settingsPath, `{"llm_api_key":"sk-2"}`).want(t, 200)
	path := func(user string) string { return "users/" + user + "/settings/llm_api_key" }
	if h.secrets.last(path("alice"))["value"] != "sk-1" {
		t.Fatal("there is no secret to delete")
	}
	users := "/api/v1/operator/users/"
	h.do(h.root, "DELETE", users+"root", "").want(t, 409)
	h.do(h.bob, "DELETE", users+"alice", "").want(t, 403)
	h.do(h.root, "DELETE", users+"alice", "").want(t, 200)
	h.do(h.root, "DELETE", users+"alice", "").want(t, 404).is(t, `{"detail":"User not found"}`)
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 401)
	v := h.cluster.store.View()
	conversations, _ := v.Conversations("alice", fsm.ConversationFilter{}, fsm.Page{})
	if v.User("alice") != nil || v.Settings("alice") != nil || len(conversations) != 0 || len(v.SecretsOf("alice")) != 0 ||
		v.APIKeyByLookup(apikey.LookupOf(h.alice)) != nil || v.SandboxAny(sb).Desired != fsm.DesiredDeleted {
		t.Errorf("something is left: %+v", v.SandboxAny(sb))
	}
	if h.secrets.last(path("alice")) != nil || h.secrets.last(path("bob"))["value"] != "sk-2" {
		t.Errorf("the secret store has %v and %v", h.secrets.last(path("alice")), h.secrets.last(path("bob")))
	}
	if v.User("bob") == nil || v.SandboxAny(theirs).Desired != fsm.DesiredRunning {
		t.Error("something of bob's is gone")
	}
	h.do(h.bob, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
}
