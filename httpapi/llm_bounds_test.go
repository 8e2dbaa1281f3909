package httpapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/llmtoken"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// bobs is a token of a conversation of bob's, whose settings name the same endpoint.
func (h *modelHarness) bobs() string {
	h.t.Helper()
	h.settings(h.bob,
		fmt.Sprintf(`{"llm_model":"openai/gpt-test","llm_base_url":%q,"llm_api_key":%q}`, h.model.BaseURL(), modelKey))
	sandbox := h.createSandbox(h.bob)
	h.observe(sandbox, running())
	return llmtoken.New(h.secrets.last(fsm.SandboxKeyPath(sandbox))["key"], h.cluster.store.View().SandboxAny(sandbox),
		h.harness.conversation("bob", sandbox))
}

// begin sends the header of a request that announces a body, and a part of it.
func (h *modelHarness) begin(token string, announced int, part string) net.Conn {
	h.t.Helper()
	c := dial(h.t, h.front.Listener.Addr().String())
	head := fmt.Sprintf(
		"POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: "+
			"application/json\r\nContent-Length: %d\r\n\r\n",
		pathChat,
		token,
		announced,
	)
	if _, err := io.WriteString(c, head+part); err != nil {
		h.t.Fatal(err)
	}
	return c
}

// padded is a chat request of about n bytes.
func padded(n int) string {
	return strings.Replace(chatBody, "hello", strings.Repeat("x", n), 1)
}

func TestModels_AnAnnouncedBodyTakesNoRoom(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	token := h.token()
	for range 8 {
		h.begin(token, 32<<20, "{")
	}
	until(t, "eight requests are in progress",
		func() bool { return h.metricValue("bivouac_http_requests_in_flight") >= 8 })
	whole(t, h.ask(t.Context(), token, pathChat, padded(100<<10)), 200)
	whole(t, h.ask(t.Context(), h.bobs(), pathChat, padded(100<<10)), 200)
}

// Readers that stall keep little of their answers in memory.
func TestModels_StalledAnswersAreNotKept(t *testing.T) {
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	const readers, size = 32, 8 << 20
	answer := []byte(`{"x":"` + strings.Repeat("x", size) + `","usage":{"prompt_tokens":7,"completion_tokens":3}}`)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	}))
	t.Cleanup(endpoint.Close) // after the readers have left
	h.baseURL(endpoint.URL)
	token := h.token()
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for range readers {
		c := h.begin(token, len(chatBody), chatBody)
		if _, err := io.ReadFull(c, make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the answers come as far as they can", func() bool {
		first := heap()
		<-time.After(300 * time.Millisecond)
		return heap()-first < 1<<20
	})
	if kept := heap() - before; kept > readers*400<<10 {
		t.Errorf("%d stalled answers keep %d KiB", readers, kept>>10)
	}
}

// The usage at the end of an answer counts, however long it is.
func TestModels_ALongAnswerIsCountedByItsEnd(t *testing.T) {
	t.Parallel()
	for _, wire := range wires {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stream=%t", wire.name, stream), func(t *testing.T) {
				t.Parallel()
				h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
				text := strings.Repeat("long ", 2<<20)
				endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					usage := `"usage": {"prompt_tokens": 11, "completion_tokens": 5}`
					if wire.name == "gemini" {
						usage = `"usageMetadata":{"promptTokenCount":11,"candidatesTokenCount":5}`
					}
					body := `{"text":"` + text + `\"usage\": {\"prompt_tokens\": 99}",` + usage + `,"end":[]}`
					w.Header().Set("Content-Type", "application/json")
					if stream {
						w.Header().Set("Content-Type", "text/event-stream")
						body = "data: {\"choices\":[1]}\n\ndata: " + body + "\n\ndata: [DONE]\n\n"
					}
					_, _ = io.WriteString(w, body)
				}))
				defer endpoint.Close()
				h.baseURL(endpoint.URL)
				path, body := wire.path, wire.body
				if stream {
					path, body = wire.streamPath, wire.streamBody
				}
				if got := whole(t, h.ask(t.Context(), h.token(), path, body), 200); !strings.Contains(got, text) {
					t.Errorf("%d bytes came", len(got))
				}
				if used := h.counted(1); used.Input != 11 || used.Output != 5 {
					t.Errorf("counted %+v", used)
				}
			})
		}
	}
}

