package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// What a page asks for before its first conversation.
func TestProfiles_OfANewUser(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "GET", pathAgentProfiles, "").want(t, 200).is(t, `{"profiles":[],"active_agent_profile_id":null}`)
	h.do(h.alice, "GET", pathLLMProfiles, "").want(t, 200).is(t, `{"profiles":[],"active_profile":null}`)
	h.do(h.alice, "GET", pathOrganizations, "").want(t, 200).is(t,
		`{"items":[{"id":"alice","name":"alice","is_personal":true}],"next_page_id":null,"current_org_id":"alice"}`)
	of := pathOrganizations + "/alice"
	h.do(h.alice, "GET", of+"/me", "").want(t, 200).is(t, `{"org_id":"alice","user_id":"alice","email":null,
		"role":"owner","permissions":null,"llm_api_key":""}`)
	h.do(h.alice, "GET", of+"/provider-connections", "").want(t, 200).is(t, `{"connections":[]}`)
	h.do(h.alice, "GET", of+"/profiles", "").want(t, 200).is(t, `{"profiles":[],"active_profile":null}`)
}

// Another user's organization is answered as one that there is not.
func TestOrganizations_AreTheUsersOwn(t *testing.T) {
	h := newHarness(t).raised().withProfiles("alice")
	for _, r := range routes() {
		if !strings.Contains(r.path, ":org_id") {
			continue
		}
		_, path, body := sampleRequest(r, "", "")
		theirs := h.do(h.bob, r.method, path, body).want(t, 404)
		none := h.do(h.bob, r.method, strings.Replace(path, "/alice/", "/nobody/", 1), body).want(t, 404)
		if string(theirs.body) != string(none.body) {
			t.Errorf("%s: %s for alice's, %s for none", r.name, theirs.body, none.body)
		}
		h.do(h.alice, r.method, path, body)
	}
	h.do(h.bob, "GET", pathLLMProfiles, "").want(t, 200).is(t, `{"profiles":[],"active_profile":null}`)
}

func TestAgentProfiles_Life(t *testing.T) {
	h := newHarness(t).raised()
	path := pathAgentProfiles + "/mine"
	h.do(h.alice, "GET", path, "").want(t, 404).is(t, `{"detail":"Agent profile 'mine' not found"}`)
	h.do(h.alice, "POST", path, `{"llm_profile_ref":"fast","id":"x","revision":9}`).want(t, 201).is(t,
		`{"name":"mine","message":"Agent profile 'mine' saved"}`)
	id := h.cluster.store.View().Profile("alice", fsm.ProfileAgent, "mine").ID
	h.do(h.alice, "GET", path, "").want(t, 200).is(t, sprint(`{"name":"mine","profile":{"schema_version":3,"id":%q,
		"name":"mine","revision":0,"agent_kind":"openhands","mcp_server_refs":null,"llm_profile_ref":"fast",
		"agent":"CodeActAgent","tools":null,"system_message_suffix":null,"disabled_skills":[],
		"enable_sub_agents":false,"enable_switch_llm_tool":true,"tool_concurrency_limit":1}}`, id))
	h.do(h.alice, "POST", path, `{"agent_kind":"acp","acp_server":"codex","acp_model":"gpt-5"}`).want(t, 201)
	h.do(h.alice, "POST", pathAgentProfiles+"/"+id+"/activate", "").want(t, 200).is(t,
		sprint(`{"id":%q,"message":"Agent profile '%s' activated","agent_settings_applied":false}`, id, id))
	h.do(h.alice, "POST", path+"/rename", `{"new_name":"yours"}`).want(t, 200).is(t,
		`{"name":"yours","message":"Agent profile 'mine' renamed to 'yours'"}`)
	h.do(h.alice, "GET", pathAgentProfiles, "").want(t, 200).is(t, sprint(`{"profiles":[{"id":%q,"name":"yours",
		"agent_kind":"acp","revision":1,"llm_profile_ref":null,"mcp_server_refs":null}],"active_agent_profile_id":%q}`,
		id, id))
	h.do(h.alice, "GET", settingsPath, "").want(t, 404) // an agent profile makes no settings

	// Another user's is one that there is not.
	h.do(h.bob, "GET", pathAgentProfiles+"/yours", "").want(t, 404)
	h.do(h.bob, "POST", pathAgentProfiles+"/yours/rename", `{"new_name":"a"}`).want(t, 404)
	h.do(h.bob, "POST", pathAgentProfiles+"/"+id+"/activate", "").want(t, 404).is(t,
		sprint(`{"detail":"Agent profile with id '%s' not found"}`, id))
	h.do(h.bob, "DELETE", pathAgentProfiles+"/yours", "").want(t, 200)

	for range 2 { // once more is the same
		h.do(h.alice, "DELETE", pathAgentProfiles+"/yours", "").want(t, 200).is(t,
			`{"name":"yours","message":"Agent profile 'yours' deleted"}`)
		h.do(h.alice, "GET", pathAgentProfiles, "").want(t, 200).is(t, `{"profiles":[],"active_agent_profile_id":null}`)
	}
}

