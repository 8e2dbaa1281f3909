package agentserver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/scheduler/agent"
)

// age makes the last activity an hour old.
func (s *server) age() {
	s.s.activity.Store(int64(time.Since(s.s.started) - time.Hour))
}

func (s *server) idleTime() int {
	s.t.Helper()
	_, body := call(s.t, "GET", s.url+"/server_info", "", "")
	return decodeJSON[struct {
		IdleTime int `json:"idle_time"`
	}](s.t, body).IdleTime
}

func TestActivity_PollingIsNone(t *testing.T) {
	s := newServer(t)
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const conv = "/api/conversations/" + convID
	for _, c := range []struct {
		status             int
		method, path, body string
		active             bool
	}{
		{200, "GET", "/health", "", false},
		{200, "GET", "/server_info", "", false},
		{200, "GET", "/api/conversations?ids=" + convID, "", false},
		{200, "GET", "/api/conversations/count", "", false},
		{200, "GET", "/api/conversations/search?status=running", "", false},
		{200, "GET", conv, "", false},
		{200, "GET", conv + "/events/search", "", false},
		{204, "POST", "/api/conversations/prepare-for-sandbox-pause", "", false},
		{200, "POST", conv + "/events", `{"content":"hello"}`, true},
		{200, "PATCH", conv, `{"title":"t"}`, true},
		{200, "POST", conv + "/run", "", true},
		{200, "GET", "/api/file/download?path=" + file, "", true},
		{200, "POST", "/api/bash/execute_bash_command", `{"command":"true"}`, true},
		{200, "DELETE", conv, "", true},
	} {
		s.age()
		s.want(c.status, c.method, c.path, c.body)
		if idle := s.idleTime(); (idle < 60) != c.active {
			t.Errorf("%s %s: idle for %d s, active %v", c.method, c.path, idle, c.active)
		}
	}
	s.age()
	if status, _ := call(t, "POST", s.url+"/api/bash/execute_bash_command", "wrong",
		`{"command":"true"}`); status != 401 || s.idleTime() < 3000 {
		t.Errorf("an unauthorised call keeps the sandbox awake: %d", status)
	}
}

func TestActivity_WorkIsActivity(t *testing.T) {
	s := newServer(t)
	fifo := filepath.Join(t.TempDir(), "go")
	started := decodeJSON[agent.BashCommand](t,
		s.want(200, "POST", "/api/bash/start_bash_command", `{"command":"while [ ! -e `+fifo+` ]; do sleep 0.01; done"}`))
	s.age()
	if idle := s.idleTime(); idle != 0 {
		t.Errorf("a command runs: idle for %d s", idle)
	}
	if err := os.WriteFile(fifo, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.until("the end of the command "+started.ID, func() bool { return !s.s.bash.Busy() })
	if idle := s.idleTime(); idle > 60 {
		t.Errorf("a command has just ended: idle for %d s", idle)
	}
	s.age()
	if idle := s.idleTime(); idle < 3000 {
		t.Errorf("idle for %d s", idle)
	}
	hold := make(chan struct{})
	r := serveAt(t, t.TempDir(), stepping(nil, func(context.Context, *steps, int) (engine.Outcome, error) {
		<-hold
		return engine.Finished, nil
	}))
	r.want(201, "POST", "/api/conversations", createBody(t, convUID))
	r.age()
	if idle := r.idleTime(); idle != 0 {
		t.Errorf("an agent works: idle for %d s", idle)
	}
	close(hold)
	r.settled(convID)
	r.age()
	if idle := r.idleTime(); idle < 3000 {
		t.Errorf("the agent has finished: idle for %d s", idle)
	}
}

func TestBash_LostCommandIsKnownAsKilled(t *testing.T) {
	dir := t.TempDir()
	at := func(c *config.Config) { c.BashEventsDir = filepath.Join(dir, "bash_events") }
	s := serveAt(t, filepath.Join(dir, "c"), at)
	started := decodeJSON[agent.BashCommand](t,
		s.want(200, "POST", "/api/bash/start_bash_command", `{"command":"sleep 100 # TEXTCANARY"}`))
	s.s.bash.Close()
	// A truncated write.
	path := filepath.Join(dir, "bash_events", "commands")
	appendTo(t, path, "0123")
	s = serveAt(t, filepath.Join(dir, "c"), at)
	search := "/api/bash/bash_events/search?kind__eq=BashOutput&command_id__eq="
	for range 2 {
		p := decodeJSON[agent.Page[agent.BashOutput]](t, s.want(200, "GET", search+started.ID, ""))
		if len(p.Items) != 1 || *p.Items[0].ExitCode != -1 || !strings.Contains(*p.Items[0].Stderr, "restarted") {
			t.Errorf("%+v", p)
		}
	}
	if p := decodeJSON[agent.Page[agent.BashOutput]](t,
		s.want(200, "GET", search+strings.Repeat("0", 32), "")); len(p.Items) != 0 {
		t.Errorf("an unknown command: %+v", p)
	}
	if text := string(read(t, path)); text != started.ID+"\n" {
		t.Errorf("the file: %q", text)
	}
}
