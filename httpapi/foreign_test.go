package httpapi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
)

// TestForeign requests alice's objects as bob at every endpoint with an id. The response is the one
// for an unknown id.
func TestForeign(t *testing.T) {
	h := newHarness(t, withLogs(&fakeLogs{})).withSpec().withSettings()
	sb := h.createSandbox(h.alice)
	h.observe(sb, running())
	conv := h.conversation("alice", sb)
	var task struct{ ID string }
	h.do(h.alice, "POST", pathConversations, `{}`).want(t, 200).json(t, &task)
	unknown := strings.Repeat("0", 32)
	for _, tt := range []struct{ method, path, body string }{
		{"POST", pathSandboxes + "/ID/pause", ""},
		{"POST", pathSandboxes + "/ID/resume", ""},
		{"DELETE", pathSandboxes + "/ID", ""},
		{"DELETE", pathSandboxes + "/x?sandbox_id=ID", ""},
		{"GET", pathSandboxes + "?id=ID", ""},
		{"GET", pathConversations + "?ids=ID", ""},
		{"GET", pathConversations + "/search?sandbox_id__eq=ID", ""},
		{"GET", pathConversations + "/count?sandbox_id__eq=ID", ""},
		{"GET", pathStartTasks + "?ids=ID", ""},
		{"GET", pathStartTasks + "/search?conversation_id__eq=ID", ""},
		{"GET", pathStartTasks + "/count?conversation_id__eq=ID", ""},
		{"POST", pathConversations + "/ID/send-message", `{"content":[{"text":"CONV"}]}`},
		{"GET", pathConversations + "/ID/file", ""},
		{"GET", pathConversations + "/ID/git/changes?path=/workspace", ""},
		{"GET", pathConversations + "/ID/git/diff?path=/workspace/a", ""},
		{"GET", pathConversations + "/ID/skills", ""},
		{"GET", pathConversations + "/ID/hooks", ""},
		{"GET", pathConversations + "/ID/download", ""},
		{"POST", strings.ReplaceAll(pathPending, ":conversation_id", "ID"), `{"content":[{"text":"CONV"}]}`},
		{"POST", pathConversations + "/ID/switch_acp_model", `{"model":"CONV"}`},
		{"POST", pathConversations + "/ID/switch_llm", `{"llm_model":"CONV"}`},
		{"PATCH", pathConversations + "/ID", `{"title":"CONV"}`},
		{"DELETE", pathConversations + "/ID", ""},
		{"POST", pathConversations + "/ID/switch_profile", `{"profile_name":"CONV"}`},
		{"GET", pathSandboxes + "/ID/logs", ""},
		{"GET", pathSandboxes + "/ID/logs?follow=true", ""},
		{"POST", pathConversations, `{"parent_conversation_id":"ID"}`},
	} {
		id := sb
		switch {
		case strings.Contains(tt.path, "start-tasks?"):
			id = task.ID
		case strings.HasPrefix(tt.path, pathConversations+"/ID"), strings.Contains(tt.path, "conversation_id"),
			strings.Contains(tt.path, "ids="), tt.body != "":
			id = conv
		}
		ask := func(id string) reply {
			return h.do(h.bob, tt.method, strings.Replace(tt.path, "ID", id, 1), strings.Replace(tt.body, "ID", id, 1))
		}
		theirs, none := ask(id), ask(unknown)
		if theirs.status != none.status || strings.ReplaceAll(string(theirs.body), id, unknown) != string(none.body) {
			t.Errorf("%s %s: %d %s for alice's, %d %s for none", tt.method, tt.path, theirs.status, theirs.body, none.status,
				none.body)
		}
	}
	if len(h.agents.sent()) != 0 || h.cluster.store.View().Conversation("alice", conv) == nil {
		t.Fatal("bob got through to alice's conversation")
	}
	for _, path := range []string{pathSandboxes + "/search", pathConversations + "/search", pathStartTasks + "/search"} {
		h.do(h.bob, "GET", path, "").want(t, 200).is(t, `{"items":[],"next_page_id":null}`)
	}
	h.do(h.bob, "GET", pathConversations, "").want(t, 200).is(t, `[]`)
	// A page token of alice's gives bob nothing of hers.
	h.createSandbox(h.alice)
	var p struct {
		Next string `json:"next_page_id"`
	}
	h.do(h.alice, "GET", pathSandboxes+"/search?limit=1", "").json(t, &p)
	h.do(h.bob, "GET", pathSandboxes+"/search?page_id="+p.Next, "").want(t, 200).is(t, `{"items":[],"next_page_id":null}`)
	h.do(h.alice, "GET", pathSandboxes+"?id="+sb, "").want(t, 200)
	var sandboxes []struct{ Status string }
	h.do(h.alice, "GET", pathSandboxes+"?id="+sb, "").json(t, &sandboxes)
	if sandboxes[0].Status != "RUNNING" {
		t.Fatalf("bob changed alice's sandbox: %v", sandboxes)
	}
}

