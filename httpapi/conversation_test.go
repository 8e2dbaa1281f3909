package httpapi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
)

func TestConversations_BatchAndSearch(t *testing.T) {
	h := newHarness(t).withSpec()
	sb := h.createSandbox(h.alice)
	h.observe(sb, running())
	id := h.conversation("alice", sb, func(c *fsm.Conversation) {
		c.SelectedRepository, c.SelectedBranch, c.GitProvider = ptr("octo/app"), ptr("main"), ptr(fsm.ProviderGitHub)
		c.Title, c.Trigger, c.LLMModel = ptr("Check the README"), ptr("openhands_api"), ptr("anthropic/claude-sonnet-4")
		c.Tags = map[string]string{"repo_name": "octo/app"}
	})
	key := h.secrets.last("sandboxes/" + sb + "/session")["key"]
	h.agents.fn = func(_ context.Context, baseURL, k string, ids []string) (map[string]string, error) {
		if baseURL != "http://10.1.2.3:21000" || k != key || len(ids) != 1 || ids[0] != id {
			t.Errorf("asked %s for %v", baseURL, ids)
		}
		return map[string]string{id: "running", strings.Repeat("0", 32): "idle"}, nil
	}
	res := h.do(h.alice, "GET", "/api/v1/app-conversations?ids="+decode.Dashed(id)+"&ids="+strings.Repeat("0", 32),
		"").want(t, 200)
	shown := res
	shown.body = []byte(strings.ReplaceAll(string(res.body), key, "S3ss"))
	shown.body = []byte(strings.ReplaceAll(string(shown.body), id, strings.Repeat("a", 32)))
	shown.golden(t, "conversations_batch")

	res = h.do(h.alice, "GET", "/api/v1/app-conversations/search?sort_order=UPDATED_AT_DESC", "").want(t, 200)
	shown.body = []byte(strings.ReplaceAll(strings.ReplaceAll(string(res.body), key, "S3ss"), id, strings.Repeat("a", 32)))
	shown.golden(t, "conversations_search")
	res = h.do(h.alice, "GET", "/api/v1/app-conversations", "").want(t, 200)
	shown.body = []byte(strings.ReplaceAll(strings.ReplaceAll(string(res.body), key, "S3ss"), id, strings.Repeat("a", 32)))
	shown.golden(t, "conversations_list")
	h.do(h.alice, "GET", "/api/v1/app-conversations/count", "").want(t, 200).is(t, `1`)
	h.do(h.bob, "GET", "/api/v1/app-conversations", "").want(t, 200).is(t, `[]`)
	h.do(h.bob, "GET", "/api/v1/app-conversations?ids="+id, "").want(t, 200).is(t, `[null]`)
	h.do(h.bob, "GET", "/api/v1/app-conversations/count", "").want(t, 200).is(t, `0`)
}

func TestConversations_BatchRefusals(t *testing.T) {
	h := newHarness(t)
	hex := strings.Repeat("a", 32)
	h.do(h.alice, "GET", "/api/v1/app-conversations?ids=x&ids="+hex+"&ids=", "").want(t, 400).
		is(t, `{"detail":"Invalid UUID format for ids: ['x', '']"}`)
	h.do(h.alice, "GET", "/api/v1/app-conversations?"+strings.Repeat("&ids="+hex, 100)[1:], "").want(t, 400).
		is(t, `{"detail":"Too many ids requested. Maximum is 99."}`)
	h.do(h.alice, "GET", "/api/v1/app-conversations?"+strings.Repeat("&ids="+hex, 99)[1:], "").want(t, 200)
}

func TestConversations_Filters(t *testing.T) {
	h := newHarness(t).withSpec()
	a, b := h.createSandbox(h.alice), h.createSandbox(h.alice)
	parent := h.conversation("alice", a, func(c *fsm.Conversation) { c.Title = ptr("Fix LOGIN") })
	child := h.conversation("alice", b, func(c *fsm.Conversation) { c.ParentID = &parent })
	count := func(query, want string) {
		t.Helper()
		var p struct{ Items []struct{ ID string } }
		h.do(h.alice, "GET", "/api/v1/app-conversations/search?"+query, "").want(t, 200).json(t, &p)
		if got := itoa(len(p.Items)); got != want {
			t.Errorf("%s: %s items", query, got)
		}
	}
	count("", "1")
	count("include_sub_conversations=true", "2")
	count("title__contains=login", "1")
	count("title__contains=nothing", "0")
	count("sandbox_id__eq="+a, "1")
	count("sandbox_id__eq="+b, "0")
	count("created_at__gte=2020-01-01", "1")
	count("created_at__gte=2020-01-01T00:00:00%2B02:00&updated_at__lt=2100-01-01T00:00:00Z", "1")
	count("created_at__lt=2020-01-01T00:00:00", "0")
	h.do(h.alice, "GET", "/api/v1/app-conversations/count", "").is(t, `2`)
	var got []struct {
		Subs []string `json:"sub_conversation_ids"`
	}
	h.do(h.alice, "GET", "/api/v1/app-conversations?ids="+parent, "").json(t, &got)
	if len(got) != 1 || len(got[0].Subs) != 1 || got[0].Subs[0] != child {
		t.Errorf("sub conversations %v", got)
	}
}

