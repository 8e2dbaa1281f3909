package agentserver

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/scheduler/agent"
)

const initKey = "INITCANARY0123456789"

// dormant is a deferred server on a real HTTP server.
func dormant(t *testing.T, edit func(*config.Config)) (*Deferred, string) {
	t.Helper()
	cfg := config.Config{
		Deferred:          true,
		SecretKey:         initKey,
		ConversationsPath: filepath.Join(t.TempDir(), "c"),
		Version:           "test",
	}
	if edit != nil {
		edit(&cfg)
	}
	d, err := NewDeferred(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(d.Handler())
	t.Cleanup(func() {
		h.Close()
		if s := d.current(); s != nil {
			s.bash.Close()
		}
	})
	return d, h.URL
}

// initCall sends POST /api/init.
func initCall(t *testing.T, url, key, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", url+config.InitPath, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set(agent.InitKeyHeader, key)
	}
	rec := httptest.NewRecorder()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := rec.Body.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, rec.Body.String()
}

const initBody = `{"session_api_keys":["` + testKey + `"],"webhooks":[{"base_url":"http://x"}],` +
	`"web_url":null,"max_concurrent_runs":3,"telemetry":{"any":1},"env":{"GREETING":"hi","OH_SECRET_KEY":"no"}}`

func TestDeferred_DormantUntilInit(t *testing.T) {
	_, url := dormant(t, nil)
	for path, want := range map[string]string{
		"/health": `200 {"status":"ok"}`, "/alive": `200 {"status":"ok"}`,
		"/ready":                   `503 {"message":"waiting for POST /api/init","status":"initializing"}`,
		"/api/init":                `200 {"state":"dormant","error":null}`,
		"/api/conversations/count": `503 {"detail":"The server is not initialised yet"}`,
		"/sockets/events/x":        `503 {"detail":"The server is not initialised yet"}`,
		"/nothing":                 `404 {"detail":"Not Found"}`,
	} {
		if status, body := call(t, "GET", url+path, "", ""); fmt.Sprint(status, " ", body) != want {
			t.Errorf("GET %s: %d %s, want %s", path, status, body, want)
		}
	}
	if status, body := call(t, "GET", url+"/server_info", "", ""); status != 200 ||
		!strings.Contains(body, `"idle_time":0`) {
		t.Errorf("server_info: %d %s", status, body)
	}
	for _, key := range []string{"", "wrong", initKey + "x", testKey} {
		if status, _ := initCall(t, url, key, initBody); status != 401 {
			t.Errorf("init with key %q: %d", key, status)
		}
	}
	if status, body := initCall(t, url, initKey, initBody); status != 200 || body != `{"state":"ready","error":null}` {
		t.Fatalf("init: %d %s", status, body)
	}
	if status, body := initCall(t, url, initKey, initBody); status != 400 {
		t.Errorf("init again: %d %s", status, body)
	}
	if status, _ := initCall(t, url, "wrong", initBody); status != 401 {
		t.Errorf("init again with a wrong key: %d", status)
	}
	for path, want := range map[string]string{
		"/ready":    `{"status":"ready"}`,
		"/api/init": `{"state":"ready","error":null}`,
	} {
		if status, body := call(t, "GET", url+path, "", ""); status != 200 || body != want {
			t.Errorf("GET %s: %d %s", path, status, body)
		}
	}
	if status, _ := call(t, "GET", url+"/api/conversations/count", "", ""); status != 401 {
		t.Errorf("without a key: %d", status)
	}
	if status, body := call(t, "POST", url+"/api/bash/execute_bash_command", testKey,
		`{"command":"echo $GREETING$OH_SECRET_KEY"}`); status != 200 || !strings.Contains(body, `"hi\n"`) {
		t.Errorf("a command's environment: %d %s", status, body)
	}
}

func TestDeferred_BadBodies(t *testing.T) {
	_, url := dormant(t, nil)
	for body, want := range map[string]string{
		`{"session_api_keys":["k"],"surprise":"CANARY"}`:     "extra_forbidden",
		`{"session_api_keys":"CANARY"}`:                      "list_type",
		`{"session_api_keys":[7]}`:                           "string_type",
		`{"session_api_keys":[""]}`:                          "must not be empty",
		`{}`:                                                 "a session key is required",
		`{"session_api_keys":["k"],"secret_key":["CANARY"]}`: "string_type",
		`{"session_api_keys":["k"],"env":{"A":7}}`:           "string_type",
		`{"session_api_keys":["k"],"env":["CANARY"]}`:        "model_attributes_type",
		`{"session_api_keys":["k"],"webhooks":["CANARY"]}`:   "model_attributes_type",
		`{"session_api_keys":["k"],"max_concurrent_runs":0}`: "greater_than",
		`{"session_api_keys":["k"],"web_url":7}`:             "string_type",
		`[]`:                                                 "model_attributes_type",
		`{`:                                                  "json_invalid",
		``:                                                   "missing",
	} {
		status, text := initCall(t, url, initKey, body)
		if status != 422 || !strings.Contains(text, want) || strings.Contains(text, "CANARY") {
			t.Errorf("%s: %d %s, want %s", body, status, text, want)
		}
	}
	if _, body := call(t, "GET", url+config.InitPath, "", ""); body != `{"state":"dormant","error":null}` {
		t.Errorf("afterwards: %s", body)
	}
	if status, _ := call(t, "DELETE", url+config.InitPath, "", ""); status != 405 {
		t.Errorf("DELETE: %d", status)
	}
}

