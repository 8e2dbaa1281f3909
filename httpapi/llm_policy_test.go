package httpapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// refused asks and checks the gateway's own answer: its status and the reason.
func (h *modelHarness) refused(token, path, body string, status int, reason, text string) *http.Response {
	h.t.Helper()
	res := h.ask(h.t.Context(), token, path, body)
	if got := whole(h.t, res, status); !strings.Contains(got, `"code":"bivouac_`+reason+`"`) ||
		!strings.Contains(got, text) {
		h.t.Errorf("refused with %s, want %s and %q", got, reason, text)
	}
	return res
}

// baseURL points alice's settings elsewhere.
func (h *modelHarness) baseURL(base string) {
	h.t.Helper()
	h.settings(h.alice, fmt.Sprintf(`{"llm_model":"openai/gpt-test","llm_base_url":%q,"llm_api_key":%q}`, base, modelKey))
	h.apply("alice", &fsm.ConversationSwitchLLMBody{ID: h.conversation})
}

func TestModels_AUsersBaseURLReachesNoInternalAddress(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	token := h.token()
	at, err := url.Parse(h.model.URL())
	if err != nil {
		t.Fatal(err)
	}
	port := at.Port()
	h.configure(fsm.LLM{})
	for _, base := range []string{
		"http://127.0.0.1:" + port, "https://127.0.0.1:" + port, "http://localhost:" + port, "http://[::1]:" + port,
		"http://[::ffff:127.0.0.1]:" + port,
		"http://0.0.0.0:" + port, "http://[::]:" + port, "http://169.254.169.254/latest", "http://[::ffff:a9fe:a9fe]",
		"http://10.0.0.1", "http://192.168.0.1", "https://[fd00:ec2::254]",
	} {
		h.baseURL(base)
		h.refused(token, pathChat, chatBody, 403, "host", "llm { hosts }")
	}
	for _, base := range []string{"ftp://api.openai.com", "file:///etc/passwd", "api.openai.com/v1"} {
		h.baseURL(base)
		h.refused(token, pathChat, chatBody, 400, "endpoint", "llm_base_url must be")
	}
	res := h.do(h.alice, "POST", "/api/settings", `{"llm_base_url":"https://alice:hush@api.openai.com/v1"}`).want(t, 422)
	if strings.Contains(string(res.body), "hush") {
		t.Errorf("the answer has the password: %s", res.body)
	}
	if n := len(h.model.Requests()); n != 0 {
		t.Fatalf("%d requests came to the endpoint", n)
	}
	// What the operator lists is reached, at its own port alone.
	h.baseURL(h.model.BaseURL())
	h.configure(fsm.LLM{Hosts: []string{"127.0.0.1:1"}})
	h.refused(token, pathChat, chatBody, 403, "host", "llm { hosts }")
	h.configure(fsm.LLM{Hosts: []string{"127.0.0.1:" + port}})
	whole(t, h.ask(t.Context(), token, pathChat, chatBody), 200)
	// A kept connection serves no request under another list.
	h.configure(fsm.LLM{Hosts: []string{"10.0.0.0/8"}})
	h.refused(token, pathChat, chatBody, 403, "host", "llm { hosts }")
}

func TestModels_ARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	token := h.token()
	var followed atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	defer inside.Close()
	for _, to := range []string{inside.URL, "http://169.254.169.254/latest/meta-data/"} {
		for _, status := range []int{301, 302, 303, 307, 308} {
			outside := httptest.NewServer(
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, status) }),
			)
			h.baseURL(outside.URL)
			res := h.refused(token, pathChat, chatBody, 502, "host", "redirects")
			if res.Header.Get("Location") != "" {
				t.Errorf("%d: the answer has the address", status)
			}
			outside.Close()
		}
	}
	if followed.Load() != 0 {
		t.Errorf("%d redirects were followed", followed.Load())
	}
}

func TestModels_OnlyAllowedModels(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	token := h.token()
	h.configure(fsm.LLM{Hosts: []string{fsm.HostLocal}, Models: []string{"gpt-test", "openai/o3*"}})
	chat := func(members string) string { return `{` + members + `,"messages":[{"role":"user","content":"x"}]}` }
	for _, members := range []string{
		`"model":"gpt-5"`, `"model":"openai/gpt-5"`,
	} {
		h.refused(token, pathChat, chat(members), 403, "model", "gpt-5")
	}
	for _, members := range []string{
		`"model":"gpt-test-2"`, `"model":"o3-mini"`, `"model":"other/o3"`, `"model":"GPT-test"`,
		`"model":"gpt-5","model":"gpt-test"`, `"model":"gpt-test","model":"gpt-5"`, `"model":7`,
		`"model":"gpt-test","models":"gpt-5"`, `"Model":"gpt-test"`,
		`"model":"gpt-5","Model":"gpt-test"`, `"Model":"gpt-test","model":"gpt-5"`,
		`"model":"gpt-test","models":["gpt-test","gpt-5"]`,
	} {
		if res := h.ask(t.Context(), token, pathChat, chat(members)); res.StatusCode != 400 && res.StatusCode != 403 {
			t.Errorf("%s is %d", members, res.StatusCode)
		}
	}
	for _, wire := range wires {
		other := strings.NewReplacer("gpt-test", "gpt-5")
		if body := whole(t, h.ask(t.Context(), token, other.Replace(wire.path), other.Replace(wire.body)),
			403); !strings.Contains(body, `the model \"gpt-5\" is not one of those that the operator allows`) {
			t.Errorf("%s: %s", wire.name, body)
		}
	}
	if n := len(h.model.Requests()); n != 0 {
		t.Fatalf("%d requests came to the endpoint", n)
	}
	for _, members := range []string{`"model":"gpt-test"`, `"model":"vendor/gpt-test"`, `"model":"openai/o3-mini"`} {
		whole(t, h.ask(t.Context(), token, pathChat, chat(members)), 200)
	}
}