// A node that is behind answers with what another node has saved.
func TestProfiles_OnANodeThatIsBehind(t *testing.T) {
	h := newHarness(t).raised()
	before := h.cluster.store.View()
	h.withProfiles("alice").behind(before)
	h.do(h.alice, "GET", pathAgentProfiles+"/mine", "").want(t, 200)
	h.behind(before)
	h.do(h.alice, "GET", pathLLMProfiles+"/fast", "").want(t, 200)
	h.behind(before)
	h.do(h.alice, "POST", pathLLMProfiles+"/fast", `{"llm":{"model":"m"}}`).want(t, 201)
	if p := h.cluster.store.View().Profile("alice", fsm.ProfileLLM, "fast"); p.ID != "p1" || p.Revision != 1 {
		t.Errorf("saved again: %+v", p)
	}
}

func TestProfiles_Refused(t *testing.T) {
	h := newHarness(t).raised().withProfiles("alice")
	agent, llm := pathAgentProfiles+"/mine", pathLLMProfiles+"/fast"
	for _, tt := range []struct{ path, body, want string }{
		{agent, ``, "body missing"},
		{agent, `{}`, "body.llm_profile_ref missing"},
		{agent, `{"llm_profile_ref":"a b"}`, "body.llm_profile_ref value_error"},
		{agent, `{"llm_profile_ref":"fast","acp_server":"codex"}`, "body.acp_server extra_forbidden"},
		{agent, `{"agent_kind":"acp","llm_profile_ref":"fast"}`, "body.llm_profile_ref extra_forbidden"},
		{agent, `{"agent_kind":"llm","llm_profile_ref":"fast"}`, "body.agent_kind enum"},
		{agent, `{"llm_profile_ref":"fast","mcp_server_refs":[]}`, "body.mcp_server_refs value_error"},
		{agent, `{"llm_profile_ref":"fast","tools":[]}`, "body.tools value_error"},
		{agent, `{"llm_profile_ref":"fast","disabled_skills":["a"]}`, "body.disabled_skills value_error"},
		{agent, `{"llm_profile_ref":"fast","skills":[{"name":"a"}]}`, "body.skills value_error"},
		{agent, `{"llm_profile_ref":"fast","tool_concurrency_limit":0}`, "body.tool_concurrency_limit value_error"},
		{agent, `{"llm_profile_ref":"fast","condenser":{"a":{}}}`, "body.condenser.a string_type"},
		{agent, `{"agent_kind":"acp","acp_command":["x"]}`, "body.acp_command value_error"},
		{agent, `{"agent_kind":"acp","acp_prompt_timeout":0}`, "body.acp_prompt_timeout value_error"},
		{agent, `{"llm_profile_ref":"fast","system_message_suffix":"` + strings.Repeat("x", fsm.MaxParagraph/2+1) + `"}`,
			"body.system_message_suffix string_too_long"},
		{agent + "/rename", `{}`, "body.new_name missing"},
		{agent + "/rename", `{"new_name":"a/b"}`, "body.new_name value_error"},
		{agent + "/rename", `{"new_name":""}`, "body.new_name value_error"},
		{llm, `{"llm":{}}`, "body.llm.model missing"},
		{llm, `{"llm":{"model":"m","temperature":1}}`, "body.llm.temperature extra_forbidden"},
		{llm, `{"llm":{"model":"m","base_url":"https://u:p@h"}}`, "body.llm.base_url value_error"},
		{llm, `{"llm":{"model":"m","auth_type":"subscription"}}`, "body.llm.auth_type enum"},
		{llm, `{"include_secrets":null}`, "body.include_secrets bool_type"},
		{pathLLMProfiles + "/a%20b", `{"llm":{"model":"m"}}`, "path.name value_error"},
		{pathLLMProfiles + "/" + strings.Repeat("x", 65), `{"llm":{"model":"m"}}`, "path.name value_error"},
	} {
		if got := summary(h.do(h.alice, "POST", tt.path, tt.body).problems(t)); len(got) != 1 || got[0] != tt.want {
			t.Errorf("%s %s: %v, want %s", tt.path, tt.body, got, tt.want)
		}
	}
	h.do(h.alice, "POST", pathLLMProfiles+"/slow", `{"llm":{"model":"m"}}`).want(t, 201)
	h.do(h.alice, "POST", llm+"/rename", `{"new_name":"slow"}`).want(t, 409).is(t,
		`{"detail":"Profile 'slow' already exists"}`)
	h.do(h.alice, "POST", pathLLMProfiles+"/none/rename", `{"new_name":"a"}`).want(t, 404)
	h.do(h.alice, "POST", pathLLMProfiles+"/none/activate", ``).want(t, 404).is(t,
		`{"detail":"Profile 'none' not found"}`)
	h.do(h.bob, "POST", llm, ``).want(t, 404).is(t, `{"detail":"Settings not found"}`)
	for i := range fsm.MaxProfiles - 2 {
		h.do(h.alice, "POST", pathLLMProfiles+"/p"+itoa(i), `{"llm":{"model":"m"}}`).want(t, 201)
	}
	h.do(h.alice, "POST", pathLLMProfiles+"/more", `{"llm":{"model":"m","api_key":"k"}}`).want(t, http.StatusConflict)
	for _, path := range h.secrets.paths() {
		if strings.Contains(path, "/profiles/") {
			t.Errorf("a refused save left %s", path)
		}
	}
}