func TestModels_HangingUpIsCharged(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	h := newModelHarness(t,
		modeltest.Turns(modeltest.Answer{Text: "x", Hold: hold, Usage: &modeltest.Usage{Prompt: 100, Completion: 10}}))
	policy := fsm.LLM{
		Hosts:   []string{fsm.HostLocal},
		Budgets: fsm.Budgets{PerTask: 3},
		Prices:  []fsm.Price{{Model: "*", Output: 1000}},
	}
	h.configure(policy)
	token := h.token()
	two := strings.Replace(chatBody, "{", `{"max_tokens":2000,`, 1) // two dollars
	for n := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			r, _ := http.NewRequestWithContext(ctx, http.MethodPost, h.front.URL+pathChat, strings.NewReader(two))
			r.Header.Set("Authorization", "Bearer "+token)
			if res, err := h.front.Client().Do(r); err == nil {
				res.Body.Close()
			}
		}()
		until(t, "the request arrives or is refused", func() bool {
			select {
			case <-left:
				return true
			default:
				return len(h.model.Requests()) > n
			}
		})
		cancel()
		<-left
		until(t, "it is over", func() bool { return h.metricValue("bivouac_llm_requests_open") == 0 })
	}
	if n := len(h.model.Requests()); n != 2 {
		t.Errorf("%d requests of two dollars were sent with a budget of three", n)
	}
	if used := h.counted(2); used.Cost != 4*fsm.Dollar {
		t.Errorf("counted %+v", used)
	}
	// Requests in progress count, and one alone is not refused for its own charge.
	policy.Budgets = fsm.Budgets{PerUserDay: 5}
	h.configure(policy)
	sent := len(h.model.Requests())
	done := make(chan string, 1)
	go func() { done <- whole(t, h.ask(t.Context(), token, pathChat, two), 200) }()
	if err := h.model.Wait(t.Context(), sent+1); err != nil {
		t.Fatal(err)
	}
	if res := h.refused(token, pathChat, chatBody, 429, "budget",
		"requests in progress may use up the budget"); res.Header.Get("Retry-After") != "5" {
		t.Errorf("Retry-After %q", res.Header.Get("Retry-After"))
	}
	close(hold)
	<-done
	whole(t, h.ask(t.Context(), token, pathChat, two), 200)
	if used := h.counted(int64(sent) + 2); used.Cost != 4*fsm.Dollar+2*fsm.Dollar/100 {
		t.Errorf("counted %+v", used)
	}
}

// The most that an answer may cost is charged, in the words of each API.
func TestModels_TheChargeIsTheMostThatAnAnswerMayCost(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		wire   int
		member string
		output int64
	}{
		{0, ``, 4096}, {0, `"max_tokens":null,`, 4096}, {0, `"max_tokens":-5,`, 4096}, {0, `"max_tokens":"x",`, 4096},
		{0, `"max_tokens":100,`, 100}, {
			0,
			`"max_completion_tokens":50,`,
			50,
		}, {0, `"max_completion_tokens":50,"n":3,`, 150}, {1, `"max_output_tokens":70,`, 70},
		{
			2,
			`"max_tokens":1e999,`,
			1 << 40,
		}, {
			3,
			`"generationConfig":{"maxOutputTokens":80,"candidateCount":2},`,
			160,
		}, {3, `"generation_config":{"max_output_tokens":90},`, 90},
	} {
		t.Run(fmt.Sprint(test.wire, test.member), func(t *testing.T) {
			t.Parallel()
			h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
			h.configure(fsm.LLM{Hosts: []string{fsm.HostLocal}, Prices: []fsm.Price{{Model: "*", Output: 1000}}})
			endpoint := httptest.NewServer(
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }),
			)
			defer endpoint.Close()
			h.baseURL(endpoint.URL)
			whole(t,
				h.ask(t.Context(), h.token(), wires[test.wire].path,
					strings.Replace(wires[test.wire].body, "{", "{"+test.member, 1)), 502)
			if used := h.counted(1); used.Cost != min(test.output*1_000_000, 1<<59) {
				t.Errorf("%s: counted %+v", test.member, used)
			}
		})
	}
}

