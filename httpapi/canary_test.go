package httpapi

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
)

// canaryBodies have a canary in every field that may hold a secret, and where a confused client
// could put one.
func canaryBodies() []struct{ path, body string } {
	mcp := `{"sse_servers":[{"url":"https://u:CANARY@x/sse?t=CANARY","api_key":"CANARY"},"https://CANARY@y"],
	  "shttp_servers":[{"url":"https://x/CANARY","api_key":"CANARY"}],
	  "stdio_servers":[{"name":"a","command":"b","args":["--token","CANARY"],"env":{"K":"CANARY"}}]}`
	badMCP := `{"sse_servers":[{"url":"CANARY","api_key":{"x":"CANARY"}},{"api_key":"CANARY"},["CANARY"]],
		"CANARY":"CANARY",
	  "shttp_servers":[{"url":"ftp://CANARY","timeout":"CANARY"}],
	  "stdio_servers":[{"name":"CANARY x","command":"CANARY CANARY","args":"'CANARY","env":"CANARY"},
	  {"env":{"K":["CANARY"]},"args":[{"a":"CANARY"}]}]}`
	return []struct{ path, body string }{
		{settingsPath, `{"llm_api_key":"CANARY","search_api_key":"CANARY","sandbox_api_key":"CANARY","mcp_config":` + mcp + `,
		  "secrets_store":{"provider_tokens":{"github":{"token":"CANARY"}},"custom_secrets":{"N":{"secret":"CANARY"}}}}`},
		{settingsPath, `{"llm_api_key":["CANARY"],"search_api_key":{"a":"CANARY"},` +
			`"sandbox_api_key":5,"mcp_config":` + badMCP + `,
		  "secrets_store":{"provider_tokens":{"github":"CANARY","CANARY":{"token":"CANARY"},"gitlab":{"token":["CANARY"],
		  "host":"u:CANARY@h"}},
		  "custom_secrets":{"N":"CANARY","M":{"secret":["CANARY"]},"L":{"value":"CANARY"}}}}`},
		{settingsPath, `{"secrets_store":"CANARY","mcp_config":"CANARY"}`},
		{
			settingsPath,
			`{"secrets_store":{"provider_tokens":"CANARY","custom_secrets":["CANARY"]},"language":{"a":"CANARY"},` +
				`"max_iterations":["CANARY"]}`,
		},
		{settingsPath, `["CANARY"]`},
		{settingsPath, `"CANARY"`},
		{settingsPath, `{"llm_api_key":"CANARY"`},
		{settingsPath, `{"llm_api_key":CANARY}`},
		{
			providersPath,
			`{"provider_tokens":{"github":{"token":"CANARY"},"gitlab":{"token":"CANARY",` +
				`"host":"gitlab.example.org"}},"mcp_config":` + mcp + `}`,
		},
		{
			providersPath,
			`{"provider_tokens":{"github":{"token":5,"user_id":["CANARY"]},"CANARY_x":{}},"mcp_config":` + badMCP + `}`,
		},
		{v0Path, `{"initial_user_msg":"hi","mcp_config":` + mcp + `}`},
		{v0Path, `{"mcp_config":` + badMCP + `,"api_key":"CANARY"}`},
		{pathConversations, `{"secrets":{"A":"CANARY"},"plugins":[{"source":"https://CANARY@h/p?token=CANARY",
			"parameters":{"token":"CANARY","endpoint":"CANARY","deep":[{"apiKey":"CANARY","a":"CANARY"}]}}],
		  "observability_metadata":{"trace":"CANARY"},"processors":[{"kind":"SetTitleCallbackProcessor","secret":"CANARY",
		  "channel":"CANARY","url":"https://h/CANARY","to":{"a":["CANARY"]}}]}`},
		{pathConversations, `{"processors":[{"kind":"XCallbackProcessor","url":"https://CANARY@h"}]}`},
		{
			pathConversations,
			`{"selected_repository":"https://u:CANARY@h/o/r","selected_branch":"CANARY:CANARY@h/b",` +
				`"observability_metadata":{"a":["CANARY"]}}`,
		},
		{
			pathConversations,
			`{"suggested_task":{"git_provider":"github","task_type":"OPEN_PR","repo":"u:CANARY@h/o/r",` +
				`"issue_number":1,"title":"t"}}`,
		},
		{settingsPath, `{"llm_base_url":"https://u:CANARY@h/v1","sandbox_base_container_image":"https://CANARY@h/i"}`},
		{v0Path, `{"replay_json":"[\"CANARY\"]"}`},
		{v0Path, `{"repository":"https://u:CANARY@h/o/r"}`},
		{v0Path, `{"create_microagent":{"repo":"https://u:CANARY@h/o/r"}}`},
		{pathSettingsV1, `{"agent_settings_diff":{"llm":{"api_key":"CANARY"}},"search_api_key":"CANARY","mcp_config":` + mcp +
			`,"secrets_store":{"custom_secrets":{"N":{"secret":"CANARY"}}}}`},
		{pathSettingsV1, `{"agent_settings_diff":{"llm":{"api_key":["CANARY"]},"mcp_config":{"CANARY":"CANARY"}}}`},
		{pathLLMProfiles + "/fast", `{"llm":{"model":"m","api_key":"CANARY"}}`},
		{pathLLMProfiles + "/fast", `{"llm":{"model":"m","api_key":["CANARY"],"CANARY":"CANARY"}}`},
		{pathLLMProfiles + "/fast", `{"llm":{"model":"m","base_url":"https://u:CANARY@h/v1"}}`},
		{pathLLMProfiles + "/fast/activate", `{"key":"CANARY"}`},
		{pathSecrets, `{"name":"N","value":"CANARY"}`},
		{pathSecrets, `{"name":"N","value":["CANARY"],"description":{"a":"CANARY"}}`},
		{pathAgentProfiles + "/mine", `{"llm_profile_ref":"fast","verification":{"critic_api_key":"CANARY"}}`},
		{pathAgentProfiles + "/mine", `{"llm_profile_ref":"fast","condenser":{"url":"https://u:CANARY@h"},` +
			`"CANARY":"CANARY"}`},
		{pathAgentProfiles + "/mine", `{"agent_kind":"acp","acp_command":["x","--token","CANARY"],"acp_args":"CANARY"}`},
		{
			pathConversations,
			`{"secrets":{"A":["CANARY"],"OH_X":"CANARY"},"plugins":[{"source":["CANARY"],"parameters":"CANARY"},` +
				`"CANARY"],"processors":"CANARY"}`,
		},
		{pathConversations, `{"secrets":["CANARY"],"plugins":{"source":"CANARY"}}`},
	}
}

