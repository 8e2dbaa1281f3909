package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/llmtoken"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// modelKey is alice's key. It must reach the endpoint and nothing else.
const modelKey = "sk-canary-8f1b2c3d"

// modelHarness is a Server on a real port, with a conversation of alice's in a running sandbox and a
// model endpoint on loopback.
type modelHarness struct {
	*harness
	front                      *httptest.Server
	model                      *modeltest.Server
	sandbox, key, conversation string
}

func newModelHarness(t *testing.T, script *modeltest.Script, change ...func(*Config)) *modelHarness {
	t.Helper()
	h := &modelHarness{harness: newHarness(t, change...).newest().withSpec(), model: modeltest.New(t, script)}
	h.configure(fsm.LLM{Hosts: []string{fsm.HostLocal}})
	h.settings(h.alice,
		fmt.Sprintf(`{"llm_model":"openai/gpt-test","llm_base_url":%q,"llm_api_key":%q}`, h.model.BaseURL(), modelKey))
	h.sandbox = h.createSandbox(h.alice)
	h.observe(h.sandbox, running())
	h.key = h.secrets.last(fsm.SandboxKeyPath(h.sandbox))["key"]
	h.conversation = h.harness.conversation("alice", h.sandbox)
	h.front = httptest.NewServer(h.handler)
	t.Cleanup(h.front.Close)
	return h
}

func (h *modelHarness) configure(l fsm.LLM) {
	h.t.Helper()
	h.apply("", &fsm.InstallationConfigureBody{Installation: fsm.Installation{LLM: l}})
}

func (h *modelHarness) settings(key, body string) {
	h.t.Helper()
	h.do(key, "POST", "/api/settings", body).want(h.t, 200)
}

// token is what the sandbox's agent server gets.
func (h *modelHarness) token() string {
	h.t.Helper()
	var out struct{ Token string }
	h.do(h.key, "POST", "/llm/token",
		fmt.Sprintf(`{"conversation_id":%q}`, decode.Dashed(h.conversation))).want(h.t, 200).json(h.t, &out)
	return out.Token
}

// ask sends a request to the gateway over a real connection.
func (h *modelHarness) ask(ctx context.Context, token, path, body string, headers ...string) *http.Response {
	h.t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	r, err := http.NewRequestWithContext(ctx, method, h.front.URL+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := h.front.Client().Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { res.Body.Close() })
	return res
}

// whole reads an answer.
func whole(t *testing.T, res *http.Response, status int) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("reading the answer: %v after %s", err, b)
	}
	if res.StatusCode != status {
		t.Fatalf("status %d, want %d: %s", res.StatusCode, status, b)
	}
	return string(b)
}

const (
	pathChat = "/llm/v1/chat/completions"
	chatBody = `{"model":"gpt-test","messages":[{"role":"user","content":"hello, canary prompt"}]}`
	// streamBody asks for a stream and for no usage.
	streamBody = `{"stream":true,"model":"gpt-test","messages":[{"role":"user","content":"hello, canary prompt"}]}`
)

// wires are the APIs with a request and a streamed one.
var wires = []struct{ name, path, body, streamPath, streamBody, header string }{
	{"chat", pathChat, chatBody, pathChat, streamBody, "Authorization"},
	{
		"responses",
		"/llm/v1/responses",
		`{"model":"gpt-test","input":"hello"}`,
		"/llm/v1/responses",
		`{"model":"gpt-test","input":"hello","stream":true}`,
		"Authorization",
	},
	{"anthropic", "/llm/anthropic/v1/messages", `{"model":"gpt-test","messages":[{"role":"user","content":"hello"}]}`,
		"/llm/anthropic/v1/messages", `{"model":"gpt-test","stream":true,"messages":[{"role":"user","content":"hello"}]}`,
		"X-Api-Key"},
	{"gemini", "/llm/gemini/v1beta/models/gpt-test:generateContent",
		`{"contents":[{"role":"user","parts":[{"text":"hello"}]}]}`,
		"/llm/gemini/v1beta/models/gpt-test:streamGenerateContent?alt=sse",
		`{"contents":[{"role":"user","parts":[{"text":"hello"}]}]}`, "X-Goog-Api-Key"},
}

