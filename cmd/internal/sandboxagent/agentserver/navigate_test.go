package agentserver

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/acptest"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// navigated goes back to an event, "" for none, and checks that it is the leaf.
func (s *server) navigated(id string) {
	s.t.Helper()
	body, want := `{}`, ""
	if id != "" {
		body, want = `{"event_id":"`+id+`"}`, id
	}
	i := decodeJSON[conversation.Info](s.t, s.want(200, "POST", convPath+"/navigate", body))
	if (i.LeafEventID == nil) != (want == "") || i.LeafEventID != nil && *i.LeafEventID != want {
		s.t.Errorf("the leaf is %v, want %s", i.LeafEventID, want)
	}
}

// say sends a message, waits for the answer, and returns the texts of the active branch.
func (s *server) say(text string) string {
	s.t.Helper()
	s.want(200, "POST", convPath+"/events", `{"content":"`+text+`","run":true}`)
	s.settled(convID)
	var list []string
	for _, e := range s.events(convID) {
		if m, is := e.(*event.Message); is {
			list = append(list, m.LLMMessage.Text())
		}
		if a, is := e.(*event.Action); is {
			list = append(list, a.ToolCall.Arguments)
		}
	}
	return strings.Join(list, ", ")
}

// TestNavigate goes back in a conversation: what comes next is another branch, of which the model knows
// nothing else, also after a restart. A search returns all events.
func TestNavigate(t *testing.T) {
	data := t.TempDir()
	m := modeltest.New(t, &modeltest.Script{Key: modelKey, Func: func(q modeltest.Request) (modeltest.Answer, bool) {
		var said []string
		for _, m := range q.Messages {
			if m.Role == "user" {
				said = append(said, m.Text)
			}
		}
		return modeltest.Text("I know " + strings.Join(said, " and ") + "."), true
	}})
	s := serveAt(t, data, nativeEngine)
	s.converse(t.TempDir(), m, nil,
		map[string]any{"autotitle": false, "initial_message": map[string]any{"content": "one"}})
	s.settled(convID)
	messages := func() (list []event.Event) {
		for _, e := range s.events(convID) {
			if _, is := e.(*event.Message); is {
				list = append(list, e)
			}
		}
		return list
	}
	first := messages()[1].Envelope().ID // the answer to one
	if got := s.say("two"); got != "one, I know one., two, I know one and two." {
		t.Errorf("the branch is %s", got)
	}
	second := messages()[3].Envelope().ID
	s.navigated(first)
	if got := s.say("three"); got != "one, I know one., three, I know one and three." {
		t.Errorf("another branch is %s", got)
	}
	s.navigated(second)
	s.http.Close()
	s.s.close()
	s = serveAt(t, data, nativeEngine)
	if got := s.say("four"); got != "one, I know one., two, I know one and two., four, I know one and two and four." {
		t.Errorf("the first branch goes on with %s", got)
	}
	s.navigated("")
	if got := s.say("five"); got != "five, I know five." {
		t.Errorf("a new beginning is %s", got)
	}
	all := decodeJSON[agent.Page[json.RawMessage]](t, s.want(200, "GET",
		convPath+"/events/search?kind=MessageEvent&limit=100", "")).Items
	if len(all) != 10 {
		t.Errorf("a search returns %d messages, want 10", len(all))
	}
	if got := s.want(200, "GET", convPath+"/agent_final_response", ""); !strings.Contains(got, "I know five.") {
		t.Errorf("the final response is %s", got)
	}
	forked := decodeJSON[conversation.Info](t, s.want(201, "POST", convPath+"/fork", `{"from_event_id":"`+second+`"}`))
	for _, e := range s.events(forked.ID) {
		if m, is := e.(*event.Message); is && strings.Contains(m.LLMMessage.Text(), "three") {
			t.Error("a fork of one branch has another's events")
		}
	}
	s.want(404, "POST", convPath+"/navigate", `{"event_id":"`+forkUID+`"}`)
}

// TestNavigate_OpenAndRunning goes back from a question and to a call without its result: nothing waits, and
// the call is not executed again. Beside a run it is refused.
func TestNavigate_OpenAndRunning(t *testing.T) {
	step := make(chan struct{})
	s := serveAt(t, t.TempDir(), stepping(nil, holding(step)))
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	<-step
	var call string
	for _, e := range s.events(convID) {
		if _, is := e.(*event.Action); is {
			call = e.Envelope().ID
		}
	}
	s.want(409, "POST", convPath+"/navigate", `{"event_id":"`+call+`"}`)
	step <- struct{}{}
	s.settled(convID)
	i := decodeJSON[conversation.Info](t, s.want(200, "POST", convPath+"/navigate", `{"event_id":"`+call+`"}`))
	events := s.events(convID)
	if open := event.OpenActions(events); len(open) != 0 || i.LeafEventID == nil || *i.LeafEventID == call {
		t.Errorf("open actions %v, leaf %v", open, i.LeafEventID)
	}
	asking := serveAt(t, t.TempDir(), stepping(nil, func(_ context.Context, e *steps, _ int) (engine.Outcome, error) {
		return engine.Waiting, e.act("a")
	}))
	asking.begun()
	asking.navigated(asking.events(convID)[0].Envelope().ID)
	if got := decodeJSON[conversation.Info](t, asking.want(200, "GET", convPath, "")).ExecutionStatus; got != "idle" {
		t.Errorf("after a question that was left it is %s", got)
	}
}

// TestNavigate_ACP: the agent begins a session of its own with the history of the branch.
func TestNavigate_ACP(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := t.TempDir() + "/log"
	environ := inherits("HOME="+t.TempDir(), acptest.LogEnv+"="+log)
	s := serveAt(t, t.TempDir(), func(c *config.Config) { nativeEngine(c); environ(c) })
	b, err := json.Marshal(map[string]any{
		"conversation_id": convID, "workspace": map[string]any{"working_dir": t.TempDir()},
		"agent_settings": map[string]any{"agent_kind": "acp", "acp_server": "custom", "acp_command": []string{self},
			"acp_env": map[string]string{acptest.Env: acptest.Fine}},
		"initial_message": map[string]any{"content": "one"},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.want(201, "POST", "/api/conversations", string(b))
	s.settled(convID)
	var first string
	for _, e := range s.events(convID) {
		if e.Envelope().Kind == event.KindObservation {
			first = e.Envelope().ID
		}
	}
	s.say("two")
	s.navigated(first)
	s.say("three")
	lines := strings.Split(strings.TrimSpace(fileText(t, log)), "\n")
	last := lines[len(lines)-1]
	if !strings.Contains(last, "You said: one") || strings.Contains(last, "two") || !strings.Contains(last, "three") {
		t.Errorf("the last prompt is %s", last)
	}
}