func TestConversations_SandboxStates(t *testing.T) {
	h := newHarness(t).withSpec()
	sb := h.createSandbox(h.alice)
	id := h.conversation("alice", sb)
	get := func() map[string]any {
		t.Helper()
		var got []map[string]any
		h.do(h.alice, "GET", "/api/v1/app-conversations?ids="+id, "").want(t, 200).json(t, &got)
		return got[0]
	}
	if c := get(); c["sandbox_status"] != "STARTING" || c["conversation_url"] != nil || c["session_api_key"] != nil {
		t.Errorf("starting: %v", c)
	}
	h.observe(sb, running())
	h.agents.fn = func(context.Context, string, string, []string) (map[string]string, error) {
		return nil, errors.New("away")
	}
	if c := get(); c["sandbox_status"] != "RUNNING" || c["execution_status"] != nil || c["conversation_url"] == nil {
		t.Errorf("running without an agent server's answer: %v", c)
	}
	h.agents.fn = func(context.Context, string, string, []string) (map[string]string, error) {
		return map[string]string{id: "RUNNING <script>"}, nil
	}
	if c := get(); c["execution_status"] != nil {
		t.Errorf("an unknown status: %v", c)
	}
	// The gateway has counted nothing yet: the agent server's metrics, whatever their user made of them.
	for said, want := range map[string]any{
		`{"model_name":"m","accumulated_cost":0.5,"accumulated_token_usage":{"prompt_tokens":7}}`: 0.5,
		`{"accumulated_cost":"much"}`: nil, `null`: nil, `[1]`: nil, `{`: nil,
	} {
		h.agents.metrics = map[string]string{id: said}
		m, _ := get()["metrics"].(map[string]any)
		if budget, has := m["max_budget_per_task"]; m["accumulated_cost"] != want || want != nil && (!has || budget != nil) {
			t.Errorf("%s became %v", said, m)
		}
	}
	h.secrets.set(func(s *fakeSecrets) { s.err = errStoreAway })
	if c := get(); c["sandbox_status"] != "RUNNING" || c["session_api_key"] != nil {
		t.Errorf("without the secret store: %v", c)
	}
	h.do(h.alice, "DELETE", "/api/v1/sandboxes/"+sb, "").want(t, 200)
	if c := get(); c["sandbox_status"] != "MISSING" || c["conversation_url"] != nil {
		t.Errorf("deleted: %v", c)
	}
}

func TestConversations_SlowAgentServerDoesNotHoldUpTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t).withSpec()
		for range 20 {
			sb := h.createSandbox(h.alice)
			h.observe(sb, running())
			h.conversation("alice", sb)
		}
		h.agents.fn = func(ctx context.Context, _, _ string, _ []string) (map[string]string, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		start := time.Now()
		h.do(h.alice, "GET", "/api/v1/app-conversations", "").want(t, 200)
		if took := time.Since(start); took != h.server.cfg.AgentTimeout {
			t.Fatalf("took %s", took)
		}
	})
}

func TestStartTasks_Read(t *testing.T) {
	h := newHarness(t).withSpec()
	var first struct{ ID string }
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{}`).want(t, 200).json(t, &first)
	sb := h.createSandbox(h.alice)
	done := h.conversation("alice", sb)
	h.do(h.alice, "GET",
		"/api/v1/app-conversations/start-tasks?ids="+decode.Dashed(first.ID)+"&ids="+strings.Repeat("0", 32), "").
		want(t, 200).golden(t, "start_tasks_batch")
	res := h.do(h.alice, "GET", "/api/v1/app-conversations/start-tasks/search?conversation_id__eq="+done, "").want(t, 200)
	res.golden(t, "start_tasks_search")
	var p struct {
		Items []struct {
			Conversation string `json:"app_conversation_id"`
		}
	}
	res.json(t, &p)
	if len(p.Items) != 1 || p.Items[0].Conversation != done {
		t.Fatalf("items %v", p.Items)
	}
	h.do(h.alice, "GET", "/api/v1/app-conversations/start-tasks/count", "").want(t, 200).is(t, `2`)
	h.do(h.bob, "GET", "/api/v1/app-conversations/start-tasks/count", "").want(t, 200).is(t, `0`)
	h.do(h.bob, "GET", "/api/v1/app-conversations/start-tasks?ids="+first.ID, "").want(t, 200).is(t, `[null]`)
	h.do(h.bob, "GET", "/api/v1/app-conversations/start-tasks/search", "").want(t, 200).is(t,
		`{"items":[],"next_page_id":null}`)
	h.do(h.alice, "GET", "/api/v1/app-conversations/start-tasks?"+strings.Repeat("&ids="+done, 101)[1:], "").want(t, 400)
	for _, order := range []string{"CREATED_AT", "CREATED_AT_DESC", "UPDATED_AT", "UPDATED_AT_DESC"} {
		h.do(h.alice, "GET", "/api/v1/app-conversations/start-tasks/search?sort_order="+order, "").want(t, 200)
	}
}
