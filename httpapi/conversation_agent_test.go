package httpapi

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
)

// asked makes the fake agent server remember its calls.
func (h *harness) asked(answer func(q AgentRequest) ([]byte, error)) *[]string {
	var calls []string
	h.agents.mu.Lock()
	defer h.agents.mu.Unlock()
	h.agents.call = func(_ context.Context, url, key string, q AgentRequest) ([]byte, error) {
		calls = append(calls, strings.TrimSpace(sprint("%s %s %s %s %s", url, key, q.Method, q.Path, q.Body)))
		return answer(q)
	}
	return &calls
}

func TestConversationAgent_Calls(t *testing.T) {
	h := newHarness(t).withSpec()
	sb, conv, _, _ := h.talking()
	of, dashed, key := pathConversations+"/"+conv, decode.Dashed(conv), h.secrets.last(fsm.SandboxKeyPath(sb))["key"]
	acp := h.conversation("alice", sb, speaksACP)
	for _, c := range []struct{ method, path, body, want, calls string }{
		{
			"GET",
			of + "/git/changes?path=/w/app&ref=main",
			"",
			`[{"status":"UPDATED","path":"a.go"}]`,
			"GET /api/git/changes?path=%2Fw%2Fapp&ref=main",
		},
		{
			"GET",
			of + "/git/diff?path=/w/app/a.go",
			"",
			`{"modified":"b","original":null}`,
			"GET /api/git/diff?path=%2Fw%2Fapp%2Fa.go",
		},
		{"GET", of + "/file", "", `"# Plan\n"`, "GET /api/file/download?path=%2Fworkspace%2Fproject%2FPLAN.md"},
		{"GET", of + "/file?file_path=/a", "", `"# Plan\n"`, "GET /api/file/download?path=%2Fa"},
		{"GET", of + "/skills", "",
			`{"skills":[{"name":"a","type":"repo","content":"x","triggers":[]},{"name":"k","type":"knowledge",` +
				`"content":"y","triggers":["t"]}]}`,
			"GET /api/conversations/" + dashed + "\n" +
				`POST /api/skills {"load_org":false,"load_project":true,"load_public":false,"load_user":true,` +
				`"project_dir":"/workspace/project/app"}`},
		{"GET", of + "/hooks", "", `{"hooks":[{"event_type":"stop","matchers":[{"matcher":"*","hooks":[{"type":"command",` +
			`"command":"true","timeout":60,"async":false}]}]}]}`,
			"GET /api/conversations/" + dashed + "\n" + `POST /api/hooks {"project_dir":"/workspace/project/app"}`},
		{"POST", pathConversations + "/" + acp + "/switch_acp_model", `{"model":"m"}`, `{"success":true}`,
			"POST /api/conversations/" + decode.Dashed(acp) + `/switch_acp_model {"model":"m"}`},
	} {
		calls := h.asked(cannedAnswer)
		h.do(h.alice, c.method, c.path, c.body).want(t, 200).is(t, c.want)
		if got := strings.ReplaceAll(strings.Join(*calls, "\n"), "http://10.1.2.3:21000 "+key+" ", ""); got != c.calls {
			t.Errorf("%s called\n%s\nnot\n%s", c.path, got, c.calls)
		}
	}
}

