package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// operatorsAPI answers an operator's calls about what users have, and records them.
func operatorsAPI(t *testing.T) (env map[string]string, asked func() string) {
	t.Helper()
	var calls []string
	const sandbox = `{"id":"sb1","user_id":"ada","sandbox_spec_id":"small","status":"ERROR","status_detail":"no room",` +
		`"isolation":"standard","nomad_client":null,"created_at":"2026-11-23T01:02:03Z"}`
	const talk = `{"id":"c%d","user_id":"ada","sandbox_id":"sb1","title":%s,"created_at":"2026-11-23T01:02:03Z",` +
		`"updated_at":"2026-11-23T01:02:04Z"}`
	mux := http.NewServeMux()
	answer := func(pattern, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			calls = append(calls, r.Method+" "+r.URL.RequestURI())
			fmt.Fprint(w, body)
		})
	}
	answer("GET /api/v1/operator/sandboxes/sb1", sandbox)
	answer("GET /api/v1/operator/sandboxes/sb1/logs", "a line\n")
	answer("GET /api/v1/operator/app-conversations/c1", fmt.Sprintf(talk, 1, `"A title"`))
	answer("DELETE /api/v1/operator/app-conversations/c1", `{"success":true}`)
	mux.HandleFunc("GET /api/v1/operator/usage", func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, r.Method+" "+r.URL.RequestURI())
		const use = `{"user_id":%s,"conversation_id":null,"model":%s,"requests":12,"errors":1,"input_tokens":3400,` +
			`"output_tokens":56,"cached_tokens":700,"cost":%g,"cost_today":%s,"mean_seconds":1.25}`
		switch r.URL.Query().Get("by") + r.URL.Query().Get("page_id") {
		case "user":
			fmt.Fprintf(w, `{"items":[`+use+`],"next_page_id":"next"}`, `"ada"`, "null", 0.5, "0.25")
		case "usernext":
			fmt.Fprintf(w, `{"items":[`+use+`],"next_page_id":null}`, `"bob"`, "null", 7.0, "0")
		default:
			fmt.Fprintf(w, `{"items":[`+use+`],"next_page_id":null}`, "null", `"gpt-5"`, 7.0, "null")
		}
	})
	mux.HandleFunc("GET /api/v1/operator/app-conversations", func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, r.Method+" "+r.URL.RequestURI())
		if r.URL.Query().Get("page_id") == "" {
			fmt.Fprintf(w, `{"items":[`+talk+`],"next_page_id":"next"}`, 1, `"A title"`)
			return
		}
		fmt.Fprintf(w, `{"items":[`+talk+`],"next_page_id":null}`, 2, "null")
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return map[string]string{"BIVOUAC_ADDR": server.URL, "BIVOUAC_API_KEY": "bvk_x"}, func() string {
		defer func() { calls = nil }()
		return strings.Join(calls, "\n")
	}
}

func TestCommands_WhatUsersHave(t *testing.T) {
	env, asked := operatorsAPI(t)
	for _, c := range []struct{ args, calls, prints string }{
		{
			"sandboxes show sb1", "GET /api/v1/operator/sandboxes/sb1",
			"id            sb1\nuser          ada\nspec          small\nstatus        ERROR\ndetail        no room\nisolation " +
				"    standard\nnomad client  -\ncreated       2026-11-23T01:02:03Z\n",
		},
		{"sandboxes show sb1 --json", "GET /api/v1/operator/sandboxes/sb1", `"status_detail": "no room"`},
		{"sandboxes logs sb1", "GET /api/v1/operator/sandboxes/sb1/logs?stream=all&tail=65536", "a line\n"},
		{
			"sandboxes logs -f --tail 0 sb1",
			"GET /api/v1/operator/sandboxes/sb1/logs?follow=true&stream=all&tail=0",
			"a line\n",
		},
		{
			"sandboxes logs --previous --stream stderr sb1",
			"GET /api/v1/operator/sandboxes/sb1/logs?run=previous&stream=stderr&tail=65536",
			"a line\n",
		},
		{
			"operator usage",
			"GET /api/v1/operator/usage?by=user&page_id=&user=\nGET /api/v1/operator/usage?by=user&page_id=next&user=",
			"USER  REQUESTS  ERRORS  INPUT  CACHED  OUTPUT  MEAN TIME  COST   TODAY\nbob   12        1       3400   700     " +
				"56      1.2s       $7.00  $0.00\nada   12        1       3400   700     56      1.2s       $0.50  $0.25\n",
		},
		{
			"operator usage --limit 1 --json",
			"GET /api/v1/operator/usage?by=user&page_id=&user=\nGET /api/v1/operator/usage?by=user&page_id=next&user=",
			`"user_id": "bob"`,
		},
		{
			"operator usage --by model --user ada", "GET /api/v1/operator/usage?by=model&page_id=&user=ada",
			"MODEL  REQUESTS  ERRORS  INPUT  CACHED  OUTPUT  MEAN TIME  COST\ngpt-5  12        1       3400   700     " +
				"56      1.2s       $7.00\n",
		},
		{
			"conversations list --all",
			"GET /api/v1/operator/app-conversations?page_id=&user=\nGET /api/v1/operator/app-conversations?page_id=next&user=",
			"ID  USER  SANDBOX  CREATED               UPDATED               TITLE\nc1  ada   sb1      2026-11-23T01:02:03Z  " +
				"2026-11-23T01:02:04Z  A title\nc2  ada   sb1      2026-11-23T01:02:03Z  2026-11-23T01:02:04Z  -\n",
		},
		{
			"conversations list --user ada --json",
			"GET /api/v1/operator/app-conversations?page_id=&user=ada\nGET " +
				"/api/v1/operator/app-conversations?page_id=next&user=ada", `"id": "c2"`,
		},
		{"conversations show c1 --user ada", "GET /api/v1/operator/app-conversations/c1?user=ada", "title    A title\n"},
		{
			"conversations show c1 --user ada --json",
			"GET /api/v1/operator/app-conversations/c1?user=ada",
			`"title": "A title"`,
		},
		{
			"conversations delete c1 --user ada --yes",
			"DELETE /api/v1/operator/app-conversations/c1?user=ada",
			"conversation c1 is deleted\n",
		},
		{
			"conversations delete c1 --user ada --yes --json",
			"DELETE /api/v1/operator/app-conversations/c1?user=ada",
			`"conversation": "c1"`,
		},
	} {
		code, stdout, stderr := runCommand(t, env, strings.Fields(c.args)...)
		if calls := asked(); code != exitOK || calls != c.calls || !strings.Contains(stdout, c.prints) {
			t.Errorf("%s: exit %d, called\n%s\nprinted\n%s%s", c.args, code, calls, stdout, stderr)
		}
	}
	if code, _, stderr := runCommand(t, env, "conversations", "delete", "c1", "--user", "ada"); code == exitOK ||
		asked() != "" {
		t.Errorf("without an answer: exit %d: %s", code, stderr)
	}
}