// Below its protocol version nothing of a profile is stored, and the lists are empty.
func TestProfiles_NeedTheirVersion(t *testing.T) {
	h := newHarness(t)
	for path, body := range map[string]string{
		pathAgentProfiles + "/mine":        `{"llm_profile_ref":"fast"}`,
		pathLLMProfiles + "/fast":          `{"llm":{"model":"m","api_key":"k"}}`,
		pathLLMProfiles + "/fast/activate": ``, pathSecrets: `{"name":"A","value":"b"}`,
		pathSettingsV1: `{"llm_api_key":"k"}`,
	} {
		if res := h.do(h.alice, "POST", path, body).want(t, 409); !strings.Contains(string(res.body), "protocol version 11") {
			t.Errorf("%s: %s", path, res.body)
		}
	}
	if n := h.secrets.written(); n != 0 {
		t.Errorf("%d secrets were written", n)
	}
}

func TestLLMProfiles_Life(t *testing.T) {
	h := newHarness(t).withSpec().raised()
	fast, slow := pathLLMProfiles+"/fast", pathLLMProfiles+"/slow"
	h.do(h.alice, "POST", fast,
		`{"llm":{"model":"openai/gpt-5","base_url":"https://a.example.org/v1","api_key":"sk-fast"}}`).want(t, 201).is(t,
		`{"name":"fast","message":"Profile 'fast' saved"}`)
	h.do(h.alice, "GET", fast, "").want(t, 200).is(t, `{"name":"fast","config":{"model":"openai/gpt-5",
		"base_url":"https://a.example.org/v1","api_key":null},"api_key_set":true}`)
	p := h.cluster.store.View().Profile("alice", fsm.ProfileLLM, "fast")
	if h.secrets.last(fsm.ProfileKeyPath("alice", p.ID))["value"] != "sk-fast" || p.Key.Bytes != len("sk-fast") {
		t.Errorf("the key is not in the store: %+v", p.Key)
	}
	// The settings have it once it is activated, and a conversation that begins then.
	h.do(h.alice, "POST", fast+"/activate", `{}`).want(t, 200).is(t,
		`{"name":"fast","message":"Switched to profile 'fast'","model":"openai/gpt-5"}`)
	var set map[string]any
	h.do(h.alice, "GET", settingsPath, "").want(t, 200).json(t, &set)
	if set["llm_model"] != "openai/gpt-5" || set["llm_base_url"] != "https://a.example.org/v1" ||
		set["llm_api_key_set"] != true || set["enable_default_condenser"] != true {
		t.Errorf("the settings are %v", set)
	}
	var task struct{ ID string }
	h.do(h.alice, "POST", pathConversations, `{}`).want(t, 200).json(t, &task)
	if e := h.cluster.store.View().StartTask("alice", task.ID).LLM; e == nil || e.Model != "openai/gpt-5" ||
		e.Key != p.Key.Path {
		t.Errorf("the conversation goes to %+v", e)
	}
	// The answer of a read is saved again without a key, which stays; the settings follow.
	h.do(h.alice, "POST", fast, `{"llm":{"model":"openai/gpt-6","base_url":null,"api_key":null}}`).want(t, 201)
	h.do(h.alice, "GET", pathLLMProfiles, "").want(t, 200).is(t, `{"profiles":[{"name":"fast","model":"openai/gpt-6",
		"base_url":null,"api_key_set":true}],"active_profile":"fast"}`)
	h.do(h.alice, "GET", settingsPath, "").want(t, 200).json(t, &set)
	if set["llm_model"] != "openai/gpt-6" || set["llm_base_url"] != nil || set["llm_api_key_set"] != true {
		t.Errorf("the settings are %v", set)
	}
	// Settings that say something else are no profile's.
	h.do(h.alice, "POST", settingsPath, `{"llm_model":"openai/gpt-7","llm_api_key":"sk-own"}`).want(t, 200)
	h.do(h.alice, "POST", slow, ``).want(t, 201)
	h.do(h.alice, "GET", pathLLMProfiles, "").want(t, 200).is(t, `{"profiles":[{"name":"fast","model":"openai/gpt-6",
		"base_url":null,"api_key_set":true},{"name":"slow","model":"openai/gpt-7","base_url":null,"api_key_set":true}],
		"active_profile":null}`)
	h.do(h.alice, "POST", slow, `{"include_secrets":false}`).want(t, 201)
	h.do(h.alice, "GET", slow, "").want(t, 200).is(t,
		`{"name":"slow","config":{"model":"openai/gpt-7","base_url":null,"api_key":null},"api_key_set":false}`)
	h.do(h.alice, "POST", fast, `{"llm":{"model":"m","api_key":""}}`).want(t, 201)
	h.do(h.alice, "DELETE", slow, "").want(t, 200)
	h.do(h.alice, "GET", pathLLMProfiles, "").want(t, 200).is(t,
		`{"profiles":[{"name":"fast","model":"m","base_url":null,"api_key_set":false}],"active_profile":null}`)
}

