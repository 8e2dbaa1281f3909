package httpapi

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// newBound returns a harness whose sandboxes reach the gateway, with a conversation that began at the
// first server of models, and another server.
func newBound(t *testing.T) (h *modelHarness, other *modeltest.Server) {
	t.Helper()
	h = newModelHarness(t, modeltest.Turns(modeltest.Text("from the first")),
		func(c *Config) { c.APIURLs = []string{"http://10.1.2.3:8440"} })
	return h, modeltest.New(t, modeltest.Turns(modeltest.Text("from another")))
}

// goes asks as the conversation and returns where the request went: server, key and model.
func (h *modelHarness) goes(other *modeltest.Server, token string) string {
	h.t.Helper()
	before, beforeOther := len(h.model.Requests()), len(other.Requests())
	whole(h.t, h.ask(h.t.Context(), token, pathChat, chatBody), 200)
	first, second := h.model.Requests()[before:], other.Requests()[beforeOther:]
	switch {
	case len(first) == 1 && len(second) == 0:
		return "first " + first[0].Key
	case len(first) == 0 && len(second) == 1:
		return "other " + second[0].Key
	}
	return fmt.Sprintf("%d and %d requests", len(first), len(second))
}

// TestModels_AConversationKeepsItsServerAndKey: settings that change lead new conversations elsewhere.
// The history of a running conversation goes on to the server that it began at, with that server's key.
func TestModels_AConversationKeepsItsServerAndKey(t *testing.T) {
	t.Parallel()
	h, other := newBound(t)
	token := h.token()
	at := func(token, want string) {
		t.Helper()
		if got := h.goes(other, token); got != want {
			t.Errorf("the request went to %s, want %s", got, want)
		}
	}
	at(token, "first "+modelKey)
	h.settings(h.alice, fmt.Sprintf(`{"llm_base_url":%q,"llm_api_key":"sk-of-another"}`, other.BaseURL()))
	at(token, "first "+modelKey)
	// A conversation that begins now goes to the other one. A key that is rotated counts for it alone.
	old := h.conversation
	h.conversation = h.harness.conversation("alice", h.sandbox)
	next := h.token()
	at(next, "other sk-of-another")
	h.settings(h.alice, `{"llm_api_key":"sk-rotated"}`)
	at(next, "other sk-rotated")
	at(token, "first "+modelKey)
	// Of a deleted key its conversations are told, and nothing is sent without one.
	h.settings(h.alice, `{"llm_api_key":""}`)
	before := len(other.Requests())
	if text := whole(t, h.ask(t.Context(), next, pathChat, chatBody),
		400); !strings.Contains(text, "is no longer stored") || !strings.Contains(text, "switch_llm") ||
		len(other.Requests()) != before {
		t.Errorf("without its key: %s", text)
	}
	at(token, "first "+modelKey)
	// Its owner moves it.
	h.settings(h.alice, `{"llm_api_key":"sk-of-now"}`)
	calls := h.asked(cannedAnswer)
	path := pathConversations + "/" + old
	h.do(h.alice, "POST", path+"/switch_llm", `{"llm_model":"openai/gpt-other"}`).want(t, 200).is(t, `{"success":true}`)
	at(token, "other sk-of-now")
	want := "/api/conversations/" + decode.Dashed(
		old,
	) + `/switch_llm {"llm":{"model":"openai/gpt-other","base_url":"http://10.1.2.3:8440/llm/v1","api_key":"` + token +
		`","usage_id":"agent-openai/gpt-other"}}`
	if len(*calls) != 1 || !strings.HasSuffix((*calls)[0], want) || strings.Contains((*calls)[0], "sk-") {
		t.Errorf("the agent server was called with %q", *calls)
	}
	// The agent is told in which API it asks.
	h.settings(h.alice, fmt.Sprintf(`{"llm_base_url":"%s/messages"}`, other.BaseURL()))
	h.do(h.alice, "POST", path+"/switch_llm", `{"llm_model":"openai/gpt-other"}`).want(t, 200)
	if last := (*calls)[len(*calls)-1]; !strings.Contains(last, `"api":"messages"`) {
		t.Errorf("the agent server was called with %s", last)
	}
	if row := h.cluster.store.View().Conversation("alice", old); row.LLMModel == nil ||
		*row.LLMModel != "openai/gpt-other" {
		t.Errorf("the conversation is %+v", row)
	}
}

