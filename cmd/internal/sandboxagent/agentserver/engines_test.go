package agentserver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/acptest"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// TestEngines_OneStory tells one story to each engine. Both write the same events but for those that
// the table has twice (PROTOCOL.md, "Two engines"); clients see the same states. A real agent, which
// takes seconds, gets the two that depend on it most.
func TestEngines_OneStory(t *testing.T) {
	for _, c := range []struct {
		name, policy, message string
		do                    func(e *told)
		status                string
		native, acp, opencode []string
	}{
		{"an answer", "NeverConfirm", "hello", nil, "finished",
			[]string{"answer"}, []string{"finish"}, nil},
		{"a call", "NeverConfirm", acptest.Work, nil, "finished",
			[]string{"call", "result", "answer"}, []string{"call pending", "call completed", "finish"}, nil},
		{"approved", "AlwaysConfirm", acptest.Work, func(e *told) { e.respond(true) }, "finished",
			[]string{"call", "waiting_for_confirmation", "running", "result", "answer"},
			[]string{"call pending", "waiting_for_confirmation", "running", "call completed", "finish"},
			// The request for permission has the call's input, the call's start has not.
			[]string{"call pending", "call pending", "waiting_for_confirmation", "running", "call completed", "finish"}},
		{"rejected", "AlwaysConfirm", acptest.Work, func(e *told) { e.respond(false) }, "idle",
			[]string{"call", "waiting_for_confirmation", "rejected", "idle"},
			[]string{"call pending", "waiting_for_confirmation", "running", "call failed", "idle"}, nil},
		{"interrupted", "NeverConfirm", acptest.Hang, func(e *told) {
			e.s.until("the call", func() bool { return exists(e.dir + "/begun") })
			e.s.want(200, "POST", convPath+"/interrupt", "")
		}, "paused",
			[]string{"call", "no result", "InterruptEvent", "paused"},
			[]string{"call in_progress", "call failed", "InterruptEvent", "paused"},
			// It says that a call that it broke off is complete. Where it says so too late, ours stands.
			[]string{"call pending", "call completed or call failed", "InterruptEvent", "paused"}},
		{"failed", "NeverConfirm", acptest.Fail + " -32602", nil, "error",
			[]string{"LLMBadRequestError", "error"}, []string{"answer", "ACPPromptError", "error"}, nil},
	} {
		for kind, want := range map[string][]string{"native": c.native, "acp": c.acp, "opencode": c.opencode} {
			if want == nil {
				continue
			}
			t.Run(c.name+", "+kind, func(t *testing.T) {
				e := newTold(t, kind, c.policy, c.message)
				if c.do != nil {
					c.do(e)
				}
				if got := e.s.settled(convID); got != c.status {
					t.Errorf("status %s, want %s", got, c.status)
				}
				want := append([]string{"system", "user", "running"}, want...)
				if c.status == "finished" {
					want = append(want, "finished")
				}
				same := func(got, want string) bool { return slices.Contains(strings.Split(want, " or "), got) }
				if got := e.story(); !slices.EqualFunc(got, want, same) {
					t.Errorf("the events are\n%q, want\n%q", got, want)
				}
			})
		}
	}
}

// told is a conversation with one of the engines.
type told struct {
	s   *server
	dir string
}

