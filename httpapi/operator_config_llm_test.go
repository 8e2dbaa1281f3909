package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

func TestConfig_TheGatewayIsReadAndReplaced(t *testing.T) {
	t.Parallel()
	h := newHarness(t).newest()
	h.apply("", &fsm.InstallationConfigureBody{Seed: true})
	was := h.config()
	if was.LLM == nil || !was.LLM.Gateway || fmt.Sprint(was.LLM.Hosts) != "[vendors]" || was.LLM.Models == nil ||
		was.LLM.Prices == nil {
		t.Fatalf("the default is %+v", was.LLM)
	}
	put := `{"limits":{"on_limit":"refuse"},"llm":{"gateway":false,"hosts":["vendors","llm.example.org","10.1.2.0/24",
		"[fd00::1]:8000"],"models":["gpt-*"],
		"prices":[{"model":"gpt-5","input":1.25,"output":10,"cached_input":0.125},{"model":"*","input":1,"output":2,
		"cached_input":null}],
		"budgets":{"per_task":5,"per_user_day":50.5}}}`
	var now wire.Config
	h.do(h.root, http.MethodPut, fmt.Sprintf("%s?cas=%d", pathConfig, was.Index), put).want(t, 200).json(t, &now)
	cached := 0.125
	want := fsm.LLM{
		Direct: true, Hosts: []string{
			"vendors",
			"llm.example.org",
			"10.1.2.0/24",
			"[fd00::1]:8000",
		}, Models: []string{"gpt-*"},
		Prices: []fsm.Price{
			{Model: "*", Input: 1, Output: 2},
			{Model: "gpt-5", Input: 1.25, Output: 10, CachedInput: &cached},
		},
		Budgets: fsm.Budgets{PerTask: 5, PerUserDay: 50.5},
	}
	if got := h.cluster.store.View().Installation(); !got.Equal(fsm.Installation{OnLimit: fsm.OnLimitRefuse, LLM: want}) {
		t.Fatalf("stored %+v", got.LLM)
	}
	line := `"settings":"llm.gateway = false (was true), llm.hosts = [vendors, llm.example.org, 10.1.2.0/24, ` +
		`[fd00::1]:8000] (was [vendors]), llm.models = [gpt-*] (was []), ` +
		`llm.prices = [* 1/2/-/-, gpt-5 1.25/10/0.125/-] (was []), llm.budgets.per_task = 5 (was 0), ` +
		`llm.budgets.per_user_day = 50.5 (was 0)"`
	if !strings.Contains(h.logs.String(), line) {
		t.Errorf("no line %s in\n%s", line, h.logs.String())
	}
	// What GET says is what PUT takes, and what is absent is reset.
	body := string(h.do(h.root, http.MethodGet, pathConfig, "").want(t, 200).body)
	var again wire.Config
	h.do(h.root, http.MethodPut, pathConfig, body).want(t, 200).json(t, &again)
	if again.Index != now.Index {
		t.Errorf("the same configuration changed the index: %s", body)
	}
	h.do(h.root, http.MethodPut, pathConfig, `{}`).want(t, 200)
	if got := h.cluster.store.View().Installation(); !got.Equal(fsm.Installation{}) {
		t.Errorf("left %+v", got.LLM)
	}
}

func TestConfig_TheGatewaysMistakesAreNamed(t *testing.T) {
	t.Parallel()
	h := newHarness(t).newest()
	for body, says := range map[string]string{
		`{"hosts":[]}`: "the list is empty: name a host",
		`{"hosts":["https://llm.example.org/v1"]}`:                "must be a host name",
		`{"hosts":["10.1.2.0/64"]}`:                               "is no prefix such as",
		`{"hosts":["10.1.2"]}`:                                    "is no address such as",
		`{"hosts":["2130706433"]}`:                                "is no address such as",
		`{"hosts":["0x7f000001"]}`:                                "is no address such as",
		`{"hosts":["0177.0.0.1"]}`:                                "is no address such as",
		`{"hosts":["llm.*.org"]}`:                                 "must be a host name",
		`{"models":["gpt 5"]}`:                                    "must be the name of a model",
		`{"prices":[{"model":"gpt-5","input":1}]}`:                "Field required",
		`{"prices":[{"model":"gpt-5","input":null,"output":1}]}`:  "valid number",
		`{"prices":[{"model":"gpt-5","input":-1,"output":1}]}`:    "must be between 0 and",
		`{"prices":[{"model":"gpt-5","input":"nan","output":1}]}`: "finite number",
		`{"prices":[{"model":"a","input":1,"output":1},{"model":"a","input":2,"output":1}]}`: "has two prices: remove one",
		`{"prices":[{"model":"a","input":1,"output":1,"cache":2}]}`:                          "Extra inputs",
		`{"budgets":{"per_user_day":-1}}`:                                                    "budgets must be between 0 and",
		`{"budgets":{"per_day":1}}`:                                                          "Extra inputs",
		`{"gateway":null}`:                                                                   "valid boolean",
		`{"on":true}`:                                                                        "Extra inputs",
	} {
		if res := h.do(h.root, http.MethodPut, pathConfig, `{"llm":`+body+`}`); res.status != 422 ||
			!strings.Contains(string(res.body), says) {
			t.Errorf("%s: %d %s", body, res.status, res.body)
		}
	}
	if got := h.cluster.store.View().Installation(); !got.Equal(fsm.Installation{}) {
		t.Errorf("stored %+v", got)
	}
}

// A cluster that does not keep it neither shows it nor drops it silently.
func TestConfig_TheGatewayNeedsItsVersion(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.VersionConfig})
	if h.config().LLM != nil {
		t.Error("llm is shown")
	}
	if res := h.do(h.root, http.MethodPut, pathConfig, `{"llm":{"gateway":false}}`); res.status != http.StatusConflict ||
		!strings.Contains(string(res.body), "setting llm needs protocol version 8") {
		t.Errorf("%d %s", res.status, res.body)
	}
	h.do(h.root, http.MethodPut, pathConfig, `{"cors":{"origins":["https://app.example.org"]}}`).want(t, 200)
}
