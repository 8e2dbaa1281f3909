package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/httpapi/requestid"
)

const key = "KEYCANARY"

// serve handles every request with fn.
func serve(t *testing.T, fn http.HandlerFunc) (*Client, string) {
	t.Helper()
	s := httptest.NewServer(fn)
	t.Cleanup(s.Close)
	c := New(Config{ProbeTimeout: 5 * time.Second, MaxBody: 1000})
	t.Cleanup(c.Close)
	return c, s.URL
}

func guarded(fn http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(KeyHeader) != key {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"detail":"Unauthorized"}`)
			return
		}
		fn(w, r)
	}
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

func TestClient_Prove(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    error
	}{
		"ours":            {guarded(answer(200, "3")), nil},
		"another's":       {answer(401, `{}`), ErrUnauthorized},
		"open":            {answer(200, "3"), ErrNotOurs},
		"open to the key": {answer(403, "no"), ErrUnauthorized},
		"not a server":    {answer(404, "no"), ErrRefused},
		"failing":         {answer(503, "no"), ErrUnavailable},
		"redirecting": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, ErrBadAnswer},
	} {
		client, url := serve(t, c.handler)
		if _, err := client.Prove(t.Context(), url, key, false); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestClient_ProveShowsTheKeyToNoOpenServer(t *testing.T) {
	client, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(KeyHeader) != "" {
			t.Error("the key was shown")
		}
		fmt.Fprint(w, "1")
	})
	if _, err := client.Prove(t.Context(), url, key, false); !errors.Is(err, ErrNotOurs) {
		t.Error(err)
	}
}

// TestClient_ProveShowsTheKeyToNoStranger: a stranger refuses the call without a key, as the
// sandbox's server does, and waits for the key.
func TestClient_ProveShowsTheKeyToNoStranger(t *testing.T) {
	for name, c := range map[string]struct {
		proof http.HandlerFunc
		want  error
	}{
		"a wrong proof":    {answer(200, `{"proofs":["`+strings.Repeat("0", 64)+`"]}`), ErrNotOurs},
		"no proof at all":  {answer(200, `{"proofs":[]}`), ErrNotOurs},
		"an unknown route": {answer(404, `{"detail":"Not Found"}`), ErrUnproven},
		"a key wanted":     {answer(401, `{"detail":"Unauthorized"}`), ErrUnproven},
		"a page":           {answer(200, "<html>"), ErrUnproven},
	} {
		client, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if text := fmt.Sprint(r.Header, r.URL); strings.Contains(text, key) {
				t.Errorf("%s: %s shows the key to a stranger", name, r.URL.Path)
			}
			if r.URL.Path == ProofPath {
				c.proof(w, r)
				return
			}
			answer(401, `{"detail":"Unauthorized"}`)(w, r)
		})
		if _, err := client.Prove(t.Context(), url, key, true); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestClient_InitShowsNoKeyToAStranger: a stranger says that it is dormant and waits for the keys.
func TestClient_InitShowsNoKeyToAStranger(t *testing.T) {
	client, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == ProofPath:
			answer(200, `{"proofs":["x"]}`)(w, r)
		case r.Method == http.MethodPost:
			t.Error("the keys were shown to a stranger")
		default:
			answer(200, `{"state":"dormant","error":null}`)(w, r)
		}
	})
	if err := client.Init(t.Context(), url, key, InitRequest{SessionAPIKeys: []string{"a"}}); !errors.Is(err, ErrNotOurs) {
		t.Error(err)
	}
}

// TestClient_InitShowsNoKeyWithoutAChallenge: a stranger knows no challenge and says that it is
// dormant.
func TestClient_InitShowsNoKeyWithoutAChallenge(t *testing.T) {
	shown := 0
	client, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == ProofPath:
			answer(404, `{"detail":"Not Found"}`)(w, r)
		case r.Method == http.MethodPost:
			shown++
			answer(200, `{"state":"ready","error":null}`)(w, r)
		default:
			answer(200, `{"state":"dormant","error":null}`)(w, r)
		}
	})
	req := InitRequest{SessionAPIKeys: []string{"a"}, BuiltIn: true}
	if err := client.Init(t.Context(), url, key, req); !errors.Is(err, ErrUnproven) || shown > 0 {
		t.Errorf("%v, the keys were shown %d times", err, shown)
	}
	req.BuiltIn = false
	if err := client.Init(t.Context(), url, key, req); err != nil || shown != 1 {
		t.Errorf("another's server: %v, the keys were shown %d times", err, shown)
	}
}

func TestClient_KeyFollowsNoRedirect(t *testing.T) {
	other := httptest.NewServer(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }),
	)
	defer other.Close()
	client, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	if _, _, err := client.CreateConversation(t.Context(), url, key, CreateRequest{}); !errors.Is(err, ErrBadAnswer) {
		t.Error(err)
	}
}

func TestClient_ErrorsAreBoundedAndHoldNoSecret(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		kind    error
		want    string
	}{
		"validation": {
			answer(422, `{"detail":[{"loc":["body","llm",3],"msg":"bad","input":"LLMCANARY","ctx":{"x":"CANARY"}}]}`),
			ErrRefused,
			"body.llm.3: bad",
		},
		"text":    {answer(400, `{"detail":"Bad\nRequest"}`), ErrRefused, "Bad Request"},
		"object":  {answer(422, `{"detail":{"message":"dangling","refs":["CANARY"]}}`), ErrRefused, "dangling"},
		"rubbish": {answer(500, `<html>CANARY`), ErrUnavailable, "status 500"},
		"long":    {answer(400, `{"detail":"`+strings.Repeat("é", 400)+`"}`), ErrRefused, "é…"},
		"huge":    {answer(200, strings.Repeat(" ", 2000)), ErrBadAnswer, "larger than 1000 bytes"},
		"no JSON": {answer(200, "CANARY"), ErrBadAnswer, "not the JSON"},
		"breaks off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "{")
		}, ErrUnreachable, ""},
	} {
		client, url := serve(t, c.handler)
		_, _, err := client.CreateConversation(t.Context(), url, key,
			CreateRequest{AgentSettings: AgentSettings{LLM: LLM{APIKey: "LLMCANARY"}}})
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "CANARY") ||
			len(err.Error()) > 700 {
			t.Errorf("%s: %v", name, err)
		}
	}
	client := New(Config{})
	err := client.Health(t.Context(), "http://127.0.0.1:1")
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("nobody there: %v", err)
	}
	if err := client.Health(t.Context(), "://"); !errors.Is(err, ErrUnreachable) {
		t.Errorf("no URL: %v", err)
	}
}

func TestClient_TimesAreBounded(t *testing.T) {
	release := make(chan struct{})
	client, url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	client.cfg.ProbeTimeout = 10 * time.Millisecond
	if err := client.Health(t.Context(), url); !errors.Is(err, ErrUnreachable) ||
		!strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("slow: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := client.Health(ctx, url); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestClient_Calls(t *testing.T) {
	var seen []string
	client, url := serve(t, guarded(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		seen = append(seen, r.Method+" "+r.URL.RequestURI()+" "+string(b))
		switch {
		case strings.HasSuffix(r.URL.Path, "/prepare-for-sandbox-pause"):
			w.WriteHeader(http.StatusMethodNotAllowed)
		case r.URL.Path == "/api/conversations" && r.Method == http.MethodGet:
			fmt.Fprint(w, `[{"id":"6F0C4E3B-9A7D-4C1E-8F2B-5A6D7C8E9F01","execution_status":"idle"},null]`)
		case strings.HasSuffix(r.URL.Path, "/count"):
			fmt.Fprint(w, `4`)
		case r.Method == http.MethodPost && r.URL.Path == "/api/conversations":
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"id":"x"}`)
		default:
			fmt.Fprint(w, `{"success":true}`)
		}
	}))
	ctx := t.Context()
	infos, err := client.Conversations(ctx, url, key, []string{"a", "b"})
	if err != nil || infos[0].HexID() != "6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01" || infos[1] != nil {
		t.Errorf("Conversations: %+v, %v", infos, err)
	}
	if _, err := client.Conversations(ctx, url, key, []string{"a"}); !errors.Is(err, ErrBadAnswer) {
		t.Errorf("another number of answers: %v", err)
	}
	if _, err := client.Conversations(ctx, url, key, make([]string, 100)); !errors.Is(err, ErrRefused) {
		t.Errorf("100 ids: %v", err)
	}
	if l, err := client.Conversations(ctx, url, key, nil); l != nil || err != nil {
		t.Errorf("no ids: %v, %v", l, err)
	}
	if n, err := client.CountEvents(ctx, url, key, "../x", ""); n != 4 || err != nil {
		t.Errorf("CountEvents: %d, %v", n, err)
	}
	if err := client.Pause(ctx, url, key, "a"); err != nil {
		t.Errorf("Pause: %v", err)
	}
	if err := client.PreparePause(ctx, url, key); err != nil {
		t.Errorf("PreparePause of an old server: %v", err)
	}
	if err := client.PreparePause(ctx, url, "wrong"); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("PreparePause with a wrong key: %v", err)
	}
	_, created, err := client.CreateConversation(ctx, url, key,
		CreateRequest{ConversationID: "i", Observability: &ObservabilityMeta{SpanName: "s"}})
	if err != nil || !created {
		t.Errorf("CreateConversation: %v, %v", created, err)
	}
	all := strings.Join(seen, "\n")
	for _, want := range []string{"GET /api/conversations?ids=a&ids=b", "/api/conversations/..%2Fx/events/count",
		"POST /api/conversations/a/pause",
		`"observability_span_name":"s"`, `"conversation_id":"i"`} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s in\n%s", want, all)
		}
	}
}