func TestModels_EveryAPIGetsTheOwnersKeyAndIsCounted(t *testing.T) {
	t.Parallel()
	usage := &modeltest.Usage{Prompt: 1000, Completion: 100, Cached: 400}
	for _, wire := range wires {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stream=%t", wire.name, stream), func(t *testing.T) {
				t.Parallel()
				h := newModelHarness(t,
					&modeltest.Script{
						Key:     modelKey,
						Stories: modeltest.Turns(modeltest.Answer{Text: "the whole answer of the model", Usage: usage}).Stories,
					})
				half := 0.5
				h.configure(fsm.LLM{
					Hosts:  []string{"127.0.0.1"},
					Prices: []fsm.Price{{Model: "gpt-*", Input: 1, Output: 10, CachedInput: &half}},
				})
				path, body := wire.path, wire.body
				if stream {
					path, body = wire.streamPath, wire.streamBody
				}
				token := h.token()
				res := h.ask(t.Context(), "", path, body, "Authorization", "", wire.header,
					map[bool]string{true: "Bearer ", false: ""}[wire.header == "Authorization"]+token, "X-Session-API-Key", h.key)
				text := whole(t, res, 200)
				got := h.model.Requests()[0]
				if got.Key != modelKey || got.Protocol != wire.name || strings.Contains(fmt.Sprint(got.Header, got.Path), token) ||
					got.Header.Get("X-Session-Api-Key") != "" || got.Header.Get("X-Forwarded-For") != "" {
					t.Errorf("the endpoint got %s %s with %v", got.Protocol, got.Path, got.Header)
				}
				if stream != strings.Contains(text, "data: ") || !strings.Contains(text, "the whole an") {
					t.Errorf("the answer is %s", text)
				}
				if stream && wire.name == "chat" && strings.Contains(text, `"prompt_tokens"`) {
					t.Errorf("the client did not ask for usage: %s", text)
				}
				counted := h.counted(1)
				counted.Milliseconds = 0
				want := fsm.ModelUsage{Requests: 1, Input: 1000, Output: 100, Cached: 400, Cost: (600*1 + 400/2 + 100*10) * 1000}
				if counted != want {
					t.Errorf("counted %+v, want %+v", counted, want)
				}
				u := h.cluster.store.View().User("alice")
				if by := u.Models.ByModel; len(by) != 1 || by[0].Model != "gpt-test" || by[0].Usage != u.Models.Total {
					t.Errorf("by model %+v", by)
				}
				total := u.Models.Total
				total.Milliseconds = 0 // as it took
				if total != want || u.SpentOn(fsm.DayOf(time.Now())) != want.Cost {
					t.Errorf("the user's are %+v", u.Models)
				}
				if logs := h.logs.String(); strings.Contains(logs, modelKey) || strings.Contains(logs, token) ||
					strings.Contains(logs, "hello") {
					t.Errorf("the log has a key, a token or a prompt: %s", logs)
				}
			})
		}
	}
}

