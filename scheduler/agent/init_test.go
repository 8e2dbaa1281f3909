package agent

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestClient_Init(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    []error
	}{
		"ready":        {answer(200, `{"state":"ready","error":null}`), []error{nil}},
		"not dormant":  {answer(400, `{"detail":"no"}`), []error{ErrNotDormant, ErrRefused}},
		"wrong key":    {answer(401, `{}`), []error{ErrUnauthorized}},
		"not deferred": {answer(404, `{}`), []error{ErrNotDeferred, ErrRefused}},
		"old server":   {answer(405, `{}`), []error{ErrNotDeferred, ErrRefused}},
		"invalid": {
			answer(422, `{"detail":[{"loc":["body","env"],"msg":"bad","input":"CANARY"}]}`),
			[]error{ErrRefused},
		},
		"rolled back": {answer(500, `{"detail":"Internal Server Error"}`), []error{ErrUnavailable}},
		"no state":    {answer(200, `{}`), []error{ErrBadAnswer}},
	} {
		client, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == ProofPath {
				answer(404, `{}`)(w, r)
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			want := `{"session_api_keys":["SESSIONCANARY"],` +
				`"webhooks":[{"base_url":"http://cp/api/v1/webhooks"}],"env":{"A":"ENVCANARY"}}`
			if r.URL.Path != "/api/init" || r.Method != "POST" || r.Header.Get(InitKeyHeader) != key ||
				r.Header.Get(KeyHeader) != "" || string(body) != want {
				t.Errorf("%s: %s %s %v %s", name, r.Method, r.URL, r.Header, body)
			}
			c.handler(w, r)
		})
		err := client.Init(t.Context(), url, key, InitRequest{
			SessionAPIKeys: []string{"SESSIONCANARY"}, Env: map[string]string{"A": "ENVCANARY"},
			Webhooks: []InitWebhook{{BaseURL: "http://cp/api/v1/webhooks"}},
		})
		for _, want := range c.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
		if err != nil && strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: a secret in %v", name, err)
		}
	}
}

func TestClient_InitState(t *testing.T) {
	for body, want := range map[string]error{
		`{"state":"dormant","error":null}`: nil, `{"state":"ready"}`: nil, `{"state":"initializing"}`: nil,
		`{"state":"other"}`: ErrBadAnswer, `{}`: ErrBadAnswer,
	} {
		client, url := serve(t, answer(200, body))
		state, err := client.InitState(t.Context(), url)
		if !errors.Is(err, want) || (want == nil && !strings.Contains(body, state)) {
			t.Errorf("%s: %s, %v", body, state, err)
		}
	}
	client, url := serve(t, answer(404, `{"detail":"Not Found"}`))
	if _, err := client.InitState(t.Context(), url); !errors.Is(err, ErrNotDeferred) {
		t.Error(err)
	}
}

func TestClient_ServerInfo(t *testing.T) {
	client, url := serve(t, answer(200, `{"uptime":90,"idle_time":7.5,"version":"v1"}`))
	info, err := client.ServerInfo(t.Context(), url)
	if err != nil || info != (ServerInfo{Uptime: 90 * time.Second, Idle: 7500 * time.Millisecond, Version: "v1"}) {
		t.Errorf("%+v, %v", info, err)
	}
	for _, body := range []string{
		`{}`,
		`{"uptime":1}`,
		`{"uptime":1,"idle_time":-1}`,
		`{"uptime":1,"idle_time":1e300}`,
		`{"uptime":"1","idle_time":1}`,
	} {
		client, url := serve(t, answer(200, body))
		if info, err := client.ServerInfo(t.Context(), url); !errors.Is(err, ErrBadAnswer) {
			t.Errorf("%s: %+v, %v", body, info, err)
		}
	}
}

func TestClient_Download(t *testing.T) {
	for body, c := range map[string]struct {
		status int
		want   error
		none   bool
	}{
		"content": {200, nil, false}, "": {200, nil, false}, strings.Repeat("x", 1001): {200, ErrBadAnswer, false},
		`{"detail":"File not found"}`: {
			404,
			ErrNoFile,
			true,
		}, `{"detail":"Not Found"}`: {404, ErrRefused, false}, `{"detail":"Path is not a file"}`: {400, ErrRefused, false},
	} {
		client, url := serve(t, guarded(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/api/file/download" || r.URL.Query().Get("path") != "/w/.mark er" {
				t.Error(r.URL)
			}
			answer(c.status, body)(w, r)
		}))
		got, err := client.Download(t.Context(), url, key, "/w/.mark er")
		if !errors.Is(err, c.want) || errors.Is(err, ErrNoFile) != c.none || (c.want == nil && string(got) != body) {
			t.Errorf("%d %.30s: %q, %v", c.status, body, got, err)
		}
	}
}