func TestCanaries(t *testing.T) {
	h := newHarness(t, withLogs(&fakeLogs{})).newest().withSpec().withSettings()
	canary := "c4n4ry" + apikey.Random(20)
	check := func(where, text string) {
		t.Helper()
		if i := strings.Index(text, canary); i >= 0 {
			t.Errorf("a canary is in %s: …%s…", where, text[max(0, i-80):min(len(text), i+60)])
		}
	}
	send := func(when string) {
		t.Helper()
		for _, r := range canaryBodies() {
			body := strings.ReplaceAll(r.body, "CANARY", canary)
			for _, query := range []string{"", "?token=" + canary} {
				res := h.do(h.alice, "POST", r.path+query, body)
				check(when+": the answer of "+r.path+" to "+r.body, string(res.body))
			}
		}
	}
	// The routes with an id: requests to them, and their responses.
	sb := h.createSandbox(h.alice)
	h.observe(sb, running())
	conv := pathConversations + "/" + h.conversation("alice", sb)
	h.agents.sendErr = &AgentError{Status: 422, Cause: errors.New("refused")}
	for _, r := range []struct{ method, path, body string }{
		{"POST", conv + "/send-message", `{"content":[{"text":"CANARY"}]}`},
		{"POST", conv + "/send-message", `{"content":"CANARY","role":["CANARY"],"run":{"a":"CANARY"}}`},
		{"GET", conv + "/git/changes?path=/CANARY&ref=CANARY", ""},
		{"GET", conv + "/file?file_path=/CANARY", ""},
		{"POST", "/api/v1/conversations/task-" + startingTask + "/pending-messages", `{"content":[{"text":"CANARY"}]}`},
		{
			"POST",
			"/api/v1/conversations/task-" + startingTask + "/pending-messages",
			`{"content":[{"CANARY":"CANARY"}],"role":["CANARY"]}`,
		},
		{"POST", conv + "/switch_acp_model", `{"model":["CANARY"]}`},
		{"POST", conv + "/switch_llm", `{"llm_model":["CANARY"]}`},
		{"PATCH", conv, `{"title":{"CANARY":"CANARY"},"git_provider":["CANARY"],"selected_repository":["CANARY"]}`},
		{"PATCH", conv, `{"selected_repository":"https://u:CANARY@h/o/r"}`},
		{"GET", pathSandboxes + "/" + sb + "/logs?key=CANARY", ""},
		{"GET", pathSandboxes + "/" + sb + "/settings/secrets/CANARY", ""},
		{"PUT", pathOperator + "/users/alice", `{"policy":{"CANARY x":"CANARY"},"limits":["CANARY"]}`},
		{"POST", pathOperator + "/specs/small/pool", `{"size":["CANARY"]}`},
	} {
		key := h.alice
		if strings.HasPrefix(r.path, pathOperator) {
			key = h.root
		}
		res := h.do(key, r.method, strings.ReplaceAll(r.path, "CANARY", canary), strings.ReplaceAll(r.body, "CANARY", canary))
		check("the answer of "+r.method+" "+r.path+" to "+r.body, string(res.body))
	}
	send("all well")
	h.do(h.alice, "POST", pathSandboxes, canary).want(t, 200)
	h.do("bvk_"+canary, "GET", settingsPath+"?key="+canary, "")
	h.do("", "GET", settingsPath, "", "Authorization", "Bearer "+canary)
	h.do(h.alice, "GET", "/"+canary, "")
	h.secrets.set(func(s *fakeSecrets) { s.err = fsm.Errorf(fsm.CodeSecretStore, "vault is sealed") })
	send("secret store away")
	h.secrets.set(func(s *fakeSecrets) { s.err = nil })
	h.cluster.set(func(c *fakeCluster) { c.proposeErr = fsm.Errorf(fsm.CodeInternal, "boom") })
	send("cluster broken")
	h.cluster.set(func(c *fakeCluster) { c.proposeErr = nil })

	check("the log of requests", h.logs.String())
	for _, entry := range h.cluster.log {
		check("the Raft log", string(entry))
	}
	// The log is searched in the form that a cluster at the newest version writes.
	if last := h.cluster.log[len(h.cluster.log)-1]; last[0] != 3 {
		t.Errorf("the log has commands without a binary header: %.40q", last)
	}
	var snapshot bytes.Buffer
	if err := h.cluster.store.Snapshot().Persist(&snapshot); err != nil {
		t.Fatal(err)
	}
	check("a snapshot", snapshot.String())
	check("the metrics", string(h.do("", "GET", "/metrics", "").body))
	// The test is meaningful only if the canaries were stored.
	h.do(h.alice, "POST", settingsPath, `{"mcp_config":{"sse_servers":["https://`+canary+`"]}}`).want(t, 200)
	if !strings.Contains(string(h.do(h.alice, "GET", settingsPath, "").body), canary) ||
		h.secrets.last("users/alice/settings/llm_api_key")["value"] != canary {
		t.Error("the canaries were not stored")
	}
	for _, path := range []string{
		"/api/v1/app-conversations/start-tasks/search",
		"/api/v1/sandboxes/search",
		pathConversations,
	} {
		check("GET "+path, string(h.do(h.alice, "GET", path, "").body))
	}
}

func TestCanaries_SandboxKeysStayOutOfTheLog(t *testing.T) {
	h := newHarness(t).newest().withSpec()
	id := h.createSandbox(h.alice)
	entry := h.secrets.last("sandboxes/" + id + "/session")
	for _, b := range h.cluster.log {
		if bytes.Contains(b, []byte(entry["key"])) || bytes.Contains(b, []byte(entry["secret_key"])) {
			t.Fatalf("the key is in the Raft log: %s", b)
		}
	}
	if strings.Contains(h.logs.String(), entry["key"]) || strings.Contains(h.logs.String(), h.alice) {
		t.Fatal("a key is in the request log")
	}
}
