package httpapi

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

const contractSettings = `{"llm_model":"anthropic/claude-sonnet-4","llm_api_key":"sk-1","confirmation_mode":false,
 "mcp_config":{"sse_servers":[{"url":"https://mcp.example.org/sse"}],"stdio_servers":[],"shttp_servers":[]}}`

func TestSettings_PutAndGet(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "GET", "/api/settings", "").want(t, 404).is(t,
		`{"error":"Settings not found","detail":"Settings not found"}`)
	res := h.do(h.alice, "POST", "/api/settings", contractSettings).want(t, 200)
	if string(res.body) != "{}" {
		t.Fatalf("body %s", res.body)
	}
	h.do(h.alice, "GET", "/api/settings", "").want(t, 200).golden(t, "settings_get")
	if got := h.secrets.last("users/alice/settings/llm_api_key"); got["value"] != "sk-1" {
		t.Fatalf("stored key %v", got)
	}
	h.do(h.bob, "GET", "/api/settings", "").want(t, 404)
}

func TestSettings_Get_Example(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "POST", "/api/settings", `{"language":"en","agent":"CodeActAgent","confirmation_mode":false,
	  "llm_model":"anthropic/claude-sonnet-4","llm_api_key":"x",
	  "secrets_store":{"provider_tokens":{"github":{"token":"ghp_x"}}}}`).want(t, 200)
	h.do(h.alice, "GET", "/api/settings", "").want(t, 200).is(t, `{"language":"en","agent":"CodeActAgent",
		"max_iterations":null,"security_analyzer":null,"confirmation_mode":false,
 "llm_model":"anthropic/claude-sonnet-4","llm_api_key":null,"llm_base_url":null,"remote_runtime_resource_factor":null,
 "secrets_store":{"provider_tokens":{},"custom_secrets":{}},"enable_default_condenser":true,
 "enable_sound_notifications":false,"enable_proactive_conversation_starters":true,"enable_solvability_analysis":true,
 "user_consents_to_analytics":null,"sandbox_base_container_image":null,"sandbox_runtime_container_image":null,
 "mcp_config":null,"search_api_key":null,"sandbox_api_key":null,"max_budget_per_task":null,"email":null,
 "email_verified":null,"git_user_name":null,"git_user_email":null,"condenser_max_size":null,"v1_enabled":null,
 "agent_kind":null,"acp_server":null,"acp_command":null,"acp_model":null,"sandbox_grouping_strategy":null,
 "git_full_clone":null,
 "llm_api_key_set":true,"provider_tokens_set":{"github":null},"search_api_key_set":false}`)
}

func TestSettings_ReplaceKeepsStickyFields(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "POST", "/api/settings", `{"llm_model":"m","llm_base_url":"https://u","llm_api_key":"k",
		"search_api_key":"s",
	  "sandbox_api_key":"b","user_consents_to_analytics":true,"language":"de","mcp_config":{}}`).want(t, 200)
	h.do(h.alice, "POST", "/api/settings", `{"email":"a@example.org"}`).want(t, 200)
	var got map[string]any
	h.do(h.alice, "GET", "/api/settings", "").want(t, 200).json(t, &got)
	want := map[string]any{"llm_model": "m", "llm_base_url": "https://u", "llm_api_key_set": true,
		"search_api_key_set":         true,
		"user_consents_to_analytics": true, "language": nil, "mcp_config": nil, "email": "a@example.org"}
	for k, v := range want {
		if !cmp.Equal(got[k], v) {
			t.Errorf("%s is %v, want %v", k, got[k], v)
		}
	}
	h.do(h.alice, "POST", "/api/settings", `{"llm_api_key":""}`).want(t, 200)
	h.do(h.alice, "GET", "/api/settings", "").json(t, &got)
	if got["llm_api_key_set"] != false {
		t.Error("an empty key is still set")
	}
}

func TestSettings_SecretsStoreIsMergedAndNeverEchoed(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "POST", "/api/settings", `{"secrets_store":{"provider_tokens":{"github":{"token":"ghp_1",
		"host":"git.example.org"}},
	  "custom_secrets":{"A/B":{"secret":"value-one","description":"first"}}}}`).want(t, 200)
	h.do(h.alice, "POST", "/api/settings", `{"secrets_store":{"provider_tokens":{"gitlab":{"user_id":"7"}},
	  "custom_secrets":{"C":{"secret":"two"}}}}`).want(t, 200)
	res := h.do(h.alice, "GET", "/api/settings", "").want(t, 200)
	var got struct {
		Store json.RawMessage    `json:"secrets_store"`
		Set   map[string]*string `json:"provider_tokens_set"`
	}
	res.json(t, &got)
	if string(got.Store) != `{"provider_tokens":{},"custom_secrets":{}}` {
		t.Errorf("secrets_store %s", got.Store)
	}
	if diff := cmp.Diff(map[string]*string{"github": ptr("git.example.org"), "gitlab": nil}, got.Set); diff != "" {
		t.Error(diff)
	}
	v, _ := h.cluster.View(t.Context(), cluster.Stale)
	if n := len(v.CustomSecrets("alice")); n != 2 {
		t.Errorf("%d custom secrets", n)
	}
	if h.secrets.last(fsm.CustomSecretPath("alice", "A/B"))["value"] != "value-one" {
		t.Error("the custom secret is not in the store")
	}
	if strings.Contains(string(res.body), "ghp_1") || strings.Contains(string(res.body), "value-one") {
		t.Errorf("a secret is echoed: %s", res.body)
	}
}

