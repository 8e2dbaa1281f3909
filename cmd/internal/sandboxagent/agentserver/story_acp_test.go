package agentserver

import (
	"encoding/json"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// TestStory_Codex runs a real agent behind the whole server: it mends the repository, is loaded
// again after a restart, and leaves the model's key in no file and no command's environment.
func TestStory_Codex(t *testing.T) {
	environ := withAgent(t, "@zed-industries/codex-acp-linux-x64/bin/codex-acp")
	serve := func(data string) *server {
		return serveAt(t, data, func(c *config.Config) { nativeEngine(c); environ(c) })
	}
	dir, data := brokenRepository(t), t.TempDir()
	m := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{User: "fix", Tool: "exec_command"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("exec_command",
				map[string]any{"cmd": "sed -i s/helo/hello/ greet.sh && sh test.sh; env > env.txt"})),
			modeltest.Text("The test passes."),
		}},
		{Answers: []modeltest.Answer{modeltest.Text("It still passes.")}},
	}})
	body, err := json.Marshal(map[string]any{
		"conversation_id": convID, "workspace": map[string]any{"working_dir": dir},
		"agent_settings": map[string]any{"agent_kind": "acp", "acp_server": "codex", "llm": map[string]any{
			"model": "openai/scripted", "api_key": modelKey, "base_url": m.BaseURL()}},
		"initial_message": map[string]any{"content": "fix the greeting"},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(data)
	s.want(201, "POST", "/api/conversations", string(body))
	if got := s.settled(convID); got != "finished" {
		t.Fatalf("status %s: %q", got, s.kinds(convID))
	}
	if got := fileText(t, dir+"/greet.sh"); got != "echo hello\n" {
		t.Errorf("greet.sh is %q", got)
	}
	s.want(204, "POST", "/api/conversations/prepare-for-sandbox-pause", "")
	s.s.close()
	s = serve(data)
	s.want(200, "POST", convPath+"/events", `{"content":"and now?","run":true}`)
	if got := s.settled(convID); got != "finished" {
		t.Fatalf("status %s after a restart: %q", got, s.kinds(convID))
	}
	if got := s.want(200, "GET", convPath+"/agent_final_response", ""); !strings.Contains(got, "It still passes.") {
		t.Errorf("the final response is %s", got)
	}
	s.s.close()
	searchDir(t, data)
	searchDir(t, dir)
	search(t, "the log", s.logs.String())
}
