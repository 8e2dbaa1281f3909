package agentserver

import (
	"strings"
	"testing"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/acptest"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// TestStory_PartsThenTheAnswer: the event that replaces the parts of an answer comes right after them,
// and the stats after it. A page shows the text twice otherwise.
func TestStory_PartsThenTheAnswer(t *testing.T) {
	for _, kind := range []string{"native", "acp"} {
		t.Run(kind, func(t *testing.T) {
			e := newTold(t, kind, "NeverConfirm", "hello")
			e.s.settled(convID)
			live := e.s.subscribe(convID, "", withKey())
			if err := live.Write(t.Context(), websocket.MessageText, []byte(`{"content":"`+acptest.Work+`"}`)); err != nil {
				t.Fatal(err)
			}
			var story []string
			for status := ""; status != `"finished"`; {
				f := next(t, live)
				name := f.Kind
				if f.Kind == event.KindStateUpdate {
					name = f.Key
				}
				if f.Key == "execution_status" {
					status = string(f.Value)
				}
				if n := len(story); n == 0 || story[n-1] != name {
					story = append(story, name)
				}
			}
			text := strings.Join(story, " ")
			if !strings.Contains(text, event.KindStreamingDelta) || !strings.Contains(text, "stats") {
				t.Fatalf("the frames are %s", text)
			}
			for _, after := range strings.Split(text, event.KindStreamingDelta+" ")[1:] {
				if !strings.HasPrefix(after, event.KindAction) && !strings.HasPrefix(after, event.KindMessage) &&
					!strings.HasPrefix(after, event.KindACPToolCall) {
					t.Errorf("a part is followed by %s", after)
				}
			}
		})
	}
}

// TestStory_CondenseAtOnce condenses without a run, and says what is in the way.
func TestStory_CondenseAtOnce(t *testing.T) {
	m := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{System: "Write a title"}, Answers: []modeltest.Answer{modeltest.Text("A title")}},
		{When: modeltest.When{System: "keep the memory"}, InOrder: true, Answers: []modeltest.Answer{
			modeltest.Text("We said hello."), {Fault: &modeltest.Fault{Kind: modeltest.BadRequest}}}},
		{Answers: []modeltest.Answer{modeltest.Text("Hello.")}},
	}})
	s := serveAt(t, t.TempDir(), nativeEngine)
	s.worksOn(t.TempDir(), m, "NeverConfirm", "hello")
	s.settled(convID)
	s.want(200, "POST", convPath+"/condense", "")
	got := s.want(200, "GET", convPath+"/events/search?kind=Condensation", "")
	if !strings.Contains(got, "We said hello.") {
		t.Errorf("the condensations are %s", got)
	}
	i := decodeJSON[conversation.Info](t, s.want(200, "GET", convPath, ""))
	if i.ExecutionStatus != "finished" || i.Stats.UsageToMetrics["condenser"].ModelName == "" {
		t.Errorf("the conversation is %s with %+v", i.ExecutionStatus, i.Stats)
	}
	// The next run is possible as soon as the answer is there.
	s.want(200, "POST", convPath+"/run", "")
	s.settled(convID)
	if status, body := s.send("POST", convPath+"/condense", ""); status != 502 || !strings.Contains(body, "LLM") {
		t.Errorf("a model that refuses: %d %s", status, body)
	}
	none := serveAt(t, t.TempDir(), nil)
	none.want(201, "POST", "/api/conversations", createBody(t, convUID))
	none.want(400, "POST", convPath+"/condense", "")
}

// TestStory_Plan: an agent that plans has no tool that changes another file.
func TestStory_Plan(t *testing.T) {
	dir := brokenRepository(t)
	plan := dir + "/.agents_tmp/PLAN.md"
	m := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{System: "Write a title"}, Answers: []modeltest.Answer{modeltest.Text("A title")}},
		{InOrder: true, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("grep", map[string]any{"pattern": "helo"})),
			modeltest.Calls(modeltest.Tool("terminal", map[string]any{"command": "rm greet.sh"})),
			modeltest.Calls(modeltest.Tool("planning_file_editor", map[string]any{
				"command": "str_replace", "path": dir + "/greet.sh", "old_str": "helo", "new_str": "hello"})),
			modeltest.Calls(modeltest.Tool("planning_file_editor", map[string]any{
				"command": "create", "path": plan, "file_text": "# 1. OBJECTIVE\n"})),
			modeltest.Text("The plan is written."),
		}},
	}})
	s := serveAt(t, t.TempDir(), nativeEngine)
	s.converse(dir, m, map[string]any{"tools": []map[string]any{{"name": "glob"}, {"name": "grep"},
		{"name": "planning_file_editor", "params": map[string]any{"plan_path": plan}}}},
		map[string]any{"initial_message": map[string]any{"content": "plan it"}})
	if got := s.settled(convID); got != "finished" {
		t.Fatalf("status %s: %q", got, s.kinds(convID))
	}
	if fileText(t, plan) != "# 1. OBJECTIVE\n" || fileText(t, dir+"/greet.sh") != "echo helo\n" {
		t.Error("the plan was not written, or another file was changed")
	}
	got := s.want(200, "GET", convPath+"/events/search?kind=ObservationEvent", "")
	if !strings.Contains(got, dir+"/greet.sh") ||
		!strings.Contains(got, `"kind":"GrepObservation"`) || !strings.Contains(got, "a plan is made") {
		t.Errorf("the observations are %s", got)
	}
	var offered []string
	for _, tool := range decodeJSON[struct {
		Items []struct {
			Tools []struct{ Title string }
		}
	}](t, s.want(200, "GET", convPath+"/events/search?kind=SystemPromptEvent", "")).Items[0].Tools {
		offered = append(offered, tool.Title)
	}
	if got := strings.Join(offered, " "); got != "glob grep planning_file_editor think finish" {
		t.Errorf("the tools are %s", got)
	}
}
