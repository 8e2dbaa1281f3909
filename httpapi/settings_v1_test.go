package httpapi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
)

// The two views have one row: what one writes the other reads.
func TestSettingsV1_ChangesWhatIsSent(t *testing.T) {
	h := newHarness(t).raised()
	var fresh map[string]any
	h.do(h.alice, "GET", pathSettingsV1, "").want(t, 200).json(t, &fresh)
	if fresh["llm_api_key_set"] != false || fresh["enable_default_condenser"] != true || fresh["llm_model"] != nil {
		t.Errorf("before anything is stored: %v", fresh)
	}
	h.do(h.alice, "GET", settingsPath, "").want(t, 404) // V0 says so
	h.do(h.alice, "POST", settingsPath, `{"language":"de","llm_model":"openai/gpt-5","llm_api_key":"sk-1","email":"a@b",
		"mcp_config":{"sse_servers":["https://a.example.org"]}}`).want(t, 200)
	h.do(h.alice, "POST", pathSettingsV1, `{"agent_settings_diff":{"llm":{"base_url":"https://m.example.org/v1",
		"api_key":null,"unknown":1},"condenser":{"enabled":false,"max_size":40},"agent":null},
		"conversation_settings_diff":{"max_iterations":7,"confirmation_mode":true},"email":null,"disabled_skills":[]}`).
		want(t, 200).is(t, `{"message":"Settings stored"}`)
	var v0, v1 map[string]any
	h.do(h.alice, "GET", settingsPath, "").want(t, 200).json(t, &v0)
	h.do(h.alice, "GET", pathSettingsV1, "").want(t, 200).json(t, &v1)
	for name, want := range map[string]any{
		"language": "de", "llm_model": "openai/gpt-5", "llm_base_url": "https://m.example.org/v1", "llm_api_key_set": true,
		"email": nil, "enable_default_condenser": false, "condenser_max_size": 40.0, "max_iterations": 7.0,
		"confirmation_mode": true, "enable_solvability_analysis": true, "llm_api_key": nil,
	} {
		if v0[name] != want || v1[name] != want {
			t.Errorf("%s is %v in V0 and %v in V1, want %v", name, v0[name], v1[name], want)
		}
	}
	if v0["mcp_config"] == nil {
		t.Error("the MCP configuration is gone")
	}
	want := map[string]any{
		"schema_version": 5.0, "agent_kind": "openhands", "agent": "CodeActAgent",
		"llm":        map[string]any{"model": "openai/gpt-5", "base_url": "https://m.example.org/v1", "api_key": nil},
		"condenser":  map[string]any{"enabled": false, "max_size": 40.0},
		"acp_server": nil, "acp_model": nil, "acp_command": nil,
	}
	if d := cmp.Diff(want, v1["agent_settings"]); d != "" {
		t.Error(d)
	}
	want = map[string]any{
		"schema_version": 1.0, "max_iterations": 7.0, "confirmation_mode": true, "security_analyzer": nil,
	}
	if d := cmp.Diff(want, v1["conversation_settings"]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]any{"profiles": map[string]any{}, "active": nil}, v1["llm_profiles"]); d != "" {
		t.Error(d)
	}
	if got := h.secrets.last(fsm.SettingPath("alice", "llm_api_key"))["value"]; got != "sk-1" {
		t.Errorf("the key is %q", got)
	}
	// An empty change changes nothing, and the first one begins with the defaults.
	h.do(h.alice, "POST", pathSettingsV1, `{}`).want(t, 200)
	h.do(h.bob, "POST", pathSettingsV1, `{"agent_settings_diff":{"llm":{"api_key":"sk-bob"}}}`).want(t, 200)
	var again, bob map[string]any
	h.do(h.alice, "GET", pathSettingsV1, "").want(t, 200).json(t, &again)
	if d := cmp.Diff(v1, again); d != "" {
		t.Error(d)
	}
	h.do(h.bob, "GET", settingsPath, "").want(t, 200).json(t, &bob)
	if bob["llm_api_key_set"] != true || bob["enable_default_condenser"] != true {
		t.Errorf("bob's settings are %v", bob)
	}
}