// TestSwitchLLM_IsAnActOfTheOwner: what a sandbox has opens it for nobody, and neither does another
// user's key.
func TestSwitchLLM_IsAnActOfTheOwner(t *testing.T) {
	t.Parallel()
	h, other := newBound(t)
	h.settings(h.alice, fmt.Sprintf(`{"llm_base_url":%q,"llm_api_key":"sk-of-another"}`, other.BaseURL()))
	calls := h.asked(cannedAnswer)
	path, token := pathConversations+"/"+h.conversation+"/switch_llm", h.token()
	for name, credential := range map[string]string{
		"the sandbox's key":      h.key,
		"a token of the gateway": token,
		"none":                   "",
	} {
		for _, header := range []string{"X-Session-API-Key", "Authorization", "X-API-Key", "X-Access-Token"} {
			value := credential
			if header == "Authorization" {
				value = "Bearer " + credential
			}
			if res := h.do("", "POST", path, `{}`, header, value); res.status != 401 {
				t.Errorf("%s in %s: %d %s", name, header, res.status, res.body)
			}
		}
	}
	h.do(h.bob, "POST", path, `{}`).want(t, 404)
	if got := h.goes(other, token); got != "first "+modelKey || len(*calls) > 0 {
		t.Errorf("the conversation goes to %s after the calls %q", got, *calls)
	}
}

// TestSwitchLLM_Refusals: nothing is moved where the agent can't be told.
func TestSwitchLLM_Refusals(t *testing.T) {
	t.Parallel()
	h, other := newBound(t)
	h.settings(h.alice, fmt.Sprintf(`{"llm_base_url":%q}`, other.BaseURL()))
	h.asked(cannedAnswer)
	of := func(id string) string { return pathConversations + "/" + id + "/switch_llm" }
	acp := h.harness.conversation("alice", h.sandbox, speaksACP)
	h.do(h.alice, "POST", of(acp), `{"llm_model":"x"}`).want(t, 400)
	h.do(h.alice, "POST", of(acp), `{}`).want(t, 200)
	h.do(h.alice, "POST", of(h.conversation), `{"llm_model":["x"]}`).want(t, 422)
	h.asked(func(AgentRequest) ([]byte, error) {
		return nil, &AgentError{Status: 400, Detail: "can't", Cause: errors.New("400")}
	})
	h.do(h.alice, "POST", of(h.conversation), `{}`).want(t, 400)
	if got := h.goes(other, h.token()); got != "first "+modelKey {
		t.Errorf("what the agent refused moved the conversation to %s", got)
	}
	h.do(h.alice, "POST", pathSandboxes+"/"+h.sandbox+"/pause", "").want(t, 200)
	h.do(h.alice, "POST", of(h.conversation), `{}`).want(t, 409)
	h.configure(fsm.LLM{Direct: true})
	if res := h.do(h.alice, "POST", of(h.conversation),
		`{}`).want(t, 400); !strings.Contains(string(res.body), "Start a new conversation") {
		t.Errorf("%s", res.body)
	}
}

// TestSwitchProfile: a conversation goes to an LLM profile's server with the profile's key, whatever
// the settings say, and no other server gets that key.
func TestSwitchProfile(t *testing.T) {
	t.Parallel()
	h, other := newBound(t)
	token, path := h.token(), pathConversations+"/"+h.conversation+"/switch_profile"
	profile := pathLLMProfiles + "/other"
	save := func(model, url, key string) {
		t.Helper()
		h.do(h.alice, "POST", profile,
			sprint(`{"llm":{"model":%q,"base_url":%q,"api_key":%q}}`, model, url, key)).want(t, 201)
	}
	save("openai/gpt-other", other.BaseURL(), "sk-of-profile")
	calls := h.asked(cannedAnswer)
	h.do(h.bob, "POST", path, `{"profile_name":"other"}`).want(t, 404)
	h.do(h.alice, "POST", path, `{"profile_name":"none"}`).want(t, 404).is(t, `{"detail":"Profile 'none' not found"}`)
	h.do(h.alice, "POST", path, `{}`).want(t, 422)
	h.do(h.alice, "POST", path, `{"profile_name":""}`).want(t, 422)
	if got := h.goes(other, token); got != "first "+modelKey || len(*calls) > 0 {
		t.Fatalf("refused switches moved the conversation to %s", got)
	}
	h.do(h.alice, "POST", path, `{"profile_name":"other"}`).want(t, 200).is(t, `{"success":true}`)
	if len(*calls) != 1 || !strings.Contains((*calls)[0], `"model":"openai/gpt-other"`) ||
		strings.Contains((*calls)[0], "sk-") {
		t.Errorf("the agent server was called with %q", *calls)
	}
	at := func(want string) {
		t.Helper()
		if got := h.goes(other, token); got != want {
			t.Errorf("the request went to %s, want %s", got, want)
		}
	}
	at("other sk-of-profile")
	h.settings(h.alice, sprint(`{"llm_base_url":%q,"llm_api_key":"sk-of-settings"}`, other.BaseURL()))
	at("other sk-of-profile")
	save("openai/gpt-other", other.BaseURL(), "sk-rotated")
	at("other sk-rotated")
	// A profile that leads elsewhere now has no key for where the conversation goes on.
	save("openai/gpt-other", h.model.BaseURL(), "sk-of-elsewhere")
	at("other sk-of-settings")
}