func TestModels_ATokenIsGoodForOneConversationWhileItsSandboxRuns(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	token := h.token()
	refused := func(what, token string) {
		t.Helper()
		body := whole(t, h.ask(t.Context(), token, pathChat, chatBody), 401)
		if !strings.Contains(body, `"the gateway token is not valid, or its sandbox is paused or gone"`) {
			t.Errorf("%s: %s", what, body)
		}
	}
	whole(t, h.ask(t.Context(), token, pathChat, chatBody), 200)
	v := h.cluster.store.View()
	bobs := h.createSandbox(h.bob)
	bobsKey := h.secrets.last(fsm.SandboxKeyPath(bobs))["key"]
	refused("garbage", "sk-x")
	refused("none", "")
	refused("a user's key", h.alice)
	refused("the sandbox's key", h.key)
	refused("another sandbox's key", llmtoken.New(bobsKey, v.SandboxAny(h.sandbox), h.conversation))
	refused("a conversation that is not the sandbox's", llmtoken.New(h.key, v.SandboxAny(h.sandbox), newHexID()))
	h.do(token, "GET", "/api/v1/sandboxes?id="+h.sandbox, "").want(t, 401) // it opens nothing else
	h.do(bobsKey, "POST", "/llm/token", fmt.Sprintf(`{"conversation_id":%q}`, h.conversation)).want(t, 404)
	h.do(h.alice, "POST", "/llm/token", fmt.Sprintf(`{"conversation_id":%q}`, h.conversation)).want(t, 401)

	h.apply("", &fsm.UserDisableBody{UserID: "alice"})
	refused("a disabled user", token)
	h.apply("", &fsm.UserEnableBody{UserID: "alice"})
	h.do(h.alice, "POST", "/api/v1/sandboxes/"+h.sandbox+"/pause", "").want(t, 200)
	refused("a paused sandbox", token)
	h.do(h.key, "POST", "/llm/token", fmt.Sprintf(`{"conversation_id":%q}`, h.conversation)).want(t, 401)
	h.do(h.alice, "POST", "/api/v1/sandboxes/"+h.sandbox+"/resume", "").want(t, 200)
	refused("after a resume", token)
	next := h.token()
	whole(t, h.ask(t.Context(), next, pathChat, chatBody), 200)
	h.do(h.alice, "DELETE", "/api/v1/app-conversations/"+h.conversation, "")
	refused("a deleted conversation", next)
	if n := len(h.model.Requests()); n != 2 {
		t.Errorf("%d requests reached the endpoint", n)
	}
}

func TestModels_ATokenIsJudgedByTheClusterWhereThisNodeIsBehind(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	token := h.token()
	h.lag(func() { h.do(h.alice, "POST", "/api/v1/sandboxes/"+h.sandbox+"/pause", "").want(t, 200) })
	whole(t, h.ask(t.Context(), token, pathChat, chatBody), 401)

	h = newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	before := h.cluster.store.View()
	h.conversation = h.harness.conversation("alice", h.sandbox)
	token = llmtoken.New(h.key, before.SandboxAny(h.sandbox), h.conversation)
	h.behind(before)
	whole(t, h.ask(t.Context(), token, pathChat, chatBody), 200)

	// Without a leader this node's own store decides.
	h.cluster.set(func(c *fakeCluster) { c.viewErr = errors.New("no leader") })
	whole(t, h.ask(t.Context(), token, pathChat, chatBody), 200)
	h.cluster.set(func(c *fakeCluster) { c.contact = time.Now().Add(-time.Hour) })
	whole(t, h.ask(t.Context(), token, pathChat, chatBody), 503)
}

func TestModels_AStreamIsPassedOnAsItComesAndEndsWithThePause(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Answer{
		Text: strings.Repeat("twelve chars", 400), Fault: &modeltest.Fault{Kind: modeltest.SlowChunks, DelayMS: 50},
	}))
	res := h.ask(t.Context(), h.token(), pathChat, streamBody)
	lines := bufio.NewScanner(res.Body)
	for seen := 0; seen < 3; {
		if !lines.Scan() {
			t.Fatalf("the stream ended: %v", lines.Err())
		}
		if strings.HasPrefix(lines.Text(), "data: ") {
			seen++
		}
	}
	h.do(h.alice, "POST", "/api/v1/sandboxes/"+h.sandbox+"/pause", "").want(t, 200)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "[DONE]") {
			t.Fatal("the stream went on to its end")
		}
	}
	h.gone(1)
}