// Numbers of an endpoint that are absurd are its own user's loss.
func TestModels_AbsurdUsageVoidsNoReport(t *testing.T) {
	t.Parallel()
	for _, usage := range []string{
		`{"prompt_tokens":9223372036854775807,"completion_tokens":9223372036854775807,` +
			`"prompt_tokens_details":{"cached_tokens":-3}}`,
		`{"prompt_tokens":1e400,"completion_tokens":4611686018427387904}`,
		`{"prompt_tokens":-1,"completion_tokens":-9223372036854775808}`,
		`{"input_tokens":4611686018427387904,"cache_read_input_tokens":4611686018427387904}`,
		`{"prompt_tokens":1.5,"completion_tokens":"many"}`,
	} {
		t.Run(usage, func(t *testing.T) {
			t.Parallel()
			h := newModelHarness(t,
				modeltest.Turns(modeltest.Answer{Text: "ok", Usage: &modeltest.Usage{Prompt: 1000, Completion: 100}}))
			h.configure(fsm.LLM{Hosts: []string{fsm.HostLocal}, Prices: []fsm.Price{{Model: "*", Input: 1, Output: 1}}})
			absurd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"choices":[],"usage":`+usage+`}`)
			}))
			defer absurd.Close()
			whole(t, h.ask(t.Context(), h.bobs(), pathChat, chatBody), 200)
			h.baseURL(absurd.URL)
			token := h.token()
			for range 2 { // one such answer alone is saturated by what it is added to
				whole(t, h.ask(t.Context(), token, pathChat, chatBody), 200)
			}
			h.counted(2)
			if u := h.cluster.store.View().User("bob"); u.Models == nil || u.Models.Total.Input != 1000 {
				t.Errorf("bob's are %+v", u.Models)
			}
		})
	}
}

func TestModels_OneReadingOfABody(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	token := h.token()
	chat := func(members string) string { return `{` + members + `,"messages":[{"role":"user","content":"x"}]}` }
	always := []string{
		`"model":"cheap","Model":"expensive"`,
		`"model":"cheap","MODEL":"expensive"`,
		`"model":"cheap","ſtream":true`,
		`"model":"cheap","Max_Tokens":5`,
	}
	priced := []string{
		`"model":"cheap","fallbacks":["expensive"]`, `"model":"cheap","models":["cheap"]`,
		`"model":"cheap","Models":["expensive"]`, `"model":"cheap","api_base":"https://x"`,
		`"model":"cheap","base_url":"https://x"`,
		`"model":"cheap","user_config":{}`, `"model":"cheap","extra_body":{}`, `"model":"cheap,expensive"`,
	}
	for _, members := range always {
		h.refused(token, pathChat, chat(members), 400, "body", "by case alone")
	}
	for _, policy := range []fsm.LLM{
		{Models: []string{"cheap*"}},
		{Prices: []fsm.Price{{Model: "expensive", Input: 1}}},
		{Budgets: fsm.Budgets{PerTask: 1}},
	} {
		policy.Hosts = []string{fsm.HostLocal}
		h.configure(policy)
		for _, members := range priced {
			h.refused(token, pathChat, chat(members), 403, "model", "while the operator limits or prices models")
		}
		whole(t, h.ask(t.Context(), token, "/llm/gemini/v1beta/models/cheap,expensive:generateContent", `{"contents":[]}`),
			403)
	}
	if n := len(h.model.Requests()); n != 0 {
		t.Errorf("%d requests came to the endpoint", n)
	}
	h.configure(fsm.LLM{Hosts: []string{fsm.HostLocal}})
	for _, members := range priced {
		whole(t, h.ask(t.Context(), token, pathChat, chat(members)), 200)
	}
	// LiteLLM reads the model from the query first.
	whole(t, h.ask(t.Context(), token, pathChat+"?model=expensive&alt=sse", chat(`"model":"cheap"`)), 200)
	all := h.model.Requests()
	if got := all[len(all)-1].Path; strings.Contains(got, "expensive") {
		t.Errorf("the endpoint got %s", got)
	}
}

func TestModels_HeadersPassByAList(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	token := h.token()
	withheld := []string{
		"X-Portkey-Custom-Host", "X-Portkey-Config", "Helicone-Target-Url", "X-Litellm-Api-Base", "X-Litellm-Tags",
		"Openai-Organization", "Cf-Aig-Authorization",
		"X-Invented", "Content-Encoding-X", "X-Forwarded-Server", "True-Client-Ip", "X-Http-Method", "X-Goog-User-Project",
	}
	passed := []string{
		"Anthropic-Version",
		"Anthropic-Beta",
		"Openai-Beta",
		"X-Stainless-Lang",
		"User-Agent",
		"Accept",
		"Idempotency-Key",
	}
	var headers []string
	for _, name := range append(withheld, passed...) {
		headers = append(headers, name, "https://evil.example.org")
	}
	whole(t, h.ask(t.Context(), token, pathChat, chatBody, headers...), 200)
	got := h.model.Requests()[0].Header
	for _, name := range withheld {
		if got.Get(name) != "" {
			t.Errorf("%s reached the endpoint", name)
		}
	}
	for _, name := range passed {
		if got.Get(name) != "https://evil.example.org" {
			t.Errorf("%s is %q at the endpoint", name, got.Get(name))
		}
	}
}

func TestModels_NothingEchoesTheKey(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")))
	token := h.token()
	status, kind, body := http.StatusOK, "application/json", `{"choices":[]}`
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		w.Header().Set("Link", key)
		w.Header().Set("X-Early", key)
		w.WriteHeader(http.StatusEarlyHints)
		h := w.Header()
		h.Set("Content-Type", kind)
		h.Set("Trailer", "X-Late")
		h.Add("X-Debug", "plain")
		h.Add("X-Debug", "auth=Bearer "+key)
		h.Set("X-Fine", "x-fine")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, strings.ReplaceAll(body, "KEY", key))
		h.Set("X-Late", key)
		h.Set(http.TrailerPrefix+"X-Later", key)
	}))
	defer endpoint.Close()
	h.baseURL(endpoint.URL)
	check := func(what, key string) {
		t.Helper()
		res := h.ask(t.Context(), token, pathChat, streamBody)
		text := whole(t, res, status)
		for name, values := range map[string]string{
			"the header":  fmt.Sprint(res.Header),
			"the trailer": fmt.Sprint(res.Trailer),
			"the body":    text,
		} {
			if strings.Contains(values, key) {
				t.Errorf("%s: %s has the key: %s", what, name, values)
			}
		}
		if res.Header.Get("X-Fine") != "x-fine" {
			t.Errorf("%s: the headers are %v", what, res.Header)
		}
	}
	check("an answer", modelKey)
	kind, body = "text/event-stream", "data: {\"error\":\"bad key KEY\"}\n\ndata: [DONE]\n\n"
	check("an error in a stream", modelKey)
	status, kind, body = 400, "application/json", `{"error":{"message":"bad key KEY, context too long"}}`
	check("an error", modelKey)
	// A key that is a part of words is none.
	h.settings(h.alice, `{"llm_api_key":"x"}`)
	if text := whole(t, h.ask(t.Context(), token, pathChat, streamBody),
		400); !strings.Contains(text, "bad key x, context too long") {
		t.Errorf("the error is %s", text)
	}
}

func TestModels_AUserHasAShareOfTheRoomForBodies(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")), func(c *Config) {
		c.LLM.MaxBody, c.LLM.UserBodies, c.LLM.AllBodies = 1<<20, 1<<20, 3<<20
	})
	token := h.token()
	h.begin(token, 1<<20, padded(600<<10))
	h.begin(token, 1<<20, padded(600<<10))
	until(t, "the user's share is taken", func() bool {
		res := h.ask(t.Context(), token, pathChat, padded(600<<10))
		defer res.Body.Close()
		return res.StatusCode == http.StatusTooManyRequests
	})
	whole(t, h.ask(t.Context(), token, pathChat, padded(40<<10)), 200) // small ones need none
	whole(t, h.ask(t.Context(), h.bobs(), pathChat, padded(600<<10)), 200)
}

func TestModels_ABodyThatDoesNotComeEnds(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")),
		func(c *Config) { c.LLM.BodyPause = 100 * time.Millisecond })
	c := h.begin(h.token(), 1000, "{")
	if status, body, err := exchangeOver(c, ""); status != http.StatusRequestTimeout ||
		!strings.Contains(body, "did not arrive") || err != nil {
		t.Errorf("%d %s, %v", status, body, err)
	}
}

// A reader that takes nothing is cut off, and the endpoint's request ends.
func TestModels_AStalledReaderIsCutOff(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("ok")),
		func(c *Config) { c.LLM.WriteStall = 200 * time.Millisecond })
	ended := make(chan struct{})
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		chunk := []byte(strings.Repeat("x", 64<<10))
		for {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	defer endless.Close()
	h.baseURL(endless.URL)
	h.begin(h.token(), len(chatBody), chatBody)
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("the endpoint's request goes on")
	}
}
