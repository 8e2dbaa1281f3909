package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
)

// sampleRequest is a request for a route that gets a 2xx for alice or root.
func sampleRequest(r route, sandbox, conversation string) (method, path, body string) {
	path = strings.NewReplacer(":sandbox_id", sandbox, ":conversation_id", conversation, ":task_id", askingTask,
		":name", "fast", ":org_id", "alice", "*secret_id", "NPM", ":kind", "job", ":id", "2", ":port", "VSCODE", ":profile",
		"heap", ":what", "metrics", ":event_id", "a", "*id", "small", ":key_id", "2").Replace(r.path)
	switch r.name {
	case "sandbox.get", "spec.get":
		path += "?id=x"
	case "conversation.operator_get", "conversation.operator_delete":
		path += "?user=alice"
	case "conversation.git_changes", "conversation.git_diff":
		path += "?path=/workspace/project"
	case "conversation.pending_message":
		path = strings.ReplaceAll(r.path, ":conversation_id", "task-"+startingTask)
	case "event.list":
		path += "?id=a"
	case "start_task.get":
		path += "?ids=" + strings.Repeat("a", 32)
	}
	switch {
	case r.name == "agent_profile.activate":
		path = strings.Replace(path, "/fast", "/p2", 1)
	case strings.HasPrefix(r.name, "agent_profile."):
		path = strings.Replace(path, "/fast", "/mine", 1)
	}
	switch r.name {
	case "api_key.create":
		body = `{"user":"carol","name":"laptop"}`
	case "conversation.send_message", "conversation.pending_message":
		body = `{"content":[{"type":"text","text":"hi"}]}`
	case "start_task.setup":
		body = `{"hash":"` + askingHash + `","accept":true}`
	case "conversation.switch_acp_model":
		body = `{"model":"m"}`
	case "conversation.switch_profile":
		body = `{"profile_name":"fast"}`
	case "device.look", "device.allow":
		body = `{"user_code":"` + waitingUserCode + `"}`
	case "device.token":
		body = `{"device_code":"` + waitingDeviceCode + `"}`
	case "agent_profile.save":
		body = `{"llm_profile_ref":"fast"}`
	case "llm_profile.save", "organization_profile.save":
		body = `{"llm":{"model":"m","api_key":"sk-1"}}`
	case "agent_profile.rename", "llm_profile.rename", "organization_profile.rename":
		body = `{"new_name":"other"}`
	case "secret.create", "secret.update":
		body = `{"name":"A","value":"b"}`
	case "cloud_proxy.call":
		body = `{"host":"http://example.org/sandboxes/` + sandbox + `/AGENT_SERVER","method":"GET","path":"/api/x"}`
	case "spec.apply":
		body = `{"specs":[]}`
	case "member.remove", "member.allow":
		body = `{"name":"n2"}`
	case "protocol.set":
		body = `{"version":2}`
	case "member.replace":
		body = `{"old":"n2","new":"n3"}`
	case "webhook.events", "webhook.own_events":
		body = `[]`
	default:
		body = `{}`
	}
	return r.method, path, body
}

func TestAuth_EveryRoute(t *testing.T) {
	t.Parallel()
	for _, r := range routes() {
		t.Run(r.name, func(t *testing.T) {
			h := newHarness(t, withLogs(&fakeLogs{}), withAgentServers, withPage(t)).withSpec().withSettings()
			sb := h.createSandbox(h.alice)
			h.observe(sb, running())
			h.questioned(r, sb)
			h.starting()
			if strings.HasPrefix(r.name, "device.") {
				h.waits()
			}
			talk := h.conversation("alice", sb, speaksACP)
			h.withEvent(r, sb, talk)
			method, path, body := sampleRequest(r, sb, talk)
			if r.access == open {
				h.do("", method, path, "").want(t, 200)
				return
			}
			if r.access == signIn {
				return // TestSession_Attacks
			}
			before := h.cluster.count()
			wrong := h.alice[:len(h.alice)-1] + "!"
			other := "bvk_" + strings.Repeat("x", 12) + "_" + strings.Repeat("y", 43)
			for _, key := range []string{
				"",
				"nonsense",
				wrong,
				other,
				h.alice + "x",
				"bvk_",
				"bvk_" + strings.Repeat("é", 28),
			} {
				res := h.do(key, method, path, body).want(t, 401)
				if r.access == sandboxKey {
					continue // it has its own errors: TestSandboxSecrets_OnlyForTheSandboxItself
				}
				res.is(t, `{"detail":"Unauthorized"}`)
				if res.header.Get("WWW-Authenticate") == "" {
					t.Error("no WWW-Authenticate")
				}
			}
			if h.cluster.count() != before {
				t.Fatal("a stranger changed something")
			}
			if r.access == sandboxKey {
				h.do(h.alice, method, path, body).want(t, 401)
				return
			}
			if r.access == operator {
				h.do(h.alice, method, path, body).want(t, 403).is(t, `{"detail":"Forbidden"}`)
				h.do(h.root, method, path, body)
				return
			}
			if res := h.do(h.alice, method, path, body); res.status/100 != 2 {
				t.Fatalf("status %d: %s", res.status, res.body)
			}
		})
	}
}