func newTold(t *testing.T, kind, policy, message string) *told {
	t.Helper()
	e, environ := &told{dir: t.TempDir()}, inherits()
	settings := map[string]any{"agent_kind": "acp", "acp_server": "custom"}
	write, hang := modeltest.Tool("terminal",
		map[string]any{
			"command": "echo done > done.txt",
		}), modeltest.Tool("terminal", map[string]any{"command": "touch begun; sleep 600"})
	switch kind {
	case "native":
		settings["agent_kind"] = "openhands"
	case "acp":
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		settings["acp_command"], settings["acp_env"] = []string{self}, map[string]string{acptest.Env: acptest.Fine}
	case "opencode":
		settings["acp_server"] = "opencode"
		environ = withAgent(t, "opencode-linux-x64/bin/opencode")
		write = modeltest.Tool("bash", map[string]any{"command": "echo done > done.txt", "description": "write"})
		hang = modeltest.Tool("bash", map[string]any{"command": "touch begun; sleep 600", "description": "wait"})
	}
	m := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{Tool: "-"}, Answers: []modeltest.Answer{modeltest.Text("A title")}},
		{
			When:    modeltest.When{User: acptest.Work},
			Answers: []modeltest.Answer{modeltest.Calls(write), modeltest.Text("It is written.")},
		},
		{When: modeltest.When{User: acptest.Hang}, Answers: []modeltest.Answer{modeltest.Calls(hang)}},
		{
			When:    modeltest.When{User: acptest.Fail},
			Answers: []modeltest.Answer{{Fault: &modeltest.Fault{Kind: modeltest.BadRequest}}},
		},
		{Answers: []modeltest.Answer{modeltest.Text("You said: hello")}},
	}})
	settings["llm"] = map[string]any{"model": "openai/scripted", "api_key": modelKey, "base_url": m.BaseURL()}
	b, err := json.Marshal(map[string]any{
		"conversation_id": convID, "workspace": map[string]any{"working_dir": e.dir}, "agent_settings": settings,
		"confirmation_policy": map[string]string{"kind": policy}, "initial_message": map[string]any{"content": message},
	})
	if err != nil {
		t.Fatal(err)
	}
	e.s = serveAt(t, t.TempDir(), func(c *config.Config) { nativeEngine(c); environ(c) })
	e.s.want(201, "POST", "/api/conversations", string(b))
	return e
}

// withAgent gives a server's agents a PATH with a program that make agents installs, and an empty
// home. Without the program it skips the test.
func withAgent(t *testing.T, program string) func(*config.Config) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(cache, "bivouac/agents/tested/node_modules", program)
	if _, err := os.Stat(program); err != nil {
		if slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), "agents") {
			t.Fatalf("%s is not installed, and BIVOUAC_TEST_REQUIRE names agents", program)
		}
		t.Skipf("%s is not installed: make agents", program)
	}
	return inherits("PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"), "HOME="+t.TempDir())
}

// respond answers the confirmation that the conversation waits for.
func (e *told) respond(accept bool) {
	e.s.t.Helper()
	e.s.until("the question", func() bool {
		i := decodeJSON[conversation.Info](e.s.t, e.s.want(200, "GET", convPath, ""))
		return i.ExecutionStatus == engine.StatusWaiting
	})
	body := `{"accept":false}`
	if accept {
		body = `{"accept":true}`
	}
	e.s.want(200, "POST", convPath+"/events/respond_to_confirmation", body)
}

// story is the events in short: what an engine keeps for itself and its counts are left out.
func (e *told) story() []string {
	e.s.t.Helper()
	events, err := e.s.s.conversations.Get(convID).Events()
	if err != nil {
		e.s.t.Fatal(err)
	}
	var list []string
	for _, one := range events {
		switch one := one.(type) {
		case *event.SystemPrompt:
			list = append(list, "system")
		case *event.Message:
			list = append(list, map[string]string{event.SourceUser: "user", event.SourceAgent: "answer"}[one.Source])
		case *event.Action:
			list = append(list, map[bool]string{true: "finish", false: "call"}[one.ToolName == "finish"])
		case *event.Observation:
			if one.ToolName != "finish" {
				list = append(list, "result")
			}
		case *event.UserReject:
			list = append(list, "rejected")
		case *event.AgentError:
			list = append(list, "no result")
		case *event.ACPToolCall:
			list = append(list, "call "+*one.Status)
		case *event.ConversationError:
			list = append(list, one.Code)
		case *event.StateUpdate:
			if one.Key == engine.KeyStatus {
				list = append(list, strings.Trim(string(one.Value), `"`))
			}
		default:
			list = append(list, event.KindOf(one))
		}
	}
	return list
}