// counted waits until n requests of the conversation are counted in the state.
func (h *modelHarness) counted(n int64) fsm.ModelUsage {
	h.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for tick := time.Tick(5 * time.Millisecond); ; <-tick {
		h.server.models.Report(h.t.Context())
		used := h.cluster.store.View().Conversation("alice", h.conversation).Models
		if used.Requests >= n {
			return used
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("counted %+v, want %d requests", used, n)
		}
	}
}

// gone waits until the endpoint has seen its client leave in request n.
func (h *modelHarness) gone(n int) {
	h.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for tick := time.Tick(5 * time.Millisecond); ; <-tick {
		if r := h.model.Requests(); len(r) >= n && r[n-1].Gone {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatal("the endpoint's request was not ended")
		}
	}
}

func TestModels_AClientThatLeavesEndsTheEndpointsRequest(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Answer{
		Text: strings.Repeat("twelve chars", 1000), Fault: &modeltest.Fault{Kind: modeltest.SlowChunks, DelayMS: 20},
	}))
	ctx, cancel := context.WithCancel(t.Context())
	res := h.ask(ctx, h.token(), pathChat, streamBody)
	if _, err := io.ReadFull(res.Body, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	cancel()
	h.gone(1)
	// What was used is estimated.
	if used := h.counted(1); used.Output == 0 || used.Input == 0 {
		t.Errorf("counted %+v", used)
	}
}

func TestModels_WhatTheEndpointSaysIsPassedOn(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Answer{Fault: &modeltest.Fault{
		Kind: modeltest.RateLimit, RetryAfterS: 7, Message: "slow down, key " + modelKey,
	}}))
	token := h.token()
	res := h.ask(t.Context(), token, pathChat, chatBody)
	if limit := res.Header.Get("X-Bivouac-Limit"); limit != "endpoint" {
		t.Errorf("it is said to be a limit of %q", limit)
	}
	body := whole(t, res, 429)
	if res.Header.Get("Retry-After") != "7" || !strings.Contains(body, "slow down, key **********") ||
		strings.Contains(body, modelKey) {
		t.Errorf("%v %s", res.Header, body)
	}
	h.model.Down()
	if body := whole(t, h.ask(t.Context(), token, pathChat, chatBody), 502); !strings.Contains(body, "does not answer") {
		t.Error(body)
	}
}

func TestModels_RequestsAreBounded(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	h := newModelHarness(t, modeltest.Turns(modeltest.Answer{Text: "x", Hold: hold}),
		func(c *Config) { c.LLM.MaxBody, c.LLM.UserRequests = 4096, 2 })
	token := h.token()
	whole(t, h.ask(t.Context(), token, pathChat, `{"model":"gpt-test","x":"`+strings.Repeat("x", 4096)+`"}`), 413)
	for _, body := range []string{"[]", "{", `{"messages":[]}`} {
		whole(t, h.ask(t.Context(), token, pathChat, body), 400)
	}
	done := make(chan string, 2)
	for range 2 {
		go func() { done <- whole(t, h.ask(t.Context(), token, pathChat, chatBody), 200) }()
	}
	if err := h.model.Wait(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if res := h.ask(t.Context(), token, pathChat, chatBody); res.StatusCode != 429 ||
		res.Header.Get("Retry-After") != "1" || res.Header.Get("X-Bivouac-Limit") != "user" {
		t.Errorf("the third is %d %v", res.StatusCode, res.Header)
	}
	close(hold)
	<-done
	<-done
	for _, path := range []string{
		"/llm/v1/embeddings",
		"/llm/v1/",
		"/llm/",
		"/llm/v1/models/../../x",
		"/llm/gemini/v1beta/models/x:delete",
	} {
		whole(t, h.ask(t.Context(), token, path, chatBody), 404)
	}
	if body := whole(t, h.ask(t.Context(), token, "/llm/v1/models", ""), 200); !strings.Contains(body, `"list"`) {
		t.Error(body)
	}
}