func TestClient_RunCommandFollowsItsOutput(t *testing.T) {
	polls := 0
	client, url := serve(t, guarded(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/start_bash_command") {
			var in map[string]any
			_ = json.NewDecoder(r.Body).Decode(&in)
			if in["command"] != "make" || in["timeout"] != 7.0 || in["cwd"] != "/w" {
				t.Errorf("started %v", in)
			}
			fmt.Fprint(w, `{"id":"c1"}`)
			return
		}
		polls++
		switch r.URL.Query().Get("order__gt") {
		case "":
			if polls == 1 {
				fmt.Fprint(w, `{"items":[]}`)
				return
			}
			fmt.Fprint(w, `{"items":[{"order":0,"stdout":"a","exit_code":null},{"order":1,"stdout":"b","stderr":"e"}]}`)
		case "1":
			// The previous event again, as from servers without order__gt.
			fmt.Fprint(w, `{"items":[{"order":1,"stdout":"b"},{"order":2,"exit_code":3}]}`)
		}
	}))
	out, err := client.RunCommand(t.Context(), url, key, Command{Command: "make", Dir: "/w", Timeout: 7 * time.Second})
	if err != nil || out != (Output{ExitCode: 3, Stdout: "ab", Stderr: "e"}) {
		t.Errorf("%+v, %v", out, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	never, nurl := serve(t, answer(200, `{"id":"x","items":[]}`))
	if _, err := never.RunCommand(ctx, nurl, key, Command{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command without end: %v", err)
	}
}

func TestClient_Upload(t *testing.T) {
	client, url := serve(t, guarded(func(w http.ResponseWriter, r *http.Request) {
		f, _, err := r.FormFile("file")
		if err != nil {
			t.Error(err)
			return
		}
		b, _ := io.ReadAll(f)
		if string(b) != "content" || r.URL.Query().Get("path") != "/a b" {
			t.Errorf("%q to %q", b, r.URL.Query().Get("path"))
		}
	}))
	if err := client.Upload(t.Context(), url, key, "/a b", []byte("content")); err != nil {
		t.Error(err)
	}
}

func TestIDs(t *testing.T) {
	const hex, dashed = "6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01", "6f0c4e3b-9a7d-4c1e-8f2b-5a6d7c8e9f01"
	if DashedID(hex) != dashed || HexID(strings.ToUpper(dashed)) != hex || DashedID("x") != "x" {
		t.Error(DashedID(hex), HexID(dashed))
	}
}

// An empty text or list is still encoded, because the block's type requires it.
func TestContentBlock_HasWhatItsTypeNeeds(t *testing.T) {
	for want, b := range map[string]ContentBlock{
		`{"type":"text","text":"","cache_prompt":false}`:        {Type: "text"},
		`{"type":"text","text":"x","cache_prompt":true}`:        {Type: "text", Text: "x", CachePrompt: true},
		`{"type":"image","image_urls":[],"cache_prompt":false}`: {Type: "image"},
		`{"type":"image","image_urls":["u"],"cache_prompt":true}`: {
			Type:        "image",
			ImageURLs:   []string{"u"},
			CachePrompt: true,
		},
	} {
		if got, err := json.Marshal(b); err != nil || string(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}

// TestClient_SendsTheRequestsID: the calls of an API request have its id, other calls none.
func TestClient_SendsTheRequestsID(t *testing.T) {
	var got []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get(requestid.Header))
		_, _ = w.Write([]byte("{}"))
	}))
	t.Cleanup(s.Close)
	c := New(Config{})
	for _, ctx := range []context.Context{t.Context(), requestid.With(t.Context(), "req-7")} {
		if err := c.PreparePause(ctx, s.URL, "k"); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, []string{"", "req-7"}) {
		t.Errorf("%q", got)
	}
}

