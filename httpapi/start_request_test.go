package httpapi

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
)

func TestStart_Example(t *testing.T) {
	h := newHarness(t)
	res := h.do(h.alice, "POST", "/api/v1/app-conversations",
		`{"initial_message":{"content":[{"type":"text","text":"Check the README"}]},"selected_repository":"octo/app"}`).
		want(t, 200).golden(t, "start")
	var got struct{ Request json.RawMessage }
	res.json(t, &got)
	want := `{"sandbox_id":null,"conversation_id":null,
  "initial_message":{"role":"user","content":[{"cache_prompt":false,"type":"text","text":"Check the README"}],
  "run":false},
  "system_message_suffix":null,"processors":null,"llm_model":null,"agent_profile_id":null,
  "selected_repository":"octo/app","selected_branch":null,"git_provider":null,"suggested_task":null,"title":null,
  "trigger":null,"pr_number":[],"parent_conversation_id":null,"agent_type":"default","public":null,
  "observability_metadata":null,"observability_tags":null,"observability_span_name":null,"plugins":null,"secrets":null,
  "acp_server":null}`
	var a, b any
	if json.Unmarshal([]byte(want), &a) != nil || json.Unmarshal(got.Request, &b) != nil || cmp.Diff(a, b) != "" {
		t.Fatal(cmp.Diff(a, b))
	}
}

const everyStartField = `{"sandbox_id":"5cXn1","conversation_id":"6F0C4E3B9A7D4C1E8F2B5A6D7C8E9F01",
 "initial_message":{"role":"system","content":[{"text":""},{"type":"image","image_urls":["https://x/y.png"],
 "cache_prompt":"yes"}],"run":1},
 "system_message_suffix":"s","processors":[{"kind":"SetTitleCallbackProcessor","bot_token":"xoxb-canary","n":1}],
 "llm_model":"m","selected_repository":"octo/app","selected_branch":"main","git_provider":"gitlab",
 "title":"T","trigger":"slack","pr_number":[1,"2",3.0],"agent_type":"default","public":true,
 "observability_metadata":{"a":"b","n":5,"t":true},"observability_tags":["x"],"observability_span_name":"span",
 "plugins":[{"source":"https://u:ghp_canary@git.example.org/p.git?token=canary2","ref":"v1","repo_path":"a",
 "parameters":{"api_key":"canary3","depth":{"password":"canary4","ok":1}}}],
 "secrets":{"MY_TOKEN":"canary5"},"unknown":1}`

func TestStart_EveryFieldIsEchoedAndSecretsAreMasked(t *testing.T) {
	h := newHarness(t)
	res := h.do(h.alice, "POST", "/api/v1/app-conversations", everyStartField).want(t, 200).golden(t, "start_every_field")
	if strings.Contains(string(res.body), "canary") {
		t.Fatalf("a secret is echoed: %s", res.body)
	}
	task := h.openTask("alice")
	if task.ConversationID != "6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01" ||
		*task.Request.ConversationID != "6f0c4e3b-9a7d-4c1e-8f2b-5a6d7c8e9f01" {
		t.Fatalf("conversation id %s", task.ConversationID)
	}
	var doc fsm.StartSecrets
	if err := json.Unmarshal([]byte(h.secrets.last("users/alice/start_tasks/" + task.ID)["json"]), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Secrets["MY_TOKEN"] != "canary5" || !strings.Contains(doc.Plugins[0].Source, "ghp_canary") ||
		doc.Plugins[0].Parameters["api_key"] != "canary3" ||
		doc.Metadata["a"] != "b" {
		t.Fatalf("secret document %+v", doc)
	}
}

// TestStart_RefusesWhatNothingHonours: nothing is accepted and dropped, and the refusal says what to
// send instead.
func TestStart_RefusesWhatNothingHonours(t *testing.T) {
	h := newHarness(t).withSettings()
	for _, c := range []struct{ path, body, member, says string }{
		{pathConversations, `{"selected_branch":"dev"}`, "selected_branch", "send selected_repository, too"},
		{
			pathConversations,
			`{"processors":[{"kind":"SetTitleCallbackProcessor"},{"kind":"LoggingCallbackProcessor"}]}`,
			"kind",
			"leave it out",
		},
		{
			pathConversations,
			`{"processors":[{"kind":"SlackV1CallbackProcessor","channel":"canary"}]}`,
			"kind",
			"leave it out",
		},
		{
			v0Path,
			`{"replay_json":"[{\"id\":1,\"text\":\"canary\"}]"}`,
			"replay_json",
			"send what the agent shall do as initial_user_msg",
		},
		{v0Path, `{"selected_branch":"dev"}`, "selected_branch", "send repository, too"},
	} {
		res := h.do(h.alice, "POST", c.path, c.body).want(t, 422)
		var got struct {
			Detail []struct {
				Type, Msg string
				Loc       []string
			}
		}
		res.json(t, &got)
		if len(got.Detail) != 1 || got.Detail[0].Type != "value_error" ||
			got.Detail[0].Loc[len(got.Detail[0].Loc)-1] != c.member ||
			!strings.Contains(got.Detail[0].Msg, c.says) || strings.Contains(string(res.body), "canary") {
			t.Errorf("%s %s: %s", c.path, c.body, res.body)
		}
	}
	if n := len(h.openTasks()); n != 0 {
		t.Errorf("%d tasks were stored", n)
	}
	for path, body := range map[string]string{
		pathConversations: `{"agent_type":"default","agent_profile_id":"",` +
			`"processors":[{"kind":"SetTitleCallbackProcessor"}],"selected_branch":""}`,
		v0Path: `{"replay_json":"[]","selected_branch":null}`,
	} {
		h.do(h.alice, "POST", path, body).want(t, 200)
	}
}

// TestStart_Plan: a plan is started where every node knows what it is.
func TestStart_Plan(t *testing.T) {
	h := newHarness(t).withSettings()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.VersionPlans - 1})
	h.do(h.alice, "POST", pathConversations, `{"agent_type":"plan"}`).want(t, 409)
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.VersionPlans})
	res := h.do(h.alice, "POST", pathConversations, `{"agent_type":"plan"}`).want(t, 200)
	if !strings.Contains(string(res.body), `"agent_type":"plan"`) {
		t.Errorf("the task is %s", res.body)
	}
}

