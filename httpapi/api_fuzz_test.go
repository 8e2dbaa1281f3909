package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
)

// endedLogs are the logs of a task that has ended.
type endedLogs struct{}

func (endedLogs) Logs(context.Context, string, string, LogPart) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("a line\n")), nil
}

// fuzzed is a server with data of every kind, alice's and bob's.
type fuzzed struct {
	*harness
	// words are values that a fuzzer can't guess, such as "{bob.sandbox}".
	words []string
}

// bobsCanary is in every value of bob's that only he may see.
const bobsCanary = "b0bscanary"

func newFuzzed(t *testing.T) *fuzzed {
	t.Helper()
	h := newHarness(t, func(c *Config) { c.Logs = endedLogs{} }).withSpec()
	// Older protocol versions respond 409 to newer routes.
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	f := &fuzzed{harness: h}
	for user, key := range map[string]string{"alice": h.alice, "bob": h.bob} {
		canary := user + "sown"
		if user == "bob" {
			canary = bobsCanary
		}
		h.do(key, "POST", settingsPath, `{"llm_model":"m","llm_api_key":"`+canary+`","git_user_name":"`+canary+`",
		  "secrets_store":{"provider_tokens":{"github":{"token":"`+canary+`"}},
		  "custom_secrets":{"N":{"secret":"`+canary+`"}}}}`).want(t, 200)
		sb := h.createSandbox(key)
		h.observe(sb, running())
		conv := h.conversation(user, sb, func(c *fsm.Conversation) { c.Title = ptr(canary) })
		var task struct{ ID string }
		h.do(key, "POST", pathConversations, `{"title":"`+canary+`","secrets":{"A":"`+canary+`"}}`,
			request.HeaderIdempotencyKey,
			"k").want(t, 200).json(t, &task)
		f.words = append(f.words, "{"+user+".sandbox}", sb, "{"+user+".conversation}", conv, "{"+user+".task}", task.ID,
			"{"+user+".key}", h.secrets.last(fsm.SandboxKeyPath(sb))["key"])
	}
	return f
}