// working is a server whose conversations run until they are paused or, the stubborn ones,
// interrupted.
type working struct {
	mu       sync.Mutex
	running  []string
	stubborn map[string]bool
	calls    []string
}

func (s *working) handle(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodGet {
		from := 0
		if p := r.URL.Query().Get("page_id"); p != "" {
			_, _ = fmt.Sscan(p, &from)
		}
		to := min(from+2, len(s.running))
		items := []string{`{"id":"x","execution_status":"idle"}`}
		for _, id := range s.running[from:to] {
			items = append(items, `{"id":"`+id+`","execution_status":"running"}`)
		}
		next := "null"
		if to < len(s.running) {
			next = fmt.Sprintf(`"%d"`, to)
		}
		fmt.Fprintf(w, `{"items":[%s],"next_page_id":%s}`, strings.Join(items, ","), next)
		return
	}
	s.calls = append(s.calls, strings.TrimPrefix(r.URL.RequestURI(), "/api/conversations/"))
	id, what, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/api/conversations/"), "/")
	if what == "interrupt" || (what == "pause" && !s.stubborn[id]) {
		for i, v := range s.running {
			if v == id {
				s.running = append(s.running[:i:i], s.running[i+1:]...)
				break
			}
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

func TestClient_PauseAll(t *testing.T) {
	s := &working{running: []string{"a", "b", "c", "d", "e"}, stubborn: map[string]bool{"c": true}}
	_, url := serve(t, guarded(s.handle))
	client := New(Config{PauseTimeout: 3 * time.Second})
	defer client.Close()
	did, err := client.PauseAll(t.Context(), url, key, false)
	if err != nil || did != (Paused{Conversations: 5, Interrupted: 1}) {
		t.Errorf("%+v, %v", did, err)
	}
	if got := strings.Join(s.calls,
		" "); got != "a/pause b/pause c/pause d/pause e/pause c/interrupt prepare-for-sandbox-pause" {
		t.Error(got)
	}
	// What nobody asked to pause goes on by itself.
	s.calls, s.running = nil, []string{"a", "c"}
	if _, err := client.PauseAll(t.Context(), url, key, true); err != nil || strings.Join(s.calls, " ") !=
		"a/pause?resume=true c/pause?resume=true c/interrupt?resume=true prepare-for-sandbox-pause" {
		t.Error(s.calls, err)
	}
	// Nothing to pause: one listing and the preparation.
	s.calls = nil
	if did, err := client.PauseAll(t.Context(), url, key, false); err != nil || did != (Paused{}) || len(s.calls) != 1 {
		t.Errorf("%+v, %v, %v", did, err, s.calls)
	}
}

func TestClient_PauseAllEndsInTime(t *testing.T) {
	client := New(Config{PauseTimeout: 200 * time.Millisecond, ProbeTimeout: 200 * time.Millisecond})
	defer client.Close()
	never := &working{running: []string{"a"}}
	_, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusBadRequest) // a conversation that ended meanwhile is no error
			return
		}
		never.handle(w, r)
	})
	begin := time.Now()
	did, err := client.PauseAll(t.Context(), url, key, false)
	if did.StillRunning != 1 || err == nil || time.Since(begin) > 5*time.Second {
		t.Errorf("runs on: %+v, %v, %s", did, err, time.Since(begin))
	}
	gone := New(Config{
		Transport: roundTrip(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }),
	})
	if _, err := gone.PauseAll(t.Context(), "http://127.0.0.1:1", key, false); !errors.Is(err, ErrUnreachable) {
		t.Errorf("unreachable: %v", err)
	}
	hang := make(chan struct{})
	defer close(hang)
	_, url = serve(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	begin = time.Now()
	if _, err := client.PauseAll(t.Context(), url, key, false); !errors.Is(err, ErrUnreachable) ||
		time.Since(begin) > 5*time.Second {
		t.Errorf("hanging: %v, %s", err, time.Since(begin))
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