func TestSettingsV1_Refused(t *testing.T) {
	h := newHarness(t).raised()
	h.do(h.alice, "POST", pathSettingsV1, `{"agent_settings":{},"conversation_settings":null}`).want(t, 422).is(t,
		`{"error":"Use *_diff nested settings payloads instead of legacy keys",
		"detail":"Use *_diff nested settings payloads instead of legacy keys",
		"keys":["agent_settings","conversation_settings"]}`)
	const diff = "body.agent_settings_diff"
	for body, want := range map[string]string{
		`{"agent_settings_diff":{"llm":{"model":5}}}`:              diff + ".llm.model string_type",
		`{"agent_settings_diff":{"condenser":{"max_size":3}}}`:     diff + ".condenser.max_size value_error",
		`{"agent_settings_diff":{"agent_kind":"llm"}}`:             diff + ".agent_kind enum",
		`{"agent_settings_diff":{"mcp_config":{"mcpServers":{}}}}`: diff + ".mcp_config value_error",
		`{"conversation_settings_diff":{"max_iterations":"a"}}`: "body.conversation_settings_diff" +
			".max_iterations int_parsing",
		`{"llm_base_url":"https://u:p@h"}`: "body.llm_base_url value_error",
	} {
		if got := summary(h.do(h.alice, "POST", pathSettingsV1, body).problems(t)); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, want %s", body, got, want)
		}
	}
	h.do(h.alice, "GET", settingsPath, "").want(t, 404)
}

// The forms have what is stored, and every field of a form can be stored.
func TestSettingsV1_SchemasHaveWhatIsStored(t *testing.T) {
	h := newHarness(t).raised()
	for path, outer := range map[string]string{
		"/agent-schema": "agent_settings_diff", "/conversation-schema": "conversation_settings_diff",
	} {
		var schema schemaBody
		h.do(h.alice, "GET", pathSettingsV1+path, "").want(t, 200).json(t, &schema)
		fields := 0
		for _, section := range schema.Sections {
			for _, field := range section.Fields {
				fields++
				inner, name, nested := strings.Cut(field.Key, ".")
				if !nested {
					inner, name = "", field.Key
				}
				if nestedSettings()[strings.Trim(outer+"."+inner, ".")][name] == "" {
					t.Errorf("%s is in a form and is not stored", field.Key)
				}
			}
		}
		if fields < 3 {
			t.Errorf("%s has %d fields", path, fields)
		}
	}
}