// bobs is all of bob's data as he sees it.
func (f *fuzzed) bobs(t *testing.T) string {
	v, err := f.cluster.View(context.Background(), cluster.Stale)
	if err != nil {
		t.Fatal(err)
	}
	sandboxes, _ := v.Sandboxes("bob", fsm.Page{Limit: 1000})
	convs, _ := v.Conversations("bob", fsm.ConversationFilter{}, fsm.Page{Limit: 1000})
	tasks, _ := v.StartTasks("bob", fsm.StartTaskFilter{}, fsm.Page{Limit: 1000})
	b, err := json.Marshal([]any{
		sandboxes,
		convs,
		tasks,
		v.Settings("bob"),
		v.Providers("bob"),
		v.CustomSecrets("bob"),
		v.User("bob"),
		f.agents.sent(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// whoAsks are the callers. The last ones are no caller and a sandbox's key.
func (f *fuzzed) whoAsks(who uint8) (key string, stranger bool) {
	switch who % 4 {
	case 0:
		return f.alice, true
	case 1:
		return f.root, false
	case 2:
		return "", true
	}
	return strings.NewReplacer(f.words...).Replace("{alice.key}"), true
}

// FuzzAPI sends an arbitrary request to any route of a server with two users' data. There must be
// no 5xx and no panic; the body matches its Content-Type; nothing of bob's is in it or in the log;
// and only an operator changes anything of bob's.
func FuzzAPI(f *testing.F) {
	table := routes()
	for i := range table {
		for who := range uint8(4) {
			f.Add(uint8(i), who, "{bob.sandbox}", "limit=1&ids={bob.conversation}&id={bob.sandbox}", "application/json", "k",
				[]byte(`{}`))
		}
		f.Add(uint8(i), uint8(0), "{alice.conversation}", "page_id=%ff&limit=101&stale", "text/plain", "",
			[]byte(`{"a":1,"a":2}`))
		f.Add(uint8(i), uint8(0), "../{bob.sandbox}", "sandbox_id={bob.sandbox}", "", "\x00", []byte("\xff"))
	}
	for i, r := range table {
		for _, c := range canaryBodies() {
			if c.path == r.path {
				f.Add(uint8(i), uint8(0), "", "", "application/json", "", []byte(c.body))
			}
		}
		if r.name == "conversation.start" {
			f.Add(uint8(i), uint8(0), "", "", "application/json", "k", []byte(everyStartField))
			// A number outside float64 once entered the log and stopped every node.
			f.Add(uint8(i), uint8(0), "", "", "application/json", "", []byte(`{"observability_metadata":{"a":1e999}}`))
			f.Add(uint8(i), uint8(0), "", "", "application/json", "",
				[]byte(`{"plugins":[{"source":"x","parameters":{"a":[-1e999]}}]}`))
			f.Add(uint8(i), uint8(0), "", "", "application/json", "",
				[]byte(`{"processors":[{"kind":"XCallbackProcessor","n":1e999}]}`))
			f.Add(uint8(i), uint8(0), "", "", "application/json", "k",
				[]byte(`{"parent_conversation_id":"{bob.conversation}","sandbox_id":"{bob.sandbox}"}`))
		}
	}
	f.Add(routeIndex("settings.put"), uint8(0), "", "", "application/json", "", []byte(contractSettings))
	f.Add(routeIndex("spec.apply"), uint8(1), "", "", "application/json", "",
		[]byte(`{"specs":[{"id":"x","template":{"driver":"docker","image":"i",`+
			`"ports":{"AGENT_SERVER":8000}}}],"replace":true}`))
	f.Add(routeIndex("user.configure"), uint8(1), "bob", "", "application/json", "",
		[]byte(`{"policy":{"idle_timeout":"1h"},"limits":{"cpu":-1}}`))
	f.Add(routeIndex("api_key.create"), uint8(1), "", "", "application/json", "x",
		[]byte(`{"user":"carol","name":"n","operator":true}`))
	f.Fuzz(func(t *testing.T, which, who uint8, param, query, contentType, idempotency string, body []byte) {
		h := newFuzzed(t)
		fill := strings.NewReplacer(h.words...)
		route := table[int(which)%len(table)]
		key, stranger := h.whoAsks(who)
		w := httptest.NewRecorder()
		r := newFuzzedRequest(route, fill.Replace(param), fill.Replace(query), []byte(fill.Replace(string(body))))
		for name, value := range map[string]string{
			"Content-Type":               contentType,
			request.HeaderIdempotencyKey: idempotency,
			proxy.HeaderKey:              key,
		} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		before, logged := h.bobs(t), len(h.logs.String())
		h.handler.ServeHTTP(w, r)
		checkAnswer(t, w, r.Method+" "+r.URL.Path)
		if log := h.logs.String()[logged:]; strings.Contains(log, bobsCanary) {
			t.Fatalf("bob's is in the log: %s", log)
		}
		if !stranger {
			return
		}
		asked := r.URL.Path + r.URL.RawQuery + string(body) + contentType + idempotency
		if strings.Contains(w.Body.String(), bobsCanary) && !strings.Contains(asked, bobsCanary) {
			t.Fatalf("bob's is in the answer: %s", w.Body)
		}
		if after := h.bobs(t); after != before {
			t.Fatalf("what is bob's was changed:\n%s\n%s", before, after)
		}
	})
}

func routeIndex(name string) uint8 {
	for i, r := range routes() {
		if r.name == name {
			return uint8(i)
		}
	}
	panic("no route " + name)
}

func newFuzzedRequest(route route, param, query string, body []byte) *http.Request {
	path := regexp.MustCompile(`[:*][a-z_]+`).ReplaceAllLiteralString(route.path, param)
	r := &http.Request{
		Method: route.method, URL: &url.URL{Path: path, RawQuery: query}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Host: "example.org", RemoteAddr: "192.0.2.1:1234", ContentLength: int64(len(body)),
		Body: io.NopCloser(bytes.NewReader(body)),
	}
	return r.WithContext(context.Background())
}

// checkAnswer fails on a 5xx and on an invalid response.
func checkAnswer(t *testing.T, w *httptest.ResponseRecorder, what string) {
	t.Helper()
	if w.Code >= 500 {
		t.Fatalf("%s: %d %s", what, w.Code, w.Body)
	}
	kind := w.Header().Get("Content-Type")
	switch {
	case w.Body.Len() == 0:
		if w.Code != http.StatusNoContent && w.Code != http.StatusOK {
			t.Fatalf("%s: %d without a body", what, w.Code)
		}
		if strings.HasPrefix(kind, "application/json") {
			t.Fatalf("%s: an empty body of %s", what, kind)
		}
	case strings.HasPrefix(kind, "application/json"):
		var v any // stricter than json.Valid: numbers must be decodable
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
			t.Fatalf("%s: no JSON (%v): %s", what, err, w.Body)
		}
	case kind == "":
		t.Fatalf("%s: a body of no kind: %s", what, w.Body)
	}
	if w.Code == http.StatusUnprocessableEntity {
		var b struct{ Detail json.RawMessage }
		if json.Unmarshal(w.Body.Bytes(), &b) != nil || len(b.Detail) == 0 {
			t.Fatalf("%s: a 422 without its detail: %s", what, w.Body)
		}
	}
}