// TestConversationAgent_SandboxThatDoesNotServe: what each route answers while the sandbox is paused
// or gone. None wakes it.
func TestConversationAgent_SandboxThatDoesNotServe(t *testing.T) {
	h := newHarness(t).withSpec()
	sb, _, _, _ := h.talking()
	conv := h.conversation("alice", sb, speaksACP)
	of := pathConversations + "/" + conv
	calls := h.asked(cannedAnswer)
	check := func(when string, want map[string]string) {
		t.Helper()
		for path, text := range want {
			method, body := "GET", ""
			if strings.HasSuffix(path, "switch_acp_model") {
				method, body = "POST", `{"model":"m"}`
			}
			res := h.do(h.alice, method, of+path, body)
			if got := sprint("%d %s", res.status, res.body); got != text {
				t.Errorf("%s, %s: %s, not %s", when, path, got, text)
			}
		}
	}
	h.do(h.alice, "POST", pathSandboxes+"/"+sb+"/pause", "").want(t, 200)
	h.observe(sb, fsm.SandboxStatus{State: fsm.SandboxPaused})
	check("paused", map[string]string{
		"/git/changes?path=/a": `409 {"detail":"Sandbox is paused; resume it before reading git state."}`,
		"/git/diff?path=/a":    `409 {"detail":"Sandbox is paused; resume it before reading git state."}`,
		"/file":                `200 ""`,
		"/skills":              `200 {"skills":[]}`,
		"/hooks":               `200 {"hooks":[]}`,
		"/download":            `503 {"detail":"Sandbox is PAUSED; its events can't be read now."}`,
		"/switch_acp_model":    `409 {"detail":"Sandbox is paused; resume it before switching the model."}`,
	})
	h.observe(sb, fsm.SandboxStatus{State: fsm.SandboxMissing})
	h.do(h.alice, "DELETE", pathSandboxes+"/"+sb, "").want(t, 200)
	h.observe(sb, fsm.SandboxStatus{State: fsm.SandboxMissing})
	check("gone", map[string]string{
		"/git/changes?path=/a": `404 {"detail":"Conversation ` + conv + ` is not reachable"}`,
		"/file":                `200 ""`,
		"/skills":              `200 {"skills":[]}`,
		"/download":            `503 {"detail":"Sandbox is MISSING; its events can't be read now."}`,
		"/switch_acp_model":    `409 {"detail":"Sandbox is MISSING; the model can't be switched now."}`,
	})
	if len(*calls) > 0 {
		t.Errorf("the agent server was called: %v", *calls)
	}
}

// TestConversationAgent_Failures: whatever an agent server answers, the caller gets an error of the
// API that names its status and nothing else of it.
func TestConversationAgent_Failures(t *testing.T) {
	h := newHarness(t).withSpec()
	sb, _, _, _ := h.talking()
	of := pathConversations + "/" + h.conversation("alice", sb, speaksACP)
	for _, c := range []struct {
		err              error
		body, want, acps string
	}{
		{
			&AgentError{Status: 404, Detail: "hush", Cause: errors.New("hush")},
			"",
			`502 Agent server error: 404`,
			`502 Agent server error: 404`,
		},
		{
			&AgentError{Status: 400, Detail: "no such model", Cause: errors.New("x")},
			"",
			`502 Agent server error: 400`,
			`400 The agent refused the model: no such model`,
		},
		{
			&AgentError{Cause: errors.New("hush")},
			"",
			`502 Failed to reach agent server.`,
			`502 Failed to reach agent server.`,
		},
		{
			&AgentError{Status: 200, Cause: errors.New("too large")},
			"",
			`502 Agent server returned unexpected response.`,
			`502 Agent server returned unexpected response.`,
		},
		{context.DeadlineExceeded, "", `502 Failed to reach agent server.`, `504 The agent server did not answer in time.`},
		{nil, `"hush"`, `502 Agent server returned unexpected response.`, ``},
	} {
		h.asked(func(AgentRequest) ([]byte, error) { return []byte(c.body), c.err })
		for _, path := range []string{
			"/git/changes?path=/a",
			"/git/diff?path=/a",
			"/skills",
			"/hooks",
			"/download",
			"/switch_acp_model",
		} {
			method, body, want := "GET", "", c.want
			if path == "/switch_acp_model" {
				method, body, want = "POST", `{"model":"m"}`, c.acps
			}
			var got struct{ Detail string }
			res := h.do(h.alice, method, of+path, body)
			if want == "" {
				continue
			}
			res.json(t, &got)
			if text := sprint("%d %s", res.status, got.Detail); text != want {
				t.Errorf("%v%s: %s: %s, not %s", c.err, c.body, path, text, want)
			}
		}
	}
	h.asked(func(AgentRequest) ([]byte, error) { return nil, &AgentError{Status: 404, Cause: errors.New("x")} })
	h.do(h.alice, "GET", of+"/file", "").want(t, 200).is(t, `""`)
	for path, want := range map[string]string{
		"/git/changes":               "query.path missing",
		"/git/diff?path=relative":    "query.path value_error",
		"/git/diff?path=/a&path=b/c": "query.path value_error",
	} {
		if got := strings.Join(summary(h.do(h.alice, "GET", of+path, "").problems(t)), " "); got != want {
			t.Errorf("%s: %s, not %s", path, got, want)
		}
	}
	h.do(h.alice, "POST", pathConversations+"/"+h.conversation("alice", sb)+"/switch_acp_model",
		`{"model":"m"}`).want(t, 400)
	h.do(h.alice, "POST", of+"/switch_acp_model", `{"model":""}`).want(t, 422)
	unknown := pathConversations + "/6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01"
	h.do(h.alice, "GET", unknown+"/skills", "").want(t, 404).is(t,
		`{"error":"Conversation not found","detail":"Conversation not found"}`)
	h.do(h.alice, "GET", unknown+"/download", "").want(t, 404).is(t, `{"detail":"Conversation not found"}`)
}