func TestStart_SuggestedTask(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "POST", "/api/v1/app-conversations",
		`{"suggested_task":{"git_provider":"github","task_type":"FAILING_CHECKS","repo":"octo/app",`+
			`"issue_number":7,"title":"CI is red"}}`).
		want(t, 200).golden(t, "start_suggested_task")
	q := h.openTask("alice").Request
	if *q.Trigger != "suggested_task" || *q.SelectedRepository != "octo/app" || *q.GitProvider != "github" {
		t.Fatalf("request %+v", q)
	}
}

func TestStart_Parent(t *testing.T) {
	h := newHarness(t).withSpec()
	h.do(h.alice, "POST", "/api/v1/app-conversations",
		`{"parent_conversation_id":"6f0c4e3b-9a7d-4c1e-8f2b-5a6d7c8e9f01","secrets":{"A":"b"}}`).
		want(t, 404).is(t, `{"detail":"Parent conversation not found: 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01"}`)
	if len(h.openTasks()) != 0 || h.secrets.last("users/alice/start_tasks") != nil {
		t.Fatal("something was stored")
	}
	sb := h.createSandbox(h.alice)
	parent := h.conversation("alice", sb,
		func(c *fsm.Conversation) { c.SelectedRepository, c.LLMModel = ptr("octo/app"), ptr("m") })
	var got struct{ Request map[string]any }
	h.do(h.alice, "POST", "/api/v1/app-conversations",
		sprint(`{"parent_conversation_id":%q}`, decode.Dashed(parent))).want(t, 200).json(t, &got)
	q := got.Request
	if q["parent_conversation_id"] != parent || q["sandbox_id"] != sb || q["selected_repository"] != "octo/app" ||
		q["llm_model"] != "m" {
		t.Fatalf("request %v", q)
	}
	h.do(h.bob, "POST", "/api/v1/app-conversations", sprint(`{"parent_conversation_id":%q}`, parent)).want(t, 404)
}

func TestStart_ConversationIDInUse(t *testing.T) {
	h := newHarness(t)
	body := `{"conversation_id":"6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01"}`
	h.do(h.alice, "POST", "/api/v1/app-conversations", body).want(t, 200)
	h.do(h.alice, "POST", "/api/v1/app-conversations", body).want(t, 409)
	h.do(h.bob, "POST", "/api/v1/app-conversations", body).want(t, 200)
}

func TestStart_SecretStoreAway(t *testing.T) {
	h := newHarness(t)
	h.secrets.set(func(s *fakeSecrets) { s.err = errStoreAway })
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{"secrets":{"A":"b"}}`).want(t, 503)
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{"plugins":[{"source":"x"}]}`).want(t, 503)
	if len(h.openTasks()) != 0 {
		t.Fatal("a task was stored")
	}
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{"secrets":{}}`).want(t, 200)
}

func TestIsReservedSecret(t *testing.T) {
	for _, name := range strings.Fields(`OPENVSCODE_SERVER_ROOT OH_ENABLE_VNC LOG_JSON OH_CONVERSATIONS_PATH
	  OH_BASH_EVENTS_DIR PYTHONUNBUFFERED ENV_LOG_LEVEL OH_WEBHOOKS_0_BASE_URL OH_ALLOW_CORS_ORIGINS_0
	  WORKER_1 WORKER_2 LLM_API_KEY LLM_ OH_X`) {
		if !isReservedSecret(name) {
			t.Errorf("%s is free", name)
		}
	}
	for _, name := range []string{"GITHUB_TOKEN", "MY_LLM_KEY", "llm_key", "WORKER_3"} {
		if isReservedSecret(name) {
			t.Errorf("%s is reserved", name)
		}
	}
}
