package agentserver

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

func TestServer_OpenRoutes(t *testing.T) {
	s := newServer(t)
	for path, want := range map[string]string{
		"/health": `{"status":"ok"}`, "/alive": `{"status":"ok"}`, "/ready": `{"status":"ready"}`,
		"/server_info": `"build_git_ref":"test"`,
	} {
		status, body := call(t, "GET", s.url+path, "", "")
		if status != 200 || !strings.Contains(body, want) {
			t.Errorf("GET %s: %d %s", path, status, body)
		}
	}
}

func TestServer_KeyIsRequiredBelowAPI(t *testing.T) {
	s := newServer(t)
	for _, r := range s.s.table() {
		if !strings.HasPrefix(r.path, "/api/") {
			continue
		}
		path := strings.NewReplacer("{id}", convID, "{event}", "x").Replace(r.path)
		for _, key := range []string{"", "wrong", testKey + "x", testKey[:4]} {
			status, body := call(t, r.method, s.url+path, key, "{}")
			if status != http.StatusUnauthorized || body != `{"detail":"Unauthorized"}` {
				t.Errorf("%s %s with key %q: %d %s", r.method, path, key, status, body)
			}
		}
	}
	if status, _ := call(t, "GET", s.url+"/api/conversations/count", "other", ""); status != 200 {
		t.Errorf("the second key: %d", status)
	}
	if status, _ := call(t, "GET", s.url+"/api/nothing", "", ""); status != 401 {
		t.Errorf("an unknown path below /api tells without a key: %d", status)
	}
}

func TestServer_ConversationLife(t *testing.T) {
	s := newServer(t)
	text := s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	made := decodeJSON[conversation.Info](t, text)
	if made.ID != convUID || *made.Title != "Check the README" || made.MaxIterations != 500 ||
		made.Tags["repo"] != "app" || made.Agent.LLM.Model != "anthropic/claude-sonnet-4" ||
		*made.Agent.LLM.APIKey != decode.Masked ||
		*made.Agent.LLM.BaseURL != "https://llm.example.org/v1" || made.Agent.MCPServers[0] != "files" {
		t.Errorf("created: %s", text)
	}
	if st, err := os.Stat(made.Workspace.WorkingDir); err != nil || !st.IsDir() {
		t.Errorf("working directory: %v", err)
	}
	// The same id in any form is the same conversation and adds no message.
	again := decodeJSON[conversation.Info](t,
		s.want(200, "POST", "/api/conversations", createBody(t, strings.ToUpper(convID))))
	if again.ID != made.ID || !again.CreatedAt.Equal(made.CreatedAt) {
		t.Errorf("created again: %+v", again)
	}
	path := "/api/conversations/" + convID
	if st := s.settled(convID); st != "idle" {
		t.Errorf("after the first run: %s", st)
	}
	events := decodeJSON[agent.Page[map[string]any]](t, s.want(200, "GET", path+"/events/search", ""))
	if len(events.Items) != 3 || events.Items[0]["kind"] != event.KindMessage || events.Items[1]["value"] != "running" ||
		events.Items[2]["value"] != "idle" || events.Items[2]["parent_id"] != events.Items[1]["id"] ||
		events.NextPageID != nil {
		t.Errorf("events: %v", events)
	}
	s.want(200, "POST", path+"/events", `{"role":"user","content":[{"type":"text","text":"second"}],"run":false}`)
	s.want(200, "POST", path+"/events", `{"content":[{"type":"image","image_urls":["data:x"]}],"run":true}`)
	s.settled(convID)
	if n := s.want(200, "GET", path+"/events/count", ""); n != "7" {
		t.Errorf("count %s", n)
	}
	if n := s.want(200, "GET", path+"/events/count?kind=MessageEvent&source=user", ""); n != "3" {
		t.Errorf("messages %s", n)
	}
	s.want(200, "POST", path+"/pause", "")
	s.want(200, "POST", path+"/interrupt", "")
	i := decodeJSON[conversation.Info](t, s.want(200, "GET", path, ""))
	if i.ExecutionStatus != "paused" || i.CreatedAt.IsZero() ||
		!i.UpdatedAt.After(i.CreatedAt) {
		t.Errorf("after pause: %+v", i)
	}
	s.want(200, "POST", path+"/run", "")
	s.settled(convID)
	s.want(200, "PATCH", path, `{"title":"New","tags":{"b":"2"}}`)
	s.want(204, "POST", "/api/conversations/prepare-for-sandbox-pause", "")
	i = decodeJSON[conversation.Info](t, s.want(200, "GET", path, ""))
	if i.ExecutionStatus != "idle" || *i.Title != "New" ||
		len(i.Tags) != 1 {
		t.Errorf("after run and patch: %+v", i)
	}
	batch := decodeJSON[[]*conversation.Info](t,
		s.want(200, "GET", "/api/conversations?ids="+convUID+"&ids=00000000000000000000000000000000&ids="+convID, ""))
	if len(batch) != 3 || batch[0] == nil || batch[1] != nil || batch[2].ID != convUID {
		t.Errorf("batch: %+v", batch)
	}
	if n := s.want(200, "GET", "/api/conversations/count", ""); n != "1" {
		t.Errorf("count %s", n)
	}
	s.want(200, "DELETE", path, "")
	s.want(404, "GET", path, "")
	s.want(400, "DELETE", path, "")
	s.want(400, "POST", path+"/pause", "")
}