// TestClient_EventsAreBounded: what an agent server answers takes memory within bounds, however few events
// were asked for.
func TestClient_EventsAreBounded(t *testing.T) {
	t.Parallel()
	many := `{"items":[` + strings.Repeat(`{"id":"e"},`, eventsPage) + `{"id":"e"}],"next_page_id":null}`
	large := `{"items":[{"id":"` + strings.Repeat("x", oneEvent) + `"}],"next_page_id":null}`
	for name, c := range map[string]struct {
		body string
		want error
	}{
		"none":        {`{"items":null,"next_page_id":null}`, nil},
		"one":         {`{"items":[{"id":"e"}],"next_page_id":"f"}`, nil},
		"more":        {many, ErrBadAnswer},
		"no list":     {`{"items":"e"}`, ErrBadAnswer},
		"a large one": {large, ErrTooLarge},
	} {
		client, url := serve(t, answer(200, c.body))
		list, next, err := client.Events(t.Context(), url, key, "c", "")
		if !errors.Is(err, c.want) || name == "one" && (len(list) != 1 || next != "f") {
			t.Errorf("%s: %d events, next %q, %v, want %v", name, len(list), next, err, c.want)
		}
		if _, err := client.NewestEvent(t.Context(), url, key, "c"); !errors.Is(err, c.want) {
			t.Errorf("%s: the newest one: %v, want %v", name, err, c.want)
		}
	}
	if oneEvent > 16<<20 {
		t.Errorf("one event may have %d bytes", oneEvent)
	}
}