// A start that names an agent profile gets what the profile says; the settings stay.
func TestStart_AgentProfile(t *testing.T) {
	h := newHarness(t).withSpec().raised().withProfiles("alice")
	start := func(key, body string, want int) (task *fsm.StartTask) {
		t.Helper()
		var made struct{ ID string }
		h.do(key, "POST", pathConversations, body).want(t, want).json(t, &made)
		return h.cluster.store.View().StartTask("alice", made.ID)
	}
	task := start(h.alice, `{"agent_profile_id":"p2","system_message_suffix":"And kind."}`, 200)
	q := task.Request
	if task.LLM == nil || task.LLM.Model != "openai/gpt-5" || task.LLM.Profile != "p1" ||
		*q.ACPServer != fsm.AgentOpenHands ||
		task.AgentProfile == nil || *task.AgentProfile != (fsm.LaunchedProfile{ID: "p2"}) ||
		*q.SystemMessageSuffix != "Be short.\n\nAnd kind." || *q.AgentProfileID != "p2" {
		t.Errorf("the task has %+v and %+v", task.LLM, q)
	}
	if task = start(h.alice, `{"agent_profile_id":"p2","llm_model":"openai/o3"}`, 200); task.LLM.Model != "openai/o3" ||
		task.LLM.BaseURL != "https://models.example.org/v1" {
		t.Errorf("with a model of its own the task has %+v", task.LLM)
	}
	if task = start(h.alice, `{"agent_profile_id":""}`, 200); task.LLM != nil || task.AgentProfile != nil {
		t.Errorf("without a profile the task has %+v and %+v", task.LLM, task.AgentProfile)
	}
	if task = start(h.alice, `{}`, 200); task.AgentProfile != nil {
		t.Errorf("without an active profile the task has %+v", task.AgentProfile)
	}
	h.do(h.alice, "POST", pathAgentProfiles+"/p2/activate", `{}`).want(t, 200)
	for body, want := range map[string]bool{
		`{}`: true, `{"agent_profile_id":null}`: true, `{"agent_profile_id":""}`: false, `{"agent_type":"plan"}`: true,
	} {
		task = start(h.alice, body, 200)
		is := task.AgentProfile != nil && task.AgentProfile.ID == "p2" && task.LLM != nil && task.LLM.Profile == "p1"
		if is != want || !want && task.AgentProfile != nil {
			t.Errorf("%s: the active profile is taken: %t; %+v and %+v", body, is, task.AgentProfile, task.LLM)
		}
	}
	start(h.alice, `{"agent_profile_id":"p1"}`, 404)
	h.do(h.bob, "POST", pathConversations, `{"agent_profile_id":"p2"}`).want(t, 404).is(t,
		`{"detail":"Agent profile with id 'p2' not found"}`)
	h.do(h.alice, "DELETE", pathLLMProfiles+"/fast", "").want(t, 200)
	h.do(h.alice, "POST", pathConversations, `{"agent_profile_id":"p2"}`).want(t, 404).is(t,
		`{"detail":"LLM profile 'fast' of the agent profile 'mine' not found"}`)
	// One whose agent speaks ACP names it and its model.
	acp := `{"agent_kind":"acp","acp_server":"gone","acp_model":"m"}`
	h.do(h.alice, "POST", pathAgentProfiles+"/mine", acp).want(t, 201)
	if res := h.do(h.alice, "POST", pathConversations, `{"agent_profile_id":"p2"}`).want(t, 422); !strings.Contains(
		string(res.body), `has no agent`) {
		t.Errorf("an agent that the spec does not have: %s", res.body)
	}
	h.do(h.alice, "POST", pathConversations, `{}`).want(t, 422)
	if task = start(h.alice, `{"agent_type":"plan"}`, 200); task.AgentProfile != nil {
		t.Errorf("a plan has the active profile, whose agent speaks ACP: %+v", task.AgentProfile)
	}
}