func TestAuth_Credentials(t *testing.T) {
	h := newHarness(t)
	list := func(want int, headers ...string) {
		t.Helper()
		h.do("", "GET", "/api/v1/sandboxes/search", "", headers...).want(t, want)
	}
	list(200, "X-Session-API-Key", h.alice)
	list(200, "Authorization", "Bearer "+h.alice)
	list(200, "Authorization", "bearer   "+h.alice)
	list(200, "Authorization", "Bearer "+h.alice, "X-Session-API-Key", "a-sandbox-key")
	list(401, "Authorization", "Bearer nonsense", "X-Session-API-Key", h.alice)
	list(401, "Authorization", "Bearer", "X-Session-API-Key", h.alice)
	list(200, "Authorization", "Basic abc", "X-Session-API-Key", h.alice)
	list(401, "Authorization", h.alice)
}

func TestAuth_BearerDecidesWho(t *testing.T) {
	h := newHarness(t).withSpec()
	h.createSandbox(h.alice)
	res := h.do("", "GET", "/api/v1/sandboxes/search", "", "Authorization", "Bearer "+h.bob, "X-Session-API-Key",
		h.alice).want(t, 200)
	res.is(t, `{"items":[],"next_page_id":null}`)
}

func TestAuth_RevokedKey(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
	v, _ := h.cluster.View(t.Context(), cluster.Stale)
	h.apply("", &fsm.APIKeyRevokeBody{ID: v.APIKeyByLookup(apikey.LookupOf(h.alice)).ID})
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 401).is(t, `{"detail":"Unauthorized"}`)
}