func TestSettings_MCPConfig(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "POST", "/api/settings", `{"mcp_config":{
	  "sse_servers":["https://a.example.org/sse",{"url":"wss://b.example.org","api_key":"k&<"}],
	  "shttp_servers":[{"url":"http://c.example.org","timeout":5},{"url":"http://d.example.org"}],
	  "stdio_servers":[{"name":"fs","command":"npx","args":"-y 'a b' c","env":"K=V, K2=V2"},{"name":"x",
	  "command":"y"}]}}`).want(t, 200)
	h.do(h.alice, "GET", "/api/settings", "").want(t, 200).golden(t, "settings_mcp")
	entry := h.secrets.last("users/alice/settings/mcp_config")["json"]
	if !strings.Contains(entry, "k&<") {
		t.Errorf("stored document %s", entry)
	}
}

func TestSettings_SecretStoreAway(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "POST", "/api/settings", `{"llm_api_key":"k"}`).want(t, 200)
	h.secrets.set(func(s *fakeSecrets) { s.err = errStoreAway })
	h.do(h.alice, "GET", "/api/settings", "").want(t, 200)
	h.do(h.alice, "POST", "/api/settings", `{"language":"en"}`).want(t, 200)
	before := h.cluster.count()
	for _, body := range []string{
		`{"llm_api_key":"k2","language":"fr"}`, `{"mcp_config":{},"language":"fr"}`,
		`{"secrets_store":{"custom_secrets":{"A":{"secret":"s"}}},"language":"fr"}`,
		`{"secrets_store":{"provider_tokens":{"github":{"token":"s"}}},"language":"fr"}`,
	} {
		res := h.do(h.alice, "POST", "/api/settings", body).want(t, 503)
		if res.header.Get("Retry-After") != "5" {
			t.Errorf("Retry-After %q", res.header.Get("Retry-After"))
		}
		res.is(t, `{"error":"The secret store is unavailable; nothing was stored. Try again later.",
		  "detail":"The secret store is unavailable; nothing was stored. Try again later."}`)
	}
	if h.cluster.count() != before {
		t.Fatal("something was stored")
	}
	h.secrets.set(func(s *fakeSecrets) { s.err = nil })
	h.do(h.alice, "POST", "/api/settings", `{"mcp_config":{}}`).want(t, 200)
	h.secrets.set(func(s *fakeSecrets) { s.err = errStoreAway })
	h.do(h.alice, "GET", "/api/settings", "").want(t, 503)
}

func TestSettings_OneFailedWriteStoresNothing(t *testing.T) {
	h := newHarness(t)
	h.secrets.set(func(s *fakeSecrets) { s.failPath = "search_api_key" })
	before := h.cluster.count()
	h.do(h.alice, "POST", "/api/settings", `{"llm_api_key":"a","search_api_key":"b"}`).want(t, 503)
	if h.cluster.count() != before {
		t.Fatal("a command was proposed")
	}
}

func TestSettings_StorageFailureHasUpstreamsWords(t *testing.T) {
	h := newHarness(t)
	h.cluster.set(func(c *fakeCluster) { c.proposeErr = fsm.Errorf(fsm.CodeInternal, "boom /secret/path") })
	h.do(h.alice, "POST", "/api/settings", `{}`).want(t, 500).
		is(t, `{"error":"Something went wrong storing settings","detail":"Something went wrong storing settings"}`)
}

func TestSettings_RefusedBeforeSecretsAreWritten(t *testing.T) {
	h := newHarness(t)
	// Below protocol version 4 a text of 4096 characters of four bytes passes the decoder and exceeds
	// the bound of Apply.
	h.do(h.alice, "POST", "/api/settings",
		`{"llm_api_key":"k","language":"`+strings.Repeat("𝒳", 4096)+`"}`).want(t, 422)
	if h.secrets.written() != 0 {
		t.Fatal("a secret was written for a refused request")
	}
}

// TestSettings_EveryValueHasARow: every member of fsm.SettingsValues can be set and is given back,
// and the description of the request and of the answer has it.
func TestSettings_EveryValueHasARow(t *testing.T) {
	doc := loadDescription(t)
	rows := map[string]bool{}
	for _, row := range settingsTable {
		rows[row.name] = true
		if doc.Components.Schemas["StoredSettings"].Value.Properties[row.name] == nil {
			t.Errorf("the answer's description has no %s", row.name)
		}
		if row.read != nil && doc.Components.Schemas["Settings"].Value.Properties[row.name] == nil {
			t.Errorf("the request's description has no %s", row.name)
		}
	}
	of := reflect.TypeFor[fsm.SettingsValues]()
	for i := range of.NumField() {
		if name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); !rows[name] {
			t.Errorf("settingsTable has no row for %s", name)
		}
	}
}