func TestServer_EventPages(t *testing.T) {
	s := newServer(t)
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	s.settled(convID)
	path := "/api/conversations/" + convID + "/events"
	for i := range 7 {
		s.want(200, "POST", path, fmt.Sprintf(`{"content":[{"type":"text","text":"number %d"}]}`, i))
	}
	for _, order := range []string{"", "TIMESTAMP", "TIMESTAMP_DESC"} {
		var ids []string
		token := ""
		for {
			p := decodeJSON[agent.Page[map[string]any]](t,
				s.want(200, "GET", path+"/search?limit=3&sort_order="+order+"&page_id="+token, ""))
			for _, e := range p.Items {
				ids = append(ids, e["id"].(string))
			}
			if p.NextPageID == nil {
				break
			}
			token = *p.NextPageID
		}
		if len(ids) != 10 {
			t.Errorf("order %q: %d events", order, len(ids))
		}
	}
	p := decodeJSON[agent.Page[map[string]any]](t, s.want(200, "GET", path+"/search?body=NUMBER+5", ""))
	if len(p.Items) != 1 {
		t.Errorf("body search: %v", p.Items)
	}
	id := p.Items[0]["id"].(string)
	if got := decodeJSON[map[string]any](t, s.want(200, "GET", path+"/"+id, "")); got["id"] != id {
		t.Errorf("by id: %v", got)
	}
	got := decodeJSON[[]map[string]any](t, s.want(200, "GET", path, `["nothing","`+id+`"]`))
	if len(got) != 2 || got[0] != nil || got[1]["id"] != id {
		t.Errorf("batch: %v", got)
	}
	at := p.Items[0]["timestamp"].(string)
	if n := s.want(200, "GET", path+"/count?timestamp__gte="+at+"Z&timestamp__lt=2999-01-01", ""); n != "2" {
		t.Errorf("since: %s", n)
	}
	s.want(404, "GET", path+"/nothing", "")
	for _, q := range []string{"limit=0", "limit=101", "limit=x", "sort_order=UP", "timestamp__gte=yesterday"} {
		s.want(422, "GET", path+"/search?"+q, "")
	}
	if p := decodeJSON[agent.Page[map[string]any]](t,
		s.want(200, "GET", path+"/search?page_id=junk&limit=2", "")); len(p.Items) != 2 {
		t.Errorf("a junk token: %v", p)
	}
}

func TestServer_ConversationPages(t *testing.T) {
	s := newServer(t)
	for i := range 5 {
		s.want(201, "POST", "/api/conversations", createBody(t, fmt.Sprintf("%032x", i+1)))
	}
	for _, order := range []string{"", "CREATED_AT", "UPDATED_AT_DESC"} {
		seen := map[string]bool{}
		token := ""
		for {
			p := decodeJSON[agent.Page[conversation.Info]](t,
				s.want(200, "GET", "/api/conversations/search?limit=2&status=idle&sort_order="+order+"&page_id="+token, ""))
			for _, i := range p.Items {
				seen[i.ID] = true
			}
			if p.NextPageID == nil {
				break
			}
			token = *p.NextPageID
		}
		if len(seen) != 5 {
			t.Errorf("order %q: %d conversations", order, len(seen))
		}
	}
	if n := s.want(200, "GET", "/api/conversations/count?status=running", ""); n != "0" {
		t.Errorf("running: %s", n)
	}
}