func TestDeferred_FailureIsRolledBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, url := dormant(t, nil)
	status, body := initCall(t, url, initKey, `{"session_api_keys":["k"],"conversations_path":"`+file+`/x"}`)
	if status != 500 || strings.Contains(body, file) {
		t.Errorf("%d %s", status, body)
	}
	if _, body := call(t, "GET", url+config.InitPath, "",
		""); !strings.HasPrefix(body, `{"state":"dormant","error":"initialisation failed`) || strings.Contains(body, file) {
		t.Errorf("after the failure: %s", body)
	}
	if status, body := initCall(t, url, initKey, initBody); status != 200 {
		t.Errorf("again: %d %s", status, body)
	}
	if _, body := call(t, "GET", url+config.InitPath, "", ""); body != `{"state":"ready","error":null}` {
		t.Errorf("in the end: %s", body)
	}
}

func TestDeferred_OpenWithoutSecretKey(t *testing.T) {
	_, url := dormant(t, func(c *config.Config) { c.SecretKey, c.Host = "", "127.0.0.1" })
	if status, body := initCall(t, url, "", `{}`); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	for _, c := range []struct {
		cfg  config.Config
		want string
	}{{
		config.Config{Deferred: true},
		"127.0.0.1",
	}, {config.Config{Deferred: true, SecretKey: "s"}, "0.0.0.0"}, {config.Config{SecretKey: "s"}, "127.0.0.1"}} {
		if got := c.cfg.BindHost(); got != c.want {
			t.Errorf("%+v binds %s", c.cfg, got)
		}
	}
	for _, v := range []string{"1", "TRUE", "0", ""} {
		if cfg, err := config.FromEnv([]string{"OH_DEFERRED_INIT=" + v}); err != nil ||
			cfg.Deferred != (v == "1" || v == "TRUE") {
			t.Errorf("OH_DEFERRED_INIT=%s: %v, %v", v, cfg.Deferred, err)
		}
	}
	if _, err := config.FromEnv([]string{"OH_DEFERRED_INIT=perhaps"}); err == nil {
		t.Error("OH_DEFERRED_INIT=perhaps is taken")
	}
}

func TestDeferred_NotInThisMode(t *testing.T) {
	s := newServer(t)
	if status, _ := call(t, "GET", s.url+config.InitPath, "", ""); status != 404 {
		t.Errorf("GET: %d", status)
	}
	if status, _ := initCall(t, s.url, "SEALCANARY", initBody); status != 404 {
		t.Errorf("POST: %d", status)
	}
}

func TestDeferred_ManyCallersInitialiseOnce(t *testing.T) {
	_, url := dormant(t, nil)
	var mu sync.Mutex
	won := map[int]string{}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			key := fmt.Sprintf("key-%d", i)
			status, body := initCall(t, url, initKey, `{"session_api_keys":["`+key+`"]}`)
			if status == 200 {
				mu.Lock()
				won[i] = key
				mu.Unlock()
			} else if status != 400 {
				t.Errorf("%d %s", status, body)
			}
			// In no state does it accept a request without the key.
			if status, _ := call(t, "GET", url+"/api/conversations/count", "", ""); status != 401 && status != 503 {
				t.Errorf("without a key: %d", status)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d callers initialised it: %v", len(won), won)
	}
	for i := range 8 {
		want := 401
		if _, ok := won[i]; ok {
			want = 200
		}
		if status, _ := call(t, "GET", url+"/api/conversations/count", fmt.Sprintf("key-%d", i), ""); status != want {
			t.Errorf("key %d: %d, want %d", i, status, want)
		}
	}
}

func TestProgram_DeferredIsDormantAgainAfterKill(t *testing.T) {
	bin, dir := build(t), t.TempDir()
	env := []string{
		"OH_DEFERRED_INIT=1",
		"OH_SECRET_KEY=" + initKey,
		"OH_BASH_EVENTS_DIR=" + filepath.Join(dir, "bash_events"),
	}
	conversations := filepath.Join(dir, "conversations")
	p := runProgram(t, bin, conversations, env...)
	for i := range 3 {
		if status, body := call(t, "GET", p.url+"/api/conversations/count", testKey, ""); status != 503 {
			t.Fatalf("start %d: not dormant: %d %s", i, status, body)
		}
		if status, body := initCall(t, p.url, initKey, initBody); status != 200 {
			t.Fatalf("start %d: %d %s", i, status, body)
		}
		want := 200
		if i == 0 {
			want = 201
		}
		if status, body := call(t, "POST", p.url+"/api/conversations", testKey, createBody(t, convUID)); status != want {
			t.Fatalf("start %d: %d %s", i, status, body)
		}
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = p.cmd.Wait()
		p = runProgram(t, bin, conversations, env...)
	}
	searchDir(t, dir)
}
