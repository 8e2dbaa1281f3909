package httpapi

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

// usage reads all pages of a list of uses, a few items at a time.
func (h *harness) usage(query string) (list []wire.ModelUsage) {
	h.t.Helper()
	for after := ""; ; {
		var p wire.Page[wire.ModelUsage]
		h.do(h.root, "GET", fmt.Sprintf("%s/usage?limit=1&page_id=%s&%s", pathOperator, url.QueryEscape(after), query),
			"").want(h.t, 200).json(h.t, &p)
		if list = append(list, p.Items...); p.NextPageID == nil {
			return list
		}
		after = *p.NextPageID
	}
}

func TestUsage_ByUserModelAndConversation(t *testing.T) {
	t.Parallel()
	h := newHarness(t).newest().withSpec()
	report := func(user, conversation, model string, requests int64) {
		h.apply("", &fsm.LLMReportBody{Entries: []fsm.LLMReport{{UserID: user, ConversationID: conversation, Model: model,
			Usage: fsm.ModelUsage{
				Requests: requests, Errors: 1, Input: 100 * requests, Output: 10 * requests, Cached: 50 * requests,
				Cost: requests * fsm.Dollar / 2, Milliseconds: 1500 * requests,
			}}}})
	}
	sandbox := h.createSandbox(h.alice)
	h.observe(sandbox, running())
	idle, one, two := h.conversation("alice", sandbox), h.conversation("alice", sandbox), h.conversation("alice", sandbox)
	report("alice", one, "gpt-5", 2)
	report("alice", two, "claude-4", 4)
	report("bob", newHexID(), "gpt-5", 8) // of a conversation that is gone

	users := h.usage("by=user")
	if len(users) != 2 || *users[0].UserID != "alice" || *users[1].UserID != "bob" || users[0].Requests != 6 ||
		users[0].Cost != 3 || *users[0].CostToday != 3 || users[0].Errors != 2 || users[0].MeanSeconds != 1.5 {
		t.Errorf("by user: %+v", users)
	}
	models := h.usage("by=model")
	if len(models) != 2 || *models[0].Model != "claude-4" || *models[1].Model != "gpt-5" ||
		models[1].InputTokens != 1000 || models[1].CachedTokens != 500 || models[1].Cost != 5 || models[1].CostToday != nil {
		t.Errorf("by model: %+v", models)
	}
	if own := h.usage("by=model&user=alice"); len(own) != 2 || own[1].Requests != 2 {
		t.Errorf("alice's models: %+v", own)
	}
	for _, query := range []string{"by=conversation", "by=conversation&user=alice"} {
		all := h.usage(query)
		got := map[string]int64{}
		for _, u := range all {
			got[*u.ConversationID] = u.Requests
		}
		if len(all) != 2 || got[one] != 2 || got[two] != 4 || got[idle] != 0 {
			t.Errorf("%s: %+v", query, all)
		}
	}
	h.do(h.root, "GET", pathOperator+"/usage?by=day", "").want(t, 422)
	h.do(h.alice, "GET", pathOperator+"/usage", "").want(t, 403)

	// The owner's own view of it.
	h.do(h.alice, "POST", "/api/settings", `{"max_budget_per_task":7.5}`).want(t, 200)
	var list []struct {
		ID      string       `json:"id"`
		Metrics *metricsBody `json:"metrics"`
	}
	h.do(h.alice, "GET", pathConversations+"?ids="+one+"&ids="+idle, "").want(t, 200).json(t, &list)
	m := list[0].Metrics
	if m == nil || list[1].Metrics != nil {
		t.Fatalf("metrics %+v and %+v", m, list[1].Metrics)
	}
	want := metricsBody{
		ModelName:        "default",
		AccumulatedCost:  1,
		MaxBudgetPerTask: m.MaxBudgetPerTask,
		TokenUsage:       tokenUsageBody{PromptTokens: 200, CompletionTokens: 20, CacheReadTokens: 100},
	}
	if *m != want || *m.MaxBudgetPerTask != 7.5 {
		t.Errorf("metrics %+v", m)
	}
}

// A day that is over costs nothing of today's budget.
func TestUsage_TodayIsOfTheDay(t *testing.T) {
	t.Parallel()
	h := newHarness(t).newest()
	cmd := fsm.NewCommand("r1", time.Now().Add(-48*time.Hour), "",
		&fsm.LLMReportBody{
			Entries: []fsm.LLMReport{
				{UserID: "alice", ConversationID: newHexID(), Usage: fsm.ModelUsage{Requests: 1, Cost: fsm.Dollar}},
			},
		})
	if _, err := h.cluster.Propose(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	if users := h.usage("by=user"); len(users) != 1 || users[0].Cost != 1 || *users[0].CostToday != 0 {
		t.Errorf("%+v", users)
	}
}