func TestServer_BadInput(t *testing.T) {
	s := newServer(t)
	ok := `"workspace":{"working_dir":"/tmp"},"agent_settings":{"llm":{}}`
	many := strings.Repeat("ids="+convID+"&", 100)
	for _, c := range []struct {
		method, path, body string
		status             int
		want               []string
	}{
		{"POST", "/api/conversations", ``, 422, []string{`"missing"`, `["body"]`}},
		{"POST", "/api/conversations", `{`, 422, []string{`json_invalid`}},
		{"POST", "/api/conversations", `[]`, 422, []string{`model_attributes_type`}},
		{"POST", "/api/conversations", `{} {}`, 422, []string{`json_invalid`}},
		{"POST", "/api/conversations",
			`{"workspace":{"working_dir":"/tmp"},"agent_settings":{"agent_kind":"acp","acp_file_secrets":{"A":"SECRETCANARY"}}}`,
			422, []string{`acp_file_secrets is not supported`}},
		{"POST", "/api/conversations", `{}`, 422, []string{`["body","workspace"]`, `value_error`}},
		{
			"POST",
			"/api/conversations",
			`{"workspace":{},"agent":{"llm":{}}}`,
			422,
			[]string{`["body","workspace","working_dir"]`},
		},
		{
			"POST",
			"/api/conversations",
			`{"workspace":{"working_dir":"rel"},"agent_settings":{"llm":{}}}`,
			422,
			[]string{`absolute`},
		},
		{
			"POST",
			"/api/conversations",
			`{"workspace":{"working_dir":5},"agent_settings":{}}`,
			422,
			[]string{`string_type`, `["body","agent_settings","llm"]`},
		},
		{"POST", "/api/conversations", `{` + ok + `,"conversation_id":"x"}`, 422, []string{`uuid_parsing`}},
		{"POST", "/api/conversations", `{` + ok + `,"max_iterations":0}`, 422, []string{`greater_than`}},
		{"POST", "/api/conversations", `{` + ok + `,"max_iterations":1.5}`, 422, []string{`int_from_float`}},
		{"POST", "/api/conversations", `{` + ok + `,"tags":{"A B":"x"}}`, 422, []string{`[key]`}},
		{
			"POST",
			"/api/conversations",
			`{` + ok + `,"tags":{"a":"` + strings.Repeat("é", 257) + `"}}`,
			422,
			[]string{`at most 256 characters`},
		},
		{"POST", "/api/conversations", `{` + ok + `,"agent_profile_id":"` + convID + `"}`, 422, []string{`excludes`}},
		{
			"POST",
			"/api/conversations",
			`{"workspace":{"working_dir":"/tmp"},"agent_profile_id":"` + convID + `"}`,
			404,
			[]string{`profile`},
		},
		{"POST", "/api/conversations", `{` + ok + `,"confirmation_policy":{"kind":"Maybe"}}`, 422, []string{`enum`}},
		{"POST", "/api/conversations", `{` + ok + `,"secrets":{"A":7}}`, 422, []string{`["body","secrets","A"]`}},
		{"POST", "/api/conversations",
			`{` + ok + `,"initial_message":{"role":"boss","content":[{"type":"video"},{"type":"text"},1]}}`, 422,
			[]string{
				`'user', 'system', 'assistant' or 'tool'`,
				`'text' or 'image'`,
				`["body","initial_message","content","1","text"]`,
				`model_attributes_type`,
			}},
		{"POST", "/api/conversations", `{"x":"` + strings.Repeat("a", maxBody) + `"}`, 413, nil},
		{"GET", "/api/conversations", ``, 422, []string{`["query","ids"]`}},
		{"GET", "/api/conversations?ids=x", ``, 422, []string{`uuid_parsing`}},
		{"GET", "/api/conversations?" + many, ``, 422, []string{`99`}},
		{"GET", "/api/conversations/x", ``, 404, nil},
		{"POST", "/api/conversations/" + convID + "/events", `{}`, 404, nil},
		{"GET", "/api/nothing", ``, 404, []string{`{"detail":"Not Found"}`}},
		{"PUT", "/api/conversations", ``, 405, []string{`{"detail":"Method Not Allowed"}`}},
		{
			"POST",
			"/api/bash/start_bash_command",
			`{"command":5,"cwd":"rel","timeout":-1}`,
			422,
			[]string{`string_type`, `cwd`, `greater_than`},
		},
		{"GET", "/api/file/download?path=rel", ``, 400, []string{`Path must be absolute`}},
	} {
		status, body := s.send(c.method, c.path, c.body)
		if status != c.status {
			t.Errorf("%s %.60s %.80s: %d, want %d: %s", c.method, c.path, c.body, status, c.status, body)
		}
		for _, w := range c.want {
			if !strings.Contains(body, w) {
				t.Errorf("%s %.60s %.80s: no %s in %s", c.method, c.path, c.body, w, body)
			}
		}
	}
	if n := s.want(200, "GET", "/api/conversations/count", ""); n != "0" {
		t.Errorf("bad input left %s conversations", n)
	}
}