func TestModels_BudgetsAreKept(t *testing.T) {
	t.Parallel()
	usage := &modeltest.Usage{Prompt: 1000, Completion: 100}
	h := newModelHarness(t,
		&modeltest.Script{Key: modelKey, Stories: modeltest.Turns(modeltest.Answer{Text: "ok", Usage: usage}).Stories})
	token := h.token()
	policy := fsm.LLM{
		Hosts: []string{fsm.HostLocal},
		Prices: []fsm.Price{
			{Model: "*", Input: 100, Output: 1000},
			{Model: "gpt-free"},
			{Model: "gpt-test", Input: 1000, Output: 10000},
		},
	}
	set := func(b fsm.Budgets) {
		policy.Budgets = b
		h.configure(policy)
	}
	set(fsm.Budgets{PerTask: 2.5})
	// 1000 tokens of input and 100 of output cost a dollar each. The third passes the budget, which
	// is known when its answer has ended.
	whole(t, h.ask(t.Context(), token, pathChat, chatBody), 200)
	whole(t, h.ask(t.Context(), token, pathChat, chatBody), 200)
	for _, reported := range []bool{false, true} {
		if reported {
			if used := h.counted(2); used.Cost != 4*fsm.Dollar {
				t.Fatalf("counted %+v", used)
			}
		}
		for _, wire := range wires {
			res := h.ask(t.Context(), token, wire.path, wire.body)
			if body := whole(t, res, 429); !strings.Contains(body,
				"the conversation has used its budget: 4.00 of 2.50 US dollars") || !strings.Contains(body, `"rate_limit_error"`) {
				t.Errorf("%s reported=%t: %s", wire.name, reported, body)
			}
		}
	}
	h.refused(token, pathChat, chatBody, 429, "budget", "max_budget_per_task")
	whole(t, h.ask(t.Context(), token, "/llm/v1/models", ""), 200)
	if n := len(h.model.Requests()); n != 2 {
		t.Fatalf("%d requests came to the endpoint", n)
	}
	// Another conversation has its own. The user's budget of the day is for both.
	h.conversation = h.harness.conversation("alice", h.sandbox)
	other := h.token()
	whole(t, h.ask(t.Context(), other, pathChat, chatBody), 200)
	set(fsm.Budgets{PerUserDay: 6})
	res := h.refused(other, pathChat, chatBody, 429, "budget",
		"the user has used the budget of the day: 6.00 of 6.00 US dollars")
	if after, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || after < 1 || after > 24*60*60 {
		t.Errorf("Retry-After %q", res.Header.Get("Retry-After"))
	}
	set(fsm.Budgets{PerUserDay: 6.01})
	whole(t, h.ask(t.Context(), other, pathChat, strings.Replace(chatBody, "gpt-test", "any", 1)),
		200) // "*": a tenth of the price
	if used := h.counted(2); used.Cost != 2*fsm.Dollar+fsm.Dollar/5 {
		t.Errorf("counted %+v", used)
	}
	// The user's own bound counts where it is lower.
	set(fsm.Budgets{PerTask: 100})
	h.settings(h.alice, `{"max_budget_per_task":1.5}`)
	h.refused(other, pathChat, chatBody, 429, "budget", "2.20 of 1.50 US dollars")
	h.settings(h.alice, `{"max_budget_per_task":3}`)
	whole(t, h.ask(t.Context(), other, pathChat, strings.Replace(chatBody, "gpt-test", "gpt-free", 1)), 200)
	if used := h.counted(3); used.Cost != 2*fsm.Dollar+fsm.Dollar/5 {
		t.Errorf("a model whose price is 0: %+v", used)
	}
}

// A model without a price costs nothing and no budget stops it.
func TestModels_WithoutAPriceNoBudgetStopsAModel(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Answer{Text: "ok", Usage: &modeltest.Usage{Prompt: 1 << 40}}))
	h.configure(fsm.LLM{
		Hosts:   []string{fsm.HostLocal},
		Budgets: fsm.Budgets{PerTask: 0.01},
		Prices:  []fsm.Price{{Model: "gpt-other", Input: 1, Output: 1}},
	})
	token := h.token()
	for range 2 {
		whole(t, h.ask(t.Context(), token, pathChat, chatBody), 200)
	}
	if used := h.counted(2); used.Cost != 0 || used.Input != 2<<40 {
		t.Errorf("counted %+v", used)
	}
}