// TestConversations_Events prints stored events for people and as they were sent, also those that come
// while it follows, and attach prints them where the sandbox is gone.
func TestConversations_Events(t *testing.T) {
	t.Parallel()
	events := []string{
		`{"id":"e0","kind":"MessageEvent","source":"user","timestamp":"2026-01-02T03:04:05",` +
			`"llm_message":{"role":"user","content":[{"type":"text","text":"count\u001b[2J the words"}]}}`,
		`{"id":"e1","kind":"ActionEvent","source":"agent","timestamp":"2026-01-02T03:04:06","tool_name":"terminal",` +
			`"tool_call_id":"t1","action":{"kind":"TerminalAction","command":"wc -w a"},"thought":[]}`,
		`{"id":"e2","kind":"ObservationEvent","source":"environment","timestamp":"2026-01-02T03:04:07",` +
			`"tool_name":"terminal","observation":{"content":[{"type":"text","text":"7 a"}],"exit_code":1}}`,
		`{"id":"e3","kind":"NewEvent","source":"agent","timestamp":"2026-01-02T03:04:08"}`,
	}
	mux, stored := http.NewServeMux(), 3
	mux.HandleFunc("GET "+ownConversationsPath, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `[{"id":"c1","sandbox_id":"sb1","sandbox_status":"MISSING","created_at":"2026-11-23T01:02:03Z",`+
			`"updated_at":"2026-11-23T01:02:04Z"}]`)
	})
	mux.HandleFunc("GET "+eventsPath("c1")+"/count", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, stored)
	})
	mux.HandleFunc("GET "+eventsPath("c1")+"/search", func(w http.ResponseWriter, r *http.Request) {
		var at int
		_, _ = fmt.Sscan(r.URL.Query().Get("page_id"), &at)
		fmt.Fprintf(w, `{"items":[%s],"next_page_id":null}`, strings.Join(events[at:min(at+2, stored)], ","))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	env := map[string]string{"BIVOUAC_ADDR": server.URL, "BIVOUAC_API_KEY": "bvk_x"}
	const text = "2026-01-02T03:04:05  user  message\n    count\ufffd[2J the words\n" +
		"2026-01-02T03:04:06  agent  calls terminal\n    $ wc -w a\n" +
		"2026-01-02T03:04:07  environment  result of terminal\n      7 a\n      exit 1\n"
	for args, want := range map[string]string{
		"conversations events c1": text, "conversations attach c1": text,
		"conversations events --json c1": strings.Join(events[:3], "\n") + "\n",
	} {
		if code, stdout, stderr := runCommand(t, env, strings.Fields(args)...); code != exitOK || stdout != want {
			t.Errorf("%s: exit %d, printed\n%s%s", args, code, stdout, stderr)
		}
	}
	var printed strings.Builder
	followed := storedEvents{p: &program{stdout: &printed}, conversation: "c1", get: func(path string, out any) error {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return json.Unmarshal(w.Body.Bytes(), out)
	}}
	for want := text; stored <= len(events); stored++ {
		if err := followed.show(); err != nil || printed.String() != want {
			t.Errorf("%d events print\n%s%v", stored, &printed, err)
		}
		want += "2026-01-02T03:04:08  agent  NewEvent\n"
	}
}