func TestServer_CanariesStayInside(t *testing.T) {
	dir := t.TempDir()
	s := serveAt(t, dir, nil)
	answers := s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	bad := strings.Replace(createBody(t, ""), `"usage_id":"agent"`, `"usage_id":7,"base_url2":1`, 1)
	answers += s.want(422, "POST", "/api/conversations", bad)
	answers += s.want(200, "GET", "/api/conversations/"+convID, "")
	answers += s.want(200, "GET", "/api/conversations/"+convID+"/events/search", "")
	setup, err := s.s.conversations.Setup(s.s.conversations.Get(convID))
	if err != nil || setup.Secrets["GITHUB_TOKEN"].Value != "TOKENCANARY" {
		t.Errorf("the sealed request can't be read back: %v", err)
	}
	search(t, "answers", answers)
	search(t, "logs", s.logs.String())
	searchDir(t, dir)
}

func TestServer_WithoutSecretKeyNothingIsKept(t *testing.T) {
	dir := t.TempDir()
	s := serveAt(t, dir, func(c *config.Config) { c.SecretKey = "" })
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	if _, err := os.Stat(filepath.Join(dir, convID, "request.seal")); !os.IsNotExist(err) {
		t.Errorf("a seal without a key: %v", err)
	}
	searchDir(t, dir)
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func search(t *testing.T, where, text string) {
	t.Helper()
	if i := strings.Index(text, "CANARY"); i >= 0 {
		t.Errorf("%s hold a secret: …%s…", where, text[max(0, i-20):min(len(text), i+10)])
	}
}

func searchDir(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			search(t, p, string(read(t, p)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestServer_ManyCallersMakeOneConversation(t *testing.T) {
	s := newServer(t)
	body := createBody(t, convUID)
	var wg sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	for range 16 {
		wg.Go(func() {
			status, _ := s.send("POST", "/api/conversations", body)
			mu.Lock()
			statuses[status]++
			mu.Unlock()
			s.send("POST", "/api/conversations/"+convID+"/events", `{"content":[{"type":"text","text":"x"}],"run":true}`)
		})
	}
	wg.Wait()
	if statuses[201] != 1 || statuses[200] != 15 {
		t.Errorf("statuses %v", statuses)
	}
	if n := s.want(200, "GET", "/api/conversations/"+convID+"/events/count?kind=MessageEvent", ""); n != "17" {
		t.Errorf("%s messages, want 17", n)
	}
}

func TestServer_CORS(t *testing.T) {
	s := serveAt(t, t.TempDir(), func(c *config.Config) { c.CORSOrigins = []string{"https://app.example.org/"} })
	for origin, allowed := range map[string]bool{
		"https://app.example.org": true, "http://localhost:3000": true, "http://127.0.0.1": true,
		"https://evil.example.org": false, "http://localhost.evil.org": false, "null": false,
	} {
		req, err := http.NewRequestWithContext(t.Context(), "OPTIONS", s.url+"/api/conversations", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", origin)
		req.Header.Set("Access-Control-Request-Method", "POST")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("Access-Control-Allow-Origin") == origin; got != allowed {
			t.Errorf("origin %s allowed: %v, want %v", origin, got, allowed)
		}
		if (resp.StatusCode == 204) != allowed {
			t.Errorf("origin %s: status %d", origin, resp.StatusCode)
		}
	}
}