func TestSecrets_Life(t *testing.T) {
	h := newHarness(t).raised()
	h.do(h.alice, "POST", pathSecrets, `{"name":"A/B","value":"one","description":"first"}`).want(t, 201).is(t,
		`{"message":"Secret created successfully"}`)
	h.do(h.alice, "POST", pathSecrets, `{"name":"NPM","value":"two"}`).want(t, 201)
	list := func(key, query string) reply {
		t.Helper()
		return h.do(key, "GET", pathSecrets+"/search"+query, "").want(t, 200)
	}
	list(h.alice, "").is(t, `{"items":[{"name":"A/B","description":"first"},{"name":"NPM","description":null}],
		"next_page_id":null}`)
	list(h.alice, "?name__contains=np").is(t, `{"items":[{"name":"NPM","description":null}],"next_page_id":null}`)
	var page struct {
		Next string `json:"next_page_id"`
	}
	list(h.alice, "?limit=1").json(t, &page)
	list(h.alice, "?limit=1&page_id="+page.Next).is(t, `{"items":[{"name":"NPM","description":null}],"next_page_id":null}`)
	list(h.bob, "").is(t, `{"items":[],"next_page_id":null}`)
	h.do(h.alice, "GET", settingsPath, "").want(t, 404) // a secret makes no settings

	h.do(h.alice, "PUT", pathSecrets+"/A/B", `{"name":"C","description":null}`).want(t, 200).is(t,
		`{"message":"Secret updated successfully"}`)
	h.do(h.alice, "PUT", pathSecrets+"/C", `{"name":"NPM"}`).want(t, 400).is(t, `{"detail":"Secret NPM already exists"}`)
	for _, c := range []struct{ method, name string }{{"PUT", "A/B"}, {"PUT", "none"}, {"DELETE", "A/B"}} {
		h.do(h.alice, c.method, pathSecrets+"/"+c.name, `{"name":"X"}`).want(t, 404).is(t, `{"detail":"Secret not found"}`)
	}
	for _, method := range []string{"PUT", "DELETE"} {
		h.do(h.bob, method, pathSecrets+"/NPM", `{"name":"X"}`).want(t, 404).is(t, `{"detail":"Secret not found"}`)
	}
	// The value is the one that was stored, also after it got another name.
	v := h.cluster.store.View()
	if all := v.CustomSecrets("alice"); len(all) != 2 || all[0].Name != "C" ||
		h.secrets.last(all[0].Ref.Path)["value"] != "one" {
		t.Errorf("stored: %+v", all)
	}
	h.do(h.alice, "DELETE", pathSecrets+"/C", "").want(t, 200).is(t, `{"message":"Secret deleted successfully"}`)
	list(h.alice, "").is(t, `{"items":[{"name":"NPM","description":null}],"next_page_id":null}`)
	for body, want := range map[string]string{
		`{"value":"a"}`: "body.name missing", `{"name":"","value":"a"}`: "body.name value_error",
		`{"name":"A"}`: "body.value missing",
		`{"name":"` + strings.Repeat("x", fsm.MaxName+1) + `","value":"a"}`: "body.name string_too_long",
	} {
		if got := summary(h.do(h.alice, "POST", pathSecrets, body).problems(t)); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, want %s", body, got, want)
		}
	}
}

func TestModels_Search(t *testing.T) {
	h := newHarness(t).raised().withProfiles("alice")
	h.apply("", &fsm.InstallationConfigureBody{Installation: fsm.Installation{LLM: fsm.LLM{
		Prices: []fsm.Price{{Model: "anthropic/claude-sonnet-4", Input: 3}, {Model: "gpt-*", Input: 1}},
	}}})
	search := func(key, query, want string) {
		t.Helper()
		h.do(key, "GET", "/api/v1/config/models/search"+query, "").want(t, 200).is(t, want)
	}
	claude := `{"provider":"anthropic","name":"anthropic/claude-sonnet-4","verified":true,"hidden":false,"canonical":null}`
	gpt := `{"provider":"openai","name":"openai/gpt-5","verified":false,"hidden":false,"canonical":null}`
	search(h.alice, "", `{"items":[`+claude+`,`+gpt+`],"next_page_id":null}`)
	search(h.bob, "?limit=100", `{"items":[`+claude+`],"next_page_id":null}`)
	search(h.alice, "?provider__eq=openai", `{"items":[`+gpt+`],"next_page_id":null}`)
	search(h.alice, "?provider__eq=openhands", `{"items":[],"next_page_id":null}`)
	search(h.alice, "?verified__eq=true&query=CLAUDE", `{"items":[`+claude+`],"next_page_id":null}`)
	h.do(h.alice, "GET", "/api/v1/config/providers/search?query=anthro", "").want(t, 200).is(t,
		`{"items":[{"name":"anthropic","verified":true}],"next_page_id":null}`)
	var all struct{ Items []providerBody }
	h.do(h.alice, "GET", "/api/v1/config/providers/search", "").want(t, 200).json(t, &all)
	if len(all.Items) < 10 {
		t.Errorf("%d providers", len(all.Items))
	}
	h.do(h.alice, "GET", "/api/v1/skills/search?limit=100", "").want(t, 200).is(t, `{"items":[],"next_page_id":null}`)
	if got := summary(h.do(h.alice, "GET", "/api/v1/config/models/search?limit=101", "").problems(t)); len(got) != 1 {
		t.Errorf("%v", got)
	}
}