func TestAuth_SuspendedKey(t *testing.T) {
	h := newHarness(t)
	h.apply("", &fsm.TermOpenBody{Term: 1, Node: "n1", ClusterID: "test"})
	v, _ := h.cluster.View(t.Context(), cluster.Stale)
	root, alice := v.APIKeyByLookup(apikey.LookupOf(h.root)), v.APIKeyByLookup(apikey.LookupOf(h.alice))
	h.cluster.set(func(c *fakeCluster) {
		c.index += 10
		_, err := c.store.Succeed(fsm.Succession{
			ID: "act", At: time.Now(), Kind: fsm.FindingRestored, Index: c.index, SuspendKeys: true, KeepKey: root,
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 401).is(t, `{"detail":"Unauthorized"}`)
	enable := sprint("/api/v1/operator/keys/%d/enable", alice.ID)
	h.do(h.alice, "POST", enable, "").want(t, 401)
	h.do(h.root, "POST", enable, "").want(t, 200)
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
	h.apply("", &fsm.APIKeyRevokeBody{ID: alice.ID})
	h.do(h.root, "POST", enable, "").want(t, 409)
	h.do(h.root, "POST", "/api/v1/operator/keys/99/enable", "").want(t, 404)
}

func TestAuth_KeyIssuedOnAnotherNode(t *testing.T) {
	h := newHarness(t)
	v, _ := h.cluster.View(t.Context(), cluster.Stale)
	h.cluster.set(func(c *fakeCluster) { c.behind = v })
	fresh := h.issue("carol", false)
	h.do(fresh, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
	// Without a leader, an unknown key can't be confirmed as unknown.
	h.cluster.set(func(c *fakeCluster) { c.viewErr = fsm.Errorf(fsm.CodeNoLeader, "no leader") })
	h.do(fresh, "GET", "/api/v1/sandboxes/search?stale", "").want(t, 503)
	h.do(h.alice, "GET", "/api/v1/sandboxes/search?stale", "").want(t, 200)
	h.do("nonsense", "GET", "/api/v1/sandboxes/search?stale", "").want(t, 401)
}

// TestAuth_KeyEnabledOnAnotherNode: a node that is behind does not refuse a key that another node
// enabled a moment ago, or whose user it enabled: clients log out at a 401. The same limits as on
// unknown keys apply.
func TestAuth_KeyEnabledOnAnotherNode(t *testing.T) {
	h := newHarness(t)
	h.raised()
	id := h.cluster.store.View().APIKeyByLookup(apikey.LookupOf(h.alice)).ID
	for name, acts := range map[string][2]fsm.Body{
		"its key":  {&fsm.APIKeyDisableBody{ID: id}, &fsm.APIKeyEnableBody{ID: id}},
		"its user": {&fsm.UserDisableBody{UserID: "alice"}, &fsm.UserEnableBody{UserID: "alice"}},
	} {
		h.apply("", acts[0])
		v, _ := h.cluster.View(t.Context(), cluster.Linearizable)
		h.cluster.set(func(c *fakeCluster) { c.behind = v })
		h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 401)
		h.apply("", acts[1])
		if got := h.do(h.alice, "GET", "/api/v1/sandboxes/search", ""); got.status != 200 {
			t.Errorf("%s was enabled: %d %s", name, got.status, got.body)
		}
		h.cluster.set(func(c *fakeCluster) { c.behind = nil })
	}
	h.apply("", &fsm.APIKeyDisableBody{ID: id})
	limited := 0
	for range 3 * unknownKeyBurst {
		if h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").status == http.StatusTooManyRequests {
			limited++
		}
	}
	if limited == 0 {
		t.Error("every request with a disabled key cost the cluster a read")
	}
}

func TestAuth_GuessingIsBounded(t *testing.T) {
	h := newHarness(t)
	refused := 0
	for range 3 * unknownKeyBurst {
		key := "bvk_" + apikey.Random(apikey.LookupLen) + "_" + apikey.Random(apikey.SecretLen)
		if h.do(key, "GET", "/api/v1/sandboxes/search", "").status == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 {
		t.Fatal("every guess cost the cluster a read")
	}
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").want(t, 200)
}

// A key that was issued through this node a moment ago is good here, and a version that was set is in
// force, before the node's store has either, and without another node.
func TestAuth_WhatThisNodeAcknowledgedCounts(t *testing.T) {
	h := newHarness(t)
	old, err := h.cluster.View(t.Context(), cluster.Local)
	if err != nil {
		t.Fatal(err)
	}
	h.newest()
	fresh := h.issue("carol", false)
	h.cluster.set(func(c *fakeCluster) {
		c.unfenced, c.viewErr = old, fsm.Errorf(fsm.CodeNoLeader, "there is no leader")
	})
	h.do(fresh, "GET", "/api/settings?stale", "").want(t, 404) // carol has stored none
	// In bytes, as lengths are counted below version 4, it is too long.
	long := strings.Repeat("\u00e4", fsm.MaxLine)
	h.do(fresh, "POST", "/api/settings", `{"language":"`+long+`"}`).want(t, 200)
}

// One address that guesses keys takes nothing from another, whose key was issued a moment ago.
func TestAuth_GuessingIsBoundedForEachAddress(t *testing.T) {
	h := newHarness(t)
	old, err := h.cluster.View(t.Context(), cluster.Stale)
	if err != nil {
		t.Fatal(err)
	}
	h.cluster.set(func(c *fakeCluster) { c.behind = old })
	fresh := h.issue("carol", false)
	ask := func(key, address string) int {
		r := httptest.NewRequest(http.MethodGet, "/api/v1/sandboxes/search", nil)
		r.RemoteAddr = address
		r.Header.Set("X-Session-API-Key", key)
		w := httptest.NewRecorder()
		h.handler.ServeHTTP(w, r)
		return w.Code
	}
	status := 0
	for range 3 * unknownKeyBurst {
		status = ask("bvk_"+apikey.Random(apikey.LookupLen)+"_"+apikey.Random(apikey.SecretLen), "10.0.0.1:1")
	}
	if status != http.StatusTooManyRequests {
		t.Fatalf("guessing ends with %d", status)
	}
	if status := ask(fresh, "10.0.0.2:1"); status != http.StatusOK {
		t.Errorf("another address gets %d", status)
	}
}

func TestLookupOf(t *testing.T) {
	key, err := apikey.New(strings.NewReader(strings.Repeat("\x01\x02\x03\x04\xff", 100)))
	value, lookup := key.Value, key.Lookup
	if err != nil || apikey.LookupOf(value) != lookup || len(lookup) != apikey.LookupLen {
		t.Fatalf("%s %s %v", value, lookup, err)
	}
	if parsed, err := apikey.Parse(value); err != nil || parsed != key {
		t.Errorf("taken apart it is %+v, %v", parsed, err)
	}
	if _, err := apikey.Parse(value + "x"); err == nil || strings.Contains(err.Error(), value) {
		t.Errorf("a longer key: %v", err)
	}
	for _, s := range []string{
		"",
		"bvk_",
		value + "x",
		strings.Replace(value, "bvk", "BVK", 1),
		strings.Replace(value, lookup+"_", lookup+"-", 1),
	} {
		if apikey.LookupOf(s) != "" {
			t.Errorf("%q is taken for a key", s)
		}
	}
}