// The bodies that Agent Canvas 1.20 sends for a profile that it edits.
func TestProfiles_OfAgentCanvas(t *testing.T) {
	h := newHarness(t).raised()
	for path, body := range map[string]string{
		pathLLMProfiles + "/fast": `{"llm":{"model":"m","auth_type":"api_key","api_key":"k"},"include_secrets":true}`,
		pathAgentProfiles + "/mine": `{"agent_kind":"openhands","schema_version":3,"llm_profile_ref":"fast",
			"mcp_server_refs":null,"enable_sub_agents":false,"system_message_suffix":null,"tool_concurrency_limit":1,
			"condenser":{"enabled":true,"condenser_kind":"llm_summarizing","max_size":240,"keep_first":2,"max_tokens":null,
			"minimum_progress":0.1},"verification":{"critic_enabled":false,"critic_mode":"finish_and_message",
			"enable_iterative_refinement":false,"critic_threshold":0.6,"max_refinement_iterations":3,"critic_server_url":null,
			"critic_model_name":null},"agent":"CodeActAgent","skills":[]}`,
		pathAgentProfiles + "/other": `{"agent_kind":"acp","acp_server":"codex","acp_model":null,"acp_session_mode":null,
			"acp_prompt_timeout":1800,"acp_command":null,"acp_args":null,"mcp_server_refs":null}`,
	} {
		h.do(h.alice, "POST", path, body).want(t, 201)
	}
	var got struct {
		Profile struct{ Condenser map[string]any }
	}
	h.do(h.alice, "GET", pathAgentProfiles+"/mine", "").want(t, 200).json(t, &got)
	if got.Profile.Condenser["max_size"] != 240.0 {
		t.Errorf("the condenser is %v", got.Profile.Condenser)
	}
}
