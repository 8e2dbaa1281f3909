package agentserver

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/files"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent"
)

const forkUID = "11111111-2222-4333-8444-555555555555"

// events returns the conversation's stored events.
func (s *server) events(id string) []event.Event {
	s.t.Helper()
	list, err := s.s.conversations.Get(strings.ReplaceAll(id, "-", "")).Events()
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// A fork has the events with their ids and times, a result for what was open, its own secrets and
// status, and does not change its source; after a restart too.
func TestFork(t *testing.T) {
	dir := t.TempDir()
	step := func(_ context.Context, e *steps, n int) (engine.Outcome, error) {
		if n > 1 {
			return engine.Finished, e.observe()
		}
		return engine.Waiting, errors.Join(e.act("a"), e.conv.Append(
			engine.Update(engine.KeyAgentState, map[string]any{"acp_session_id": "of the source", "acp_prompted": true}),
			engine.Update(engine.KeyStats,
				event.Stats{UsageToMetrics: map[string]event.Metrics{"agent": {AccumulatedCost: 1}}})))
	}
	s := serveAt(t, dir, stepping(nil, step))
	s.begun()
	before := s.events(convUID)
	text := s.want(201, "POST", convPath+"/fork", `{"id":"`+forkUID+`","title":"The other way","tags":{"a":"b"}}`)
	search(t, "the answer", text)
	got := decodeJSON[conversation.Info](t, text)
	if got.ID != forkUID || got.ExecutionStatus != "idle" || *got.Title != "The other way" || got.Tags["a"] != "b" ||
		*got.ForkedFrom != convUID || len(got.Stats.UsageToMetrics) != 0 ||
		!slices.Equal(got.SecretNames, []string{"GITHUB_TOKEN"}) {
		t.Errorf("the fork is %s", text)
	}
	if strings.Contains(string(got.AgentState), "of the source") ||
		!strings.Contains(string(got.AgentState), "acp_prompted") {
		t.Errorf("the fork's agent state is %s", got.AgentState)
	}
	after := s.events(forkUID)
	for i, e := range before {
		if a, b := e.Envelope(), after[i].Envelope(); a.ID != b.ID || a.Timestamp != b.Timestamp || a.Kind != b.Kind {
			t.Errorf("event %d is %+v, want %+v", i, b, a)
		}
	}
	if open := event.OpenActions(after); len(open) != 0 {
		t.Errorf("the fork has open actions: %+v", open)
	}
	if n := len(s.events(convUID)); n != len(before) || len(event.OpenActions(before)) != 1 {
		t.Errorf("the source has %d events, had %d", n, len(before))
	}
	s.want(409, "POST", convPath+"/fork", `{"id":"`+forkUID+`"}`)
	s.want(404, "POST", convPath+"/fork", `{"from_event_id":"`+forkUID+`"}`)
	s.want(422, "POST", convPath+"/fork", `{"id":"no id"}`)
	s.want(404, "POST", "/api/conversations/"+strings.Repeat("9", 32)+"/fork", `{}`)
	s.want(200, "POST", "/api/conversations/"+forkUID+"/run", "")
	if status := s.settled(strings.ReplaceAll(forkUID, "-", "")); status != "finished" &&
		status != "waiting_for_confirmation" {
		t.Errorf("the fork's run ends as %s", status)
	}

	first := before[0].Envelope().ID
	part := decodeJSON[conversation.Info](t,
		s.want(201, "POST", convPath+"/fork", `{"from_event_id":"`+first+`","reset_metrics":false}`))
	if list := s.events(part.ID); list[0].Envelope().ID != first || len(list) != 2 || *part.ForkedFromEvent != first {
		t.Errorf("the part has %d events: %+v", len(list), part)
	}

	again := serveAt(t, dir, stepping(nil, step))
	setup, err := again.s.conversations.Setup(again.s.conversations.Get(strings.ReplaceAll(forkUID, "-", "")))
	if err != nil || setup.Secrets["GITHUB_TOKEN"].Value != "TOKENCANARY" || setup.Agent.LLM.APIKey != "LLMCANARY" {
		t.Errorf("after a restart the fork has no secrets (%v)", err)
	}
}

// What this server does not do is refused with the reason, and the members are checked first.
func TestOperations_Refused(t *testing.T) {
	s := newServer(t)
	s.begun()
	for _, c := range []struct {
		path, body string
		status     int
		why        string
	}{
		{"/navigate", `{"event_id":"` + forkUID + `"}`, 404, "no such event"},
		{"/navigate", `{"event_id":7}`, 422, "event_id"},
		{"/goal", `{"objective":"Be done"}`, 400, "send the objective as a message"},
		{"/goal", `{}`, 422, "objective"},
		{"/goal/stop", ``, 200, "true"},
		{"/goal/resume", ``, 400, "no goal to resume"},
		{"/load_plugin", `{"plugin_ref":"a@b"}`, 404, "no marketplaces"},
		{"/load_plugin", `{"plugin_ref":7}`, 422, "plugin_ref"},
		{"/switch_profile", `{"profile_name":"fast"}`, 404, "use switch_llm"},
		{"/switch_acp_model", `{"model":"gpt-5"}`, 400, "use switch_llm"},
		{"/switch_acp_model", `{"model":""}`, 422, "model"},
	} {
		if text := s.want(c.status, "POST", convPath+c.path, c.body); !strings.Contains(text, c.why) {
			t.Errorf("%s %s: %s", c.path, c.body, text)
		}
		if c.status != 422 {
			s.want(404, "POST", "/api/conversations/"+strings.Repeat("9", 32)+c.path, c.body)
		}
	}
	if text := s.want(200, "POST", "/api/skills/sync", ``); !strings.Contains(text, "no public skills") {
		t.Errorf("skills/sync: %s", text)
	}
}

func TestSwitchACPModel(t *testing.T) {
	dir := t.TempDir()
	var made *switching
	s := serveAt(t, dir, func(c *config.Config) {
		c.NewEngine = func(_ engine.Setup, conv engine.Conversation) (engine.Engine, error) {
			made = &switching{steps: steps{conv: conv}}
			return made, nil
		}
	})
	body := strings.Replace(createBody(t, convUID), `"agent_kind":"openhands"`,
		`"agent_kind":"acp","acp_server":"codex"`, 1)
	s.want(201, "POST", "/api/conversations", body)
	s.settled(convID)
	s.want(200, "POST", convPath+"/switch_acp_model", `{"model":"gpt-5/high"}`)
	if got := made.model; got != "gpt-5/high" {
		t.Errorf("the engine's model is %q", got)
	}
	again := serveAt(t, dir, nil)
	setup, err := again.s.conversations.Setup(again.s.conversations.Get(convID))
	if err != nil || setup.Agent.ACP.Model != "gpt-5/high" {
		t.Errorf("after a restart the model is %q (%v)", setup.Agent.ACP.Model, err)
	}
	if text := again.want(200, "GET", convPath, ""); !strings.Contains(text, `"acp_model":"gpt-5/high"`) {
		t.Errorf("the conversation is %s", text)
	}
}

type switching struct {
	steps
	model string
}

func (e *switching) SwitchModel(_ context.Context, model string) error {
	e.model = model
	return nil
}

func TestFileArchive(t *testing.T) {
	s := newServer(t)
	dir := filepath.Join(t.TempDir(), "app")
	for name, text := range map[string]string{
		"a.txt":                   "a",
		"sub/b.sh":                "b",
		"node_modules/x/index.js": "x",
		"sub/secret.env":          "s",
		"c.pyc":                   "c",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET",
		s.url+"/api/file/archive?format=tar.gz&exclude=*.env&path="+dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(agent.KeyHeader, testKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	z, err := gzip.NewReader(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = string(b)
	}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names,
		[]string{"app/a.txt", "app/archive_manifest.json", "app/sub/b.sh"}) || got["app/sub/b.sh"] != "b" {
		t.Errorf("the archive has %q", names)
	}
	if m := decodeJSON[files.Manifest](t, got["app/archive_manifest.json"]); m.FileCount != 2 || m.TotalBytes != 2 ||
		m.Source != "app" {
		t.Errorf("the manifest is %+v", m)
	}
	for query, status := range map[string]int{
		"format=tar.gz&path=relative": 400, "format=tar.gz&path=" + dir + "/none": 404,
		"format=tar.gz&path=" + dir + "/a.txt": 400,
		"path=" + dir:                          400, "format=git-delta&path=" + dir: 400, "format=rar&path=" + dir: 422,
		"format=tar.gz&exclude=[&path=" + dir: 400,
	} {
		s.want(status, "GET", "/api/file/archive?"+query, "")
	}
}
