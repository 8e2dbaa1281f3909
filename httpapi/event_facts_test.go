package httpapi

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// listed is what a list shows of the conversation.
func (s sending) listed() (one conversationBody) {
	s.t.Helper()
	list := []conversationBody{}
	s.do(s.alice, "GET", pathConversations, "").want(s.t, http.StatusOK).json(s.t, &list)
	if len(list) != 1 {
		s.t.Fatalf("%d conversations", len(list))
	}
	return list[0]
}

// TestEvents_ListsShowWhatTheySay: status, title, model, tokens, cost and time of a conversation, and no
// agent server is asked.
func TestEvents_ListsShowWhatTheySay(t *testing.T) {
	s := newSending(t)
	s.agents.fn = func(context.Context, string, string, []string) (map[string]string, error) {
		t.Error("an agent server was asked")
		return nil, errors.New("no agent server")
	}
	s.observe(s.sandbox, running())
	shows := func(want string) {
		t.Helper()
		one := s.listed()
		status := "null"
		if one.ExecutionStatus != nil {
			status = *one.ExecutionStatus
		}
		if got := *one.Title + ", " + status; got != want {
			t.Errorf("it shows %q, want %q", got, want)
		}
	}
	state := func(id, key, value string) string {
		return `{"id":"` + id + `","kind":"ConversationStateUpdateEvent","source":"environment","key":"` + key +
			`","value":` + value + `,"timestamp":"2026-01-02T03:04:05"}`
	}
	untitled := fsm.UntitledOf(s.talk)
	shows(untitled + ", null")
	s.post(s.key, s.talk, "0", `{"id":"e0","kind":"SystemPromptEvent","source":"agent"}`).want(t, 200)
	shows(untitled + ", idle")
	before := s.listed().UpdatedAt
	s.post(s.key, s.talk, "1", `{"id":"e1","kind":"MessageEvent","source":"user","llm_message":{"content":[`+
		`{"type":"image"},{"type":"text","text":"Count  the\nwords of `+strings.Repeat("x", 80)+`"}]}}`,
		state("e2", "execution_status", `"running"`),
		state("e3", "execution_status", `"dancing"`), state("e4", "execution_status", `5`)).want(t, 200)
	title := "Count the words of " + strings.Repeat("x", 31)
	shows(title + ", running")
	if after := s.listed(); !after.UpdatedAt.After(before.Time) || after.Metrics != nil {
		t.Errorf("updated at %v and then at %v, metrics %+v", before, after.UpdatedAt, after.Metrics)
	}
	s.post(s.key, s.talk, "5", state("e5", "stats", `{"usage_to_metrics":{"agent":{"model_name":"gpt-x",`+
		`"accumulated_cost":0.5,"accumulated_token_usage":{"prompt_tokens":7,"completion_tokens":2,"context_window":99}},`+
		`"condenser":{"model_name":"small","accumulated_cost":0.25,"accumulated_token_usage":{"prompt_tokens":1,`+
		`"completion_tokens":-5}}}}`), state("e6", "execution_status", `"finished"`)).want(t, 200)
	shows(title + ", finished")
	one := s.listed()
	if m := one.Metrics; m == nil || m.ModelName != "gpt-x" || m.AccumulatedCost != 0.75 ||
		m.TokenUsage.PromptTokens != 8 || m.TokenUsage.CompletionTokens != 2 || m.TokenUsage.ContextWindow != 99 ||
		*one.LLMModel != "gpt-x" {
		t.Errorf("metrics %+v", m)
	}
	s.post(s.key, s.talk, "2", state("e2", "execution_status", `"running"`)).want(t, 200) // again
	shows(title + ", finished")
	s.do(s.alice, "DELETE", pathSandboxes+"/"+s.sandbox, "").want(t, 200)
	shows(title + ", null")
}

// TestEvents_TheLogHasATitleAlone of what messages say, and none of a conversation that has a title.
func TestEvents_TheLogHasATitleAlone(t *testing.T) {
	t.Parallel()
	s := newSending(t)
	titled := s.harness.conversation("alice", s.sandbox, func(c *fsm.Conversation) {
		title := "Its own"
		c.Title, c.AutoTitle = &title, false
	})
	said := func(id, text string) string {
		return `{"id":"` + id + `","kind":"MessageEvent","source":"user","llm_message":{"content":[{"text":"` + text + `"}]}}`
	}
	s.post(s.key, titled, "", said("e1", "a private one")).want(t, 200)
	s.post(s.key, s.talk, "", said("e1", "the title"), said("e2", "a private two")).want(t, 200)
	s.post(s.key, s.talk, "", said("e3", "a private three")).want(t, 200)
	for _, entry := range s.cluster.log {
		if at := bytes.Index(entry, []byte("a private")); at >= 0 {
			t.Errorf("the log has %q", entry[at:min(len(entry), at+20)])
		}
	}
}
