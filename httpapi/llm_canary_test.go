package httpapi

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// faultKinds are the endpoint's faults, "" for none.
func faultKinds() []string {
	return []string{
		"", modeltest.Hangup, modeltest.Unauthorized, modeltest.RateLimit, modeltest.NoQuota, modeltest.ServerError,
		modeltest.Unavailable, modeltest.BadRequest,
		modeltest.ContextLength, modeltest.ContentFilter, modeltest.Garbage, modeltest.Truncated, modeltest.Cut,
		modeltest.StreamError, modeltest.Empty,
	}
}

// nowhere checks that a text is in no log, metric, entry of the Raft log or snapshot.
func (h *modelHarness) nowhere(what, canary string) {
	h.t.Helper()
	var snapshot bytes.Buffer
	if err := h.cluster.store.Snapshot().Persist(&snapshot); err != nil {
		h.t.Fatal(err)
	}
	texts := map[string]string{
		"the log":     h.logs.String(),
		"the metrics": string(h.do("", "GET", "/metrics", "").body),
		"a snapshot":  snapshot.String(),
	}
	for i, entry := range h.cluster.log {
		texts[fmt.Sprintf("entry %d of the Raft log", i)] = string(entry)
	}
	for where, text := range texts {
		for _, form := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary))} {
			if at := strings.Index(text, form); at >= 0 {
				h.t.Errorf("%s is in %s: …%s…", what, where, text[max(0, at-200):min(len(text), at+80)])
			}
		}
	}
}

// Prompts and answers are in no log at the level debug, whatever the endpoint does or the gateway
// refuses.
func TestModels_PromptsAreLoggedNowhere(t *testing.T) {
	t.Parallel()
	prompt, answer := "pr0mpt"+apikey.Random(20), "answ3r"+apikey.Random(20)
	for _, kind := range faultKinds() {
		t.Run("fault "+kind, func(t *testing.T) {
			t.Parallel()
			reply := modeltest.Answer{Text: answer + " " + answer}
			if kind != "" {
				reply.Fault = &modeltest.Fault{Kind: kind, Message: "what is " + prompt + " with key " + modelKey + "? " + answer}
			}
			h := newModelHarness(t, modeltest.Turns(reply))
			token := h.token()
			asked := 0
			for _, wire := range wires {
				for path, body := range map[string]string{wire.path: wire.body, wire.streamPath + "&x=" + prompt: wire.streamBody} {
					if !strings.Contains(path, "?") {
						path = strings.Replace(path, "&", "?", 1)
					}
					res := h.ask(t.Context(), token, path, strings.Replace(body, "hello", "hello "+prompt, 1), "X-Prompt", prompt)
					got, _ := io.ReadAll(res.Body) // a cut answer is one of the faults
					if asked++; strings.Contains(string(got), modelKey) {
						t.Errorf("%s: the client got the key: %s", wire.name, got)
					}
				}
			}
			h.counted(1)
			h.nowhere("a prompt", prompt)
			h.nowhere("an answer", answer)
			h.nowhere("the key", modelKey)
			h.nowhere("a token", token)
			if n := len(h.model.Requests()); n < asked {
				t.Errorf("%d of %d requests came to the endpoint", n, asked)
			}
		})
	}
}

func TestModels_RefusedPromptsAreLoggedNowhere(t *testing.T) {
	t.Parallel()
	prompt := "pr0mpt" + apikey.Random(20)
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	token := h.token()
	for _, body := range []string{
		`{"model":"gpt-test","messages":"` + prompt, `["` + prompt + `"]`, `{"` + prompt + `":1}`,
		`{"model":{"a":"` + prompt + `"}}`, `"` + prompt + `"`, prompt,
		`{"model":"gpt-test","model":"gpt-test","messages":["` + prompt + `"]}`,
	} {
		for _, wire := range wires {
			h.ask(t.Context(), token, wire.path, body)
			h.ask(t.Context(), prompt, wire.path, body)
		}
	}
	sound := strings.Replace(chatBody, "hello", prompt, 1)
	h.ask(t.Context(), token, "/llm/"+prompt, sound)
	h.ask(t.Context(), token, "/llm/v1/"+prompt+"/chat", sound)
	for _, policy := range []fsm.LLM{{}, {Direct: true}, {Hosts: []string{fsm.HostLocal}, Models: []string{"other"}}} {
		h.configure(policy)
		if res := h.ask(t.Context(), token, pathChat, sound); res.StatusCode != http.StatusForbidden {
			t.Errorf("%+v: %d", policy, res.StatusCode)
		}
	}
	h.configure(fsm.LLM{Hosts: []string{fsm.HostLocal}})
	h.model.Down()
	whole(t, h.ask(t.Context(), token, pathChat, sound), 502)
	h.nowhere("a prompt", prompt)
}

// No route gives a user's model key to a sandbox, or to anybody who has its key or a token of it.
func TestModels_NoAnswerHasTheKey(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")),
		func(c *Config) { c.APIURLs = []string{"http://10.1.2.3:8440"} })
	token, seen := h.token(), 0
	replace := strings.NewReplacer(":sandbox_id", h.sandbox, ":conversation_id", h.conversation, ":port", "8000", ":id",
		"alice", "*secret_name", "llm_api_key", "*id", "small",
		":client_id", "c1", ":kind", "job", ":what", "config", ":profile", "heap", ":name", "fast", ":org_id", "alice")
	for _, r := range routes() {
		if r.method != http.MethodGet || r.name == "node.log" || r.name == "node.profile" {
			continue // they don't end, or take seconds
		}
		for _, query := range []string{"", "?expose_secrets=true&ids=" + h.conversation + "&id=" + h.sandbox} {
			path := replace.Replace(r.path) + query
			for who, headers := range map[string][]string{
				"the sandbox":                   {"X-Session-API-Key", h.key},
				"the sandbox, as a bearer":      {"Authorization", "Bearer " + h.key},
				"a token":                       {"Authorization", "Bearer " + token},
				"its owner, beside the sandbox": {"Authorization", "Bearer " + h.alice, "X-Session-API-Key", h.key},
				"an operator":                   {"Authorization", "Bearer " + h.root, "X-Session-API-Key", h.key},
			} {
				res := h.do("", http.MethodGet, path, "", headers...)
				if seen++; strings.Contains(string(res.body), modelKey) {
					t.Errorf("%s got the key at GET %s: %s", who, path, res.body)
				}
			}
		}
	}
	if seen < 200 {
		t.Errorf("%d requests were tried", seen)
	}
	if h.secrets.last(fsm.SettingPath("alice", "llm_api_key"))["value"] != modelKey {
		t.Error("the key is not stored")
	}
}