func TestConversationDownload(t *testing.T) {
	h := newHarness(t).withSpec()
	_, conv, _, _ := h.talking()
	of := pathConversations + "/" + conv + "/download"
	pages := map[string]string{
		"limit=50":             `too large`,
		"limit=1":              `{"items":[{"id":"e-1","n":1}],"next_page_id":"b"}`,
		"limit=1&page_id=b":    `{"items":[{"id":"../e/2","n":2}],"next_page_id":"c"}`,
		"limit=1&page_id=c":    `{"items":[],"next_page_id":"d"}`,
		"limit=50&page_id=lie": ``,
	}
	h.asked(func(q AgentRequest) ([]byte, error) {
		_, query, found := strings.Cut(q.Path, "/events/search?")
		if !found {
			return cannedAnswer(q)
		}
		if pages[query] == "too large" {
			return nil, &AgentError{Status: 200, Cause: errors.New("too large")}
		}
		return []byte(pages[query]), nil
	})
	res := h.do(h.alice, "GET", of, "").want(t, 200)
	if got, want := res.header.Get(
		"Content-Disposition",
	), "attachment; filename=conversation_"+decode.Dashed(
		conv,
	)+".zip"; got != want ||
		res.header.Get("Content-Type") != "application/zip" {
		t.Errorf("%v", res.header)
	}
	archive, err := zip.NewReader(bytes.NewReader(res.body), int64(len(res.body)))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range archive.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[f.Name] = string(text)
	}
	if meta := got["meta.json"]; !strings.Contains(meta, conv) || !strings.Contains(meta, `"session_api_key": null`) {
		t.Errorf("meta.json is %s", meta)
	}
	delete(got, "meta.json")
	if d := cmp.Diff(map[string]string{
		"event_000000_e-1.json": `{"id":"e-1","n":1}`,
		"event_000001_e2.json":  `{"id":"../e/2","n":2}`,
	}, got); d != "" {
		t.Error(d)
	}
	h.asked(func(AgentRequest) ([]byte, error) { return []byte("10001"), nil })
	h.do(h.alice, "GET", of, "").want(t, http.StatusRequestEntityTooLarge)
	h.server.downloads.Store("alice/"+conv, true)
	h.asked(cannedAnswer)
	h.do(h.alice, "GET", of, "").want(t, http.StatusConflict)
}

// A download that breaks off is no whole answer, and leaves room for the next.
func TestConversationDownload_BreaksOff(t *testing.T) {
	h := newHarness(t).withSpec()
	_, conv, _, _ := h.talking()
	h.asked(func(q AgentRequest) ([]byte, error) {
		if strings.Contains(q.Path, "/events/search") {
			return nil, &AgentError{Status: 500, Cause: errors.New("away")}
		}
		return cannedAnswer(q)
	})
	func() {
		defer func() {
			if r := recover(); r != http.ErrAbortHandler { //nolint:errorlint // net/http compares it
				t.Errorf("the handler ended with %v", r)
			}
		}()
		h.do(h.alice, "GET", pathConversations+"/"+conv+"/download", "")
	}()
	h.asked(cannedAnswer)
	h.do(h.alice, "GET", pathConversations+"/"+conv+"/download", "").want(t, 200)
}
