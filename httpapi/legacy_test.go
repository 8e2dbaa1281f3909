package httpapi

import (
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// withSettings gives alice and bob settings that V0 starts need.
func (h *harness) withSettings() *harness {
	h.t.Helper()
	for _, key := range []string{h.alice, h.bob} {
		h.do(key, "POST", "/api/settings", `{"llm_model":"anthropic/claude-sonnet-4","llm_api_key":"sk-1"}`).want(h.t, 200)
	}
	return h
}

// openTask returns a user's one open start task.
func (h *harness) openTask(user string) *fsm.StartTask {
	h.t.Helper()
	v, _ := h.cluster.View(h.t.Context(), cluster.Stale)
	var found *fsm.StartTask
	for _, task := range v.OpenStartTasks() {
		if task.UserID == user {
			if found != nil {
				h.t.Fatal("more than one open task")
			}
			found = task
		}
	}
	if found == nil {
		h.t.Fatal("no open task")
	}
	return found
}

func TestV0Start(t *testing.T) {
	h := newHarness(t).withSettings()
	h.do(h.alice, "POST", "/api/conversations",
		`{"repository":"octo/app","git_provider":"github","initial_user_msg":"Fix the README"}`).
		want(t, 200).golden(t, "v0_start")
	task := h.openTask("alice")
	q := task.Request
	if *q.SelectedRepository != "octo/app" || *q.GitProvider != "github" ||
		q.InitialMessage.Content[0].Text != "Fix the README" || *q.Trigger != "gui" {
		t.Fatalf("request %+v", q)
	}
	if !task.Secrets.IsZero() {
		t.Fatal("there is nothing secret in this request")
	}
}

func TestV0Start_EverythingGiven(t *testing.T) {
	h := newHarness(t).withSettings()
	h.do("", "POST", "/api/conversations", `{"repository":"octo/app","git_provider":"forgejo","selected_branch":"dev",
		"initial_user_msg":"Hi",
	  "image_urls":["data:image/png;base64,AA"],"replay_json":"[]","suggested_task":null,"create_microagent":null,
	  "conversation_instructions":"be kind","mcp_config":{"stdio_servers":[{"name":"a","command":"b",
	  "env":{"K":"hush"}}]}}`,
		"Authorization", "Bearer "+h.alice).want(t, 200)
	task := h.openTask("alice")
	q := task.Request
	if *q.SelectedBranch != "dev" || *q.SystemMessageSuffix != "be kind" || *q.Trigger != "openhands_api" ||
		len(q.InitialMessage.Content) != 2 {
		t.Fatalf("request %+v", q)
	}
	doc := h.secrets.last("users/alice/start_tasks/" + task.ID)["json"]
	if doc != `{"secrets":{},"mcp_config":{"sse_servers":[],"stdio_servers":[{"name":"a","command":"b","args":[],`+
		`"env":{"K":"hush"}}],"shttp_servers":[]},"plugins":null}` {
		t.Fatalf("secret document %s", doc)
	}
}

func TestV0Start_Triggers(t *testing.T) {
	for body, want := range map[string]string{
		`{"suggested_task":{"repo":"o/r","issue_number":"5","title":"T"}}`:         "suggested_task",
		`{"create_microagent":{"repo":"o/r"}}`:                                     "microagent_management",
		`{"create_microagent":{"repo":"o/r","title":"T","git_provider":"gitlab"}}`: "microagent_management",
		`{}`: "gui",
	} {
		h := newHarness(t).withSettings()
		h.do(h.alice, "POST", "/api/conversations", body).want(t, 200)
		q := h.openTask("alice").Request
		if *q.Trigger != want {
			t.Errorf("%s: trigger %s", body, *q.Trigger)
		}
		if want != "gui" && *q.SelectedRepository != "o/r" {
			t.Errorf("%s: repository %v", body, q.SelectedRepository)
		}
		if want == "suggested_task" && !strings.Contains(q.InitialMessage.Content[0].Text, "#5") {
			t.Errorf("prompt %q", q.InitialMessage.Content[0].Text)
		}
	}
}

func TestV0Start_Refusals(t *testing.T) {
	h := newHarness(t)
	none := `{"status":"error","message":"Settings not found","msg_id":"CONFIGURATION$SETTINGS_NOT_FOUND",` +
		`"detail":"Settings not found"}`
	h.do(h.alice, "POST", "/api/conversations", `{}`).want(t, 400).is(t, none)
	h.do(h.alice, "POST", "/api/settings", `{"llm_model":"openai/x"}`).want(t, 200)
	text := "Error authenticating with the LLM provider. Please check your API key"
	h.do(h.alice, "POST", "/api/conversations", `{}`).want(t, 400).
		is(t, sprint(`{"status":"error","message":%q,"msg_id":"STATUS$ERROR_LLM_AUTHENTICATION","detail":%q}`, text, text))
	for _, model := range []string{"bedrock/x", "lemonade/y"} {
		h.do(h.alice, "POST", "/api/settings", sprint(`{"llm_model":%q}`, model)).want(t, 200)
		h.do(h.alice, "POST", "/api/conversations", `{}`).want(t, 200)
	}
}

func TestV0Start_ConversationID(t *testing.T) {
	h := newHarness(t).withSettings()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.VersionStarts})
	for id, detail := range map[string]string{
		strings.Repeat("x", 101): "Conversation ID is too long",
		"a..b":                   "Conversation ID contains invalid path characters",
		"a/b":                    "Conversation ID contains invalid path characters",
		`a\\b`:                   "Conversation ID contains invalid path characters",
		`a\u0000b`:               "Conversation ID contains control characters",
		`a\nb`:                   "Conversation ID contains control characters",
		"":                       "Conversation ID must not be empty",
	} {
		h.do(h.alice, "POST", "/api/conversations", `{"conversation_id":"`+id+`"}`).want(t, 400).is(t,
			sprint(`{"detail":%q}`, detail))
	}
	hex := "6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01"
	for sent, want := range map[string]string{
		hex:                                    hex,
		"6F0C4E3B-9A7D-4C1E-8F2B-5A6D7C8E9F02": "6F0C4E3B-9A7D-4C1E-8F2B-5A6D7C8E9F02",
		"my talk":                              "my talk",
		strings.Repeat("é", 100):               strings.Repeat("é", 100),
	} {
		var got struct {
			ID string `json:"conversation_id"`
		}
		first := h.do(h.alice, "POST", "/api/conversations", sprint(`{"conversation_id":%q}`, sent)).want(t, 200)
		first.json(t, &got)
		if got.ID != want {
			t.Errorf("%s became %s", sent, got.ID)
		}
		before := len(h.openTasks())
		again := h.do(h.alice, "POST", "/api/conversations",
			sprint(`{"conversation_id":%q,"initial_user_msg":"other"}`, sent)).want(t, 200)
		if string(again.body) != string(first.body) || len(h.openTasks()) != before {
			t.Errorf("the second call did not join: %s", again.body)
		}
	}
	// Another user's conversation with the same id is another conversation.
	before := len(h.openTasks())
	h.do(h.bob, "POST", "/api/conversations", `{"conversation_id":"my talk"}`).want(t, 200)
	if len(h.openTasks()) != before+1 {
		t.Error("bob joined alice's conversation")
	}
}

