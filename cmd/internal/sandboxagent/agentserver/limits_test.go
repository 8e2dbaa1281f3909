package agentserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"syscall"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// converse makes a conversation with the native engine, with more settings of its agent and more members of
// the request.
func (s *server) converse(dir string, m *modeltest.Server, settings, more map[string]any) {
	s.t.Helper()
	all := map[string]any{"agent_kind": "openhands", "llm": map[string]any{
		"model": "openai/scripted", "api_key": modelKey, "base_url": m.BaseURL(), "usage_id": "agent",
		"input_cost_per_token": 0.001}}
	maps.Copy(all, settings)
	body := map[string]any{
		"conversation_id": convID, "workspace": map[string]any{"working_dir": dir}, "agent_settings": all,
		"initial_message": map[string]any{"content": "go"},
	}
	maps.Copy(body, more)
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	s.want(201, "POST", "/api/conversations", string(b))
}

// titled is a script of these answers in turn, beside a title.
func titled(answers ...modeltest.Answer) *modeltest.Script {
	return &modeltest.Script{Stories: []*modeltest.Story{
		{When: modeltest.When{Tool: "-"}, Answers: []modeltest.Answer{modeltest.Text("A title")}},
		{Answers: answers, InOrder: true},
	}}
}

// oneResult checks that every tool call has exactly one result, and returns the number of calls.
func (s *server) oneResult() int {
	s.t.Helper()
	events, err := s.s.conversations.Get(convID).Events()
	if err != nil {
		s.t.Fatal(err)
	}
	n := map[string]int{}
	for _, e := range events {
		switch e := e.(type) {
		case *event.Action:
			n[e.ToolCallID] += 0
		case *event.Observation:
			n[e.ToolCallID]++
		case *event.AgentError:
			n[e.ToolCallID]++
		case *event.UserReject:
			n[e.ToolCallID]++
		}
	}
	for id, results := range n {
		if results != 1 {
			s.t.Errorf("%d results of %s: %q", results, id, s.kinds(convID))
		}
	}
	return len(n)
}

// A model that calls unknown tools for ever, always others, ends at the limit of steps or of cost.
// The next run begins anew.
func TestLimits_AModelThatNeverStops(t *testing.T) {
	for name, c := range map[string]struct {
		limit map[string]any
		code  string
		most  int
	}{
		"steps": {map[string]any{"max_iterations": 7}, "MaxIterationsReached", 7},
		"cost":  {map[string]any{"max_budget_per_task": 0.5}, "MaxBudgetReached", 5},
	} {
		t.Run(name, func(t *testing.T) {
			m := modeltest.New(t, &modeltest.Script{Key: modelKey, Func: func(q modeltest.Request) (modeltest.Answer, bool) {
				if len(q.Tools) == 0 {
					return modeltest.Text("A title"), true
				}
				a := modeltest.Calls(modeltest.Tool(fmt.Sprint("nothing", q.Number), map[string]int{"n": q.Number}))
				a.Usage = &modeltest.Usage{Prompt: 100, Completion: 1}
				return a, true
			}})
			s := serveAt(t, t.TempDir(), nativeEngine)
			s.converse(t.TempDir(), m, nil, c.limit)
			if got := s.settled(convID); got != "error" {
				t.Fatalf("status %s: %q", got, s.kinds(convID))
			}
			if got := s.want(200, "GET", convPath+"/events/search?kind=ConversationErrorEvent",
				""); strings.Count(got, c.code) != 1 {
				t.Errorf("the reason is %s", got)
			}
			if n := s.oneResult(); n != c.most {
				t.Errorf("%d calls, want %d", n, c.most)
			}
			m.SetScript(modeltest.Turns(modeltest.Text("Done.")))
			s.want(200, "POST", convPath+"/events", `{"content":"enough","run":true}`)
			if got := s.settled(convID); got != "finished" {
				t.Errorf("status %s after the limit: %q", got, s.kinds(convID))
			}
		})
	}
}

// Three calls at once, of which the second hangs: an interrupt leaves a result for each, and the
// model goes on with them.
func TestLimits_InterruptOfABatch(t *testing.T) {
	dir := t.TempDir()
	shell := func(command string) modeltest.Call {
		return modeltest.Tool("terminal", map[string]any{"command": command})
	}
	m := modeltest.New(t, titled(
		modeltest.Calls(shell("echo one"), shell("touch hangs; sleep 600"), shell("touch three")), modeltest.Text("Done.")))
	s := serveAt(t, t.TempDir(), nativeEngine)
	s.converse(dir, m, nil, nil)
	s.until("the second call", func() bool { return exists(dir + "/hangs") })
	s.want(200, "POST", convPath+"/interrupt", "")
	if got := s.settled(convID); got != "paused" || exists(dir+"/three") || s.oneResult() != 3 {
		t.Errorf("status %s, the third call was made: %v: %q", got, exists(dir+"/three"), s.kinds(convID))
	}
	s.want(200, "POST", convPath+"/run", "")
	if got := s.settled(convID); got != "finished" {
		t.Errorf("status %s after the interrupt: %q", got, s.kinds(convID))
	}
}

// A tool fills the disk that the conversation is on: the run ends with the reason, and goes on when
// there is room. No call loses its result or has two.
func TestLimits_DiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a tmpfs needs root")
	}
	disk := t.TempDir()
	if err := syscall.Mount("none", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a tmpfs can't be mounted: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	for _, d := range []string{"/work", "/data"} {
		if err := os.Mkdir(disk+d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m := modeltest.New(t, titled(
		modeltest.Calls(modeltest.Tool("terminal",
			map[string]any{"command": "head -c 4000000 /dev/zero > fill; seq 2000"})), modeltest.Text("Done.")))
	s := serveAt(t, disk+"/data", nativeEngine)
	s.converse(disk+"/work", m, nil, nil)
	if got := s.settled(convID); got != "error" {
		t.Fatalf("status %s: %q", got, s.kinds(convID))
	}
	if err := os.Remove(disk + "/work/fill"); err != nil {
		t.Fatal(err)
	}
	s.want(200, "POST", convPath+"/run", "")
	if got := s.settled(convID); got != "finished" || s.oneResult() != 1 {
		t.Errorf("status %s when there is room: %q", got, s.kinds(convID))
	}
	if got := s.want(200, "GET", convPath+"/events/search?kind=ConversationErrorEvent",
		""); strings.Count(got, `"DiskFull"`) != 1 {
		t.Errorf("the reason is %s", got)
	}
	s.chained()
	before := s.kinds(convID)
	s.s.close()
	s = serveAt(t, disk+"/data", nativeEngine)
	kindsEqual(t, s.kinds(convID), before...)
}