// A start that names a sandbox which the caller does not have is refused before anything is stored,
// and another user's is answered as an unknown one.
func TestForeign_SandboxOfAStart(t *testing.T) {
	h := newHarness(t).withSpec().raised()
	sb := h.createSandbox(h.alice)
	deleted := h.createSandbox(h.bob)
	h.do(h.bob, "DELETE", pathSandboxes+"/"+deleted, "").want(t, 200)
	paths, commands := h.secrets.paths(), h.cluster.count()
	for _, id := range []string{sb, deleted, "nosuchsandbox"} {
		h.do(h.bob, "POST", pathConversations, sprint(`{"sandbox_id":%q,"secrets":{"A":"b"}}`, id)).want(t, 404).
			is(t, sprint(`{"detail":"Sandbox not found: %s"}`, id))
	}
	if got := h.secrets.paths(); cmp.Diff(paths, got) != "" || h.cluster.count() != commands {
		t.Errorf("a refused start left something behind: %v", got)
	}
	h.do(h.alice, "POST", pathConversations, sprint(`{"sandbox_id":%q}`, sb)).want(t, 200)
}

// A sandbox that this node does not know yet is looked up in the cluster.
func TestStart_ASandboxThatThisNodeDoesNotKnowYet(t *testing.T) {
	h := newHarness(t).withSpec().raised()
	before := h.cluster.store.View()
	sb := h.createSandbox(h.alice)
	h.cluster.set(func(c *fakeCluster) { c.behind = before })
	h.do(h.alice, "POST", pathConversations, sprint(`{"sandbox_id":%q}`, sb)).want(t, 200)
}

// A start in a sandbox that runs counts as a start: 20 of them in a minute are 20 starts.
func TestLimit_AStartInARunningSandboxIsAStart(t *testing.T) {
	h := newHarness(t).withSpec().raised().limited(fsm.Installation{PerUser: fsm.Limits{StartsPerMinute: 2}})
	body := sprint(`{"sandbox_id":%q}`, h.createSandbox(h.alice))
	h.do(h.alice, "POST", pathConversations, body).want(t, 200)
	h.do(h.alice, "POST", pathConversations, body).refused(t, "user_starts_per_minute")
}

// A user who has filled the state that it may keep is refused with what to do, and can still make
// room.
func TestLimit_StateBytes(t *testing.T) {
	h := newHarness(t).withSpec().raised().limited(fsm.Installation{PerUser: fsm.Limits{StateBytes: fsm.MinStateBytes}})
	sb := h.createSandbox(h.alice)
	body := sprint(`{"sandbox_id":%q,"secrets":{"A":"b"},"initial_message":{"content":[{"type":"text","text":%q}]}}`, sb,
		strings.Repeat("x", 400<<10))
	h.do(h.alice, "POST", pathConversations, body).want(t, 200)
	h.do(h.alice, "POST", pathConversations, body).want(t, 200)
	paths := h.secrets.paths()
	h.do(h.alice, "POST", pathConversations, body).refused(t, "user_state_bytes")
	if got := h.secrets.paths(); cmp.Diff(paths, got) != "" {
		t.Errorf("a refused start left secrets: %v", got)
	}
	h.do(h.bob, "POST", pathConversations, `{}`).want(t, 200)
	h.do(h.alice, "POST", pathSandboxes+"/"+sb+"/pause", "", "Idempotency-Key", "k").want(t, 200)
	h.do(h.alice, "DELETE", pathSandboxes+"/"+sb, "").want(t, 200)
}