// A start that joins another brings its message along: it waits with the others, once for its content.
func TestV0Start_JoinKeepsTheMessage(t *testing.T) {
	h := newHarness(t).withSpec().withSettings()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.VersionStarts})
	start := func(text, key string) reply {
		headers := []string{}
		if key != "" {
			headers = []string{request.HeaderIdempotencyKey, key}
		}
		return h.do(h.alice, "POST", "/api/conversations", sprint(`{"conversation_id":"talk","initial_user_msg":%q}`, text),
			headers...)
	}
	waiting := func() (texts []string) {
		for _, m := range h.openTasks()[0].Pending {
			texts = append(texts, m.Message.Content[0].Text)
		}
		return texts
	}
	start("first", "one").want(t, 200)
	for _, text := range []string{"first", "second", "second", "third"} {
		start(text, "").want(t, 200)
	}
	start("fourth", "k").want(t, 200)
	start("fourth", "k").want(t, 200)
	if got := waiting(); !slices.Equal(got, []string{"second", "third", "fourth"}) {
		t.Errorf("%q wait", got)
	}
	task := h.openTasks()[0]
	h.apply("", &fsm.StartTaskBindBody{ID: task.ID, SandboxID: h.createSandbox(h.alice)})
	for range task.Pending {
		now := h.openTasks()[0]
		h.apply("", &fsm.StartTaskAdvanceBody{ID: task.ID, Status: now.Status, Delivered: now.Pending[0].ID})
	}
	h.apply("",
		&fsm.StartTaskFinishBody{
			ID:           task.ID,
			Conversation: fsm.Conversation{ID: task.ConversationID, AgentKind: "openhands"},
		})
	start("first", "one").want(t, 200)
	start("fourth", "k").want(t, 200)
	h.do(h.alice, "POST", "/api/conversations", `{"conversation_id":"talk"}`).want(t, 200)
	res := start("fifth", "").want(t, 409)
	if !strings.Contains(string(res.body), "send-message") {
		t.Errorf("%s", res.body)
	}
}

func (h *harness) openTasks() []*fsm.StartTask {
	v, _ := h.cluster.View(h.t.Context(), cluster.Stale)
	return v.OpenStartTasks()
}

func TestV0Start_JoinsAFinishedConversation(t *testing.T) {
	h := newHarness(t).withSpec().withSettings()
	id := h.conversation("alice", h.createSandbox(h.alice))
	h.do(h.alice, "POST", "/api/conversations", sprint(`{"conversation_id":%q}`, id)).want(t, 200).
		is(t, sprint(`{"status":"ok","conversation_id":%q,"message":null,"conversation_status":"STARTING"}`, id))
	if len(h.openTasks()) != 0 {
		t.Fatal("a task was made for a conversation that exists")
	}
}

func TestV0Start_SecretStoreAway(t *testing.T) {
	h := newHarness(t).withSettings()
	h.secrets.set(func(s *fakeSecrets) { s.err = errStoreAway })
	h.do(h.alice, "POST", "/api/conversations", `{"initial_user_msg":"x"}`).want(t, 200)
	res := h.do(h.alice, "POST", "/api/conversations", `{"mcp_config":{}}`).want(t, 503)
	var body response.StatusBody
	res.json(t, &body)
	if body.Status != "error" || body.Message == "" || body.Detail != body.Message || body.MsgID == "" ||
		len(h.openTasks()) != 1 {
		t.Fatalf("body %s, %d tasks", res.body, len(h.openTasks()))
	}
}
