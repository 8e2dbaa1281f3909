package httpapi

import (
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// withOwnSecrets gives alice a running sandbox, custom secrets and git tokens.
func (h *harness) withOwnSecrets() (id, key string) {
	h.t.Helper()
	h.do(h.alice, "POST", settingsPath, `{"secrets_store":{"provider_tokens":{"github":{"token":"GITHUBVALUE"},
		"gitlab":{"token":"GITLABVALUE"}},
	  "custom_secrets":{"DATABASE_URL":{"secret":"DBVALUE","description":"the database"},
	  "GITLAB_TOKEN":{"secret":"MINE"}}}}`).want(h.t, 200)
	h.do(h.alice, "POST", providersPath,
		`{"provider_tokens":{"github":{"token":"GITHUBVALUE"},"gitlab":{"token":"GITLABVALUE"},`+
			`"bitbucket":{"user_id":"x"}}}`).want(h.t, 200)
	id = h.createSandbox(h.alice)
	h.observe(id, running())
	return id, h.secrets.last(fsm.SandboxKeyPath(id))["key"]
}

// The values of a store that was lost are no fault of this program without words.
func TestSecrets_LostValueSaysSo(t *testing.T) {
	h := newHarness(t).newest().withSpec()
	h.do(h.alice, "POST", "/api/settings",
		`{"mcp_config":{"sse_servers":[{"url":"https://mcp.example.org"}]}}`).want(t, 200)
	h.secrets.set(func(s *fakeSecrets) { clear(s.entries) })
	for _, path := range []string{"/api/settings"} {
		res := h.do(h.alice, "GET", path, "").want(t, 500)
		if text := string(res.body); !strings.Contains(text, "save it again") || strings.Contains(text, "users/") {
			t.Errorf("%s: %s", path, text)
		}
	}
}

func TestSandboxSecrets_ListAndValue(t *testing.T) {
	h := newHarness(t).withSpec()
	id, key := h.withOwnSecrets()
	path := pathSandboxes + "/" + id + "/settings/secrets"
	h.do(key, "GET", path, "").want(t, 200).is(t, `{"secrets":[
	  {"name":"DATABASE_URL","description":"the database"},
	  {"name":"GITHUB_TOKEN","description":"github authentication token"},
	  {"name":"GITLAB_TOKEN","description":null}]}`)
	for name, want := range map[string]string{
		"DATABASE_URL": "DBVALUE",
		"GITHUB_TOKEN": "GITHUBVALUE",
		"GITLAB_TOKEN": "MINE",
	} {
		res := h.do(key, "GET", path+"/"+name, "").want(t, 200)
		if string(res.body) != want || !strings.HasPrefix(res.header.Get("Content-Type"), "text/plain") {
			t.Errorf("%s: %q, %s", name, res.body, res.header.Get("Content-Type"))
		}
	}
	for _, name := range []string{"NONE", "database_url", "BITBUCKET_TOKEN", "a/b"} {
		h.do(key, "GET", path+"/"+name, "").want(t, 404).is(t, `{"detail":"Secret not found"}`)
	}
	// The present value counts, not the one at the sandbox's start.
	h.do(h.alice, "POST", providersPath, `{"provider_tokens":{"github":{"token":"ROTATED"}}}`).want(t, 200)
	if got := h.do(key, "GET", path+"/GITHUB_TOKEN", "").want(t, 200); string(got.body) != "ROTATED" {
		t.Errorf("after a change: %s", got.body)
	}
	h.secrets.set(func(s *fakeSecrets) { s.err = errStoreAway })
	h.do(key, "GET", path+"/GITHUB_TOKEN", "").want(t, 503)
	for _, one := range []string{"DBVALUE", "MINE", key} {
		if strings.Contains(h.logs.String(), one) {
			t.Errorf("%q is in the log", one)
		}
	}
}

func TestSandboxSecrets_OnlyForTheSandboxItself(t *testing.T) {
	h := newHarness(t).withSpec()
	id, key := h.withOwnSecrets()
	other := h.createSandbox(h.bob)
	h.observe(other, running())
	bobs := h.secrets.last(fsm.SandboxKeyPath(other))["key"]
	for _, tail := range []string{"", "/GITHUB_TOKEN"} {
		path := pathSandboxes + "/" + id + "/settings/secrets" + tail
		h.do("", "GET", path, "").want(t, 401).is(t, `{"detail":"X-Session-API-Key header is required"}`)
		h.do("", "GET", path, "", "Authorization", "Bearer "+key).want(t, 401)
		h.do("wrong", "GET", path, "").want(t, 401).is(t, `{"detail":"Invalid session API key"}`)
		// Not even its owner's key: this is the sandbox's view.
		h.do(h.alice, "GET", path, "").want(t, 401).is(t, `{"detail":"Invalid session API key"}`)
		h.do(h.root, "GET", path, "").want(t, 401)
		h.do(bobs, "GET", path, "").want(t, 403).is(t, `{"detail":"Session API key does not match sandbox"}`)
		h.do(key, "GET", pathSandboxes+"/none/settings/secrets"+tail, "").want(t, 403)
	}
	// The key works for no other route.
	h.do(key, "GET", pathSandboxes+"/search", "").want(t, 401)

	path := pathSandboxes + "/" + id + "/settings/secrets"
	h.do(h.alice, "POST", pathSandboxes+"/"+id+"/pause", "").want(t, 200)
	h.do(key, "GET", path, "").want(t, 401).is(t, `{"detail":"Sandbox is not running"}`)
	h.do(h.alice, "POST", pathSandboxes+"/"+id+"/resume", "").want(t, 200)
	h.do(key, "GET", path, "").want(t, 401).is(t, `{"detail":"Sandbox is not running"}`)
	h.observe(id, running())
	h.do(key, "GET", path, "").want(t, 200)
	h.do(h.alice, "DELETE", pathSandboxes+"/"+id, "").want(t, 200)
	h.do(key, "GET", path, "").want(t, 401).is(t, `{"detail":"Invalid session API key"}`)
}

// A node that does not know the sandbox yet asks the cluster, at a limited rate.
func TestSandboxSecrets_ANodeThatIsBehind(t *testing.T) {
	h := newHarness(t).withSpec()
	old := h.cluster.store.View()
	id, key := h.withOwnSecrets()
	h.cluster.set(func(c *fakeCluster) { c.behind = old })
	h.do(key, "GET", pathSandboxes+"/"+id+"/settings/secrets", "").want(t, 200)
	status := 0
	for range 3 * unknownKeyBurst {
		if status = h.do("wrong", "GET", pathSandboxes+"/"+id+"/settings/secrets", "").status; status == 429 {
			break
		}
	}
	if status != 429 {
		t.Fatalf("guessing ends with %d", status)
	}
}

func TestSandboxSecrets_NoValue(t *testing.T) {
	h := newHarness(t).withSpec()
	id, key := h.withOwnSecrets()
	var ref fsm.SecretRef
	for _, s := range h.cluster.store.View().CustomSecrets("alice") {
		if s.Name == "DATABASE_URL" {
			ref = s.Ref
		}
	}
	h.secrets.set(func(s *fakeSecrets) { s.entries[ref.Path][ref.Version-1] = map[string]string{"value": ""} })
	h.do(key, "GET", pathSandboxes+"/"+id+"/settings/secrets/DATABASE_URL", "").want(t, 404).is(t,
		`{"detail":"Secret has no value"}`)
}
