package native

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
	"bivouac.dev/bivouac/ops/agents/modelserver"
)

// mostRequests is how many requests the task may take, with what is repaired and asked again.
const mostRequests = 12

// TestBehaviours solves one task with each behaviour of models' servers, and prints the table.
func TestBehaviours(t *testing.T) {
	t.Parallel()
	all := modelserver.All()
	lines := make([]string, len(all))
	passed := make([]bool, len(all))
	t.Run("each", func(t *testing.T) {
		for i, b := range all {
			t.Run(b.Title(), func(t *testing.T) {
				t.Parallel()
				n, err := solve(t, b)
				passed[i] = err == nil
				said := fmt.Sprintf("passed, %d requests", n)
				if err != nil {
					said = "NOT PASSED: " + err.Error()
					t.Error(err)
				}
				lines[i] = fmt.Sprintf("| %s | %s | %s | %s |", b.Title(), b.Maker, b.Source, said)
			})
		}
	})
	n := 0
	for _, ok := range passed {
		if ok {
			n++
		}
	}
	t.Logf("%d of %d behaviours passed\n%s", n, len(all), strings.Join(lines, "\n"))
}

// solve runs the task against a server and says what is wrong with the end of it.
func solve(t *testing.T, b modelserver.Behaviour) (requests int, err error) {
	t.Helper()
	s := modelserver.New(t, b)
	setup := engine.Setup{
		ID: "0123456789abcdef0123456789abcdef", Dir: t.TempDir(), WorkingDir: t.TempDir(),
		Agent: engine.Agent{Kind: "openhands", LLM: engine.LLM{
			Model: "openai/scripted", APIKey: "sk-scripted", BaseURL: s.URL, Timeout: b.Timeout, ReasoningEffort: b.Effort,
			API: string(cmp.Or(b.Asked, b.API)),
		}},
	}
	if b.MaxTokens > 0 {
		setup.Agent.LLM.MaxOutputTokens = &b.MaxTokens
	}
	if b.Temperature > 0 {
		setup.Agent.LLM.Temperature = &b.Temperature
	}
	conv := newMemory()
	if err := conv.Append(before(b.Past)...); err != nil {
		return 0, err
	}
	if b.Past != modelserver.Answered {
		if err := conv.Append(userMessage(event.SourceUser, modelserver.Task)); err != nil {
			return 0, err
		}
	}
	e, err := New(setup, conv)
	if err != nil {
		return 0, err
	}
	defer e.Close()
	e.client.firstDelay = time.Millisecond
	box, err := e.open(t.Context())
	if err != nil {
		return 0, err
	}
	box.tools = append(box.tools, oddTool{newProbe("odd")})
	outcome := engine.Continue
	for range mostRequests {
		if outcome, err = e.Step(t.Context()); err != nil || outcome != engine.Continue {
			break
		}
	}
	if err != nil {
		return s.Requests(), err
	}
	return s.Requests(), ended(conv, setup.WorkingDir, b, outcome, s.Requests())
}

// ended says what is wrong with the end of the task.
func ended(conv *memory, dir string, b modelserver.Behaviour, outcome engine.Outcome, requests int) error {
	if outcome != engine.Finished {
		return fmt.Errorf("the run ends with %d", outcome)
	}
	files := []string{modelserver.File}
	if b.Two {
		files = append(files, "other.txt")
	}
	for _, name := range files {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != modelserver.Content {
			return fmt.Errorf("%s has %q: %w", name, text, err)
		}
	}
	events, err := conv.Events()
	if err != nil {
		return err
	}
	if got := event.FinalResponse(events); got != modelserver.Farewell {
		return fmt.Errorf("the last answer is %q", got)
	}
	for _, e := range events {
		text := ""
		switch e := e.(type) {
		case *event.Message:
			if e.Source == event.SourceAgent {
				text = e.LLMMessage.Text()
			}
		case *event.Action:
			for _, t := range e.Thought {
				text += t.Text
			}
		}
		for _, tag := range []string{"think>", "<tool_call", "<function=", "<invoke"} {
			if strings.Contains(text, tag) {
				return fmt.Errorf("%s is shown: %q", tag, text)
			}
		}
	}
	if requests > mostRequests {
		return fmt.Errorf("%d requests", requests)
	}
	return nil
}

// before is what a conversation holds before the task.
func before(p modelserver.Past) []event.Event {
	begin := userMessage(event.SourceUser, "Look at this first.")
	picture := func(kind, bytes string) []event.Event {
		url := "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString([]byte(bytes))
		begin.LLMMessage.Content = append(begin.LLMMessage.Content, event.Content{Type: "image", ImageURLs: []string{url}})
		return []event.Event{begin, answerOf("I have seen it.")}
	}
	const png, jpeg = "\x89PNG\r\n\x1a\n0000", "\xff\xd8\xff\xe0\x00\x10JFIF"
	switch p {
	case modelserver.Picture:
		return picture("image/png", png)
	case modelserver.Pointer:
		return picture("image/png", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
	case modelserver.WrongType:
		return picture("image/png", jpeg)
	case modelserver.TwoMessages:
		return []event.Event{begin}
	case modelserver.Answered:
		return []event.Event{userMessage(event.SourceUser, modelserver.Task), answerOf("I will write it.")}
	case modelserver.OddNames:
		return append(append([]event.Event{begin}, call("functions.terminal", "past-1", "")...), call("", "past-2", "")...)
	case modelserver.OddIDs:
		return append([]event.Event{begin}, call("think", "functions.think:0|"+strings.Repeat("é", 20), "")...)
	case modelserver.Called:
		return append([]event.Event{begin}, call("think", "past-1", "")...)
	case modelserver.Thought:
		return append([]event.Event{begin}, call("think", "past-1", "Where do I begin?")...)
	case modelserver.EmptyAnswers:
		return []event.Event{begin, answerOf(""), nudge(nudgeEmpty)}
	case modelserver.PictureTool:
		events := call("think", "past-1", "")
		url := "data:image/png;base64," + base64.StdEncoding.EncodeToString([]byte(png))
		events[1].(*event.Observation).Observation = json.RawMessage(`{"kind":"ThinkObservation","content":[` +
			`{"type":"text","text":"See."},{"type":"image","image_urls":["` + url + `"]}],"is_error":false}`)
		return append([]event.Event{begin}, events...)
	}
	return nil
}

func answerOf(text string) *event.Message {
	m := userMessage(event.SourceAgent, text)
	m.LLMMessage.Role = "assistant"
	return m
}

// call is a call of the past and its result.
func call(tool, id, thought string) []event.Event {
	a := &event.Action{
		Head: event.Head{ID: "action-" + id, Source: event.SourceAgent}, Thought: []event.Text{},
		ThinkingBlocks: []event.ThinkingBlock{}, Action: json.RawMessage(`{"kind":"ThinkAction","thought":"x"}`),
		ToolName: tool, ToolCallID: id, LLMResponseID: "response-" + id, SecurityRisk: riskUnknown,
		ToolCall:         event.ToolCall{ID: id, Name: tool, Arguments: `{"thought":"x"}`, Origin: "completion"},
		ReasoningContent: optional(thought),
	}
	return []event.Event{a, &event.Observation{
		Head: event.Head{Source: event.SourceEnvironment}, ToolName: tool, ToolCallID: id, ActionID: a.ID,
		Observation:     json.RawMessage(`{"kind":"ThinkObservation","content":[{"type":"text","text":"logged"}]}`),
		ExtendedContent: []event.Text{},
	}}
}

// oddTool has a schema as MCP servers write them.
type oddTool struct{ *probe }

// Definition implements tools.Tool.
func (o oddTool) Definition() tools.Definition {
	d := o.probe.Definition()
	d.Parameters = json.RawMessage(`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object",` +
		`"additionalProperties":false,"properties":{"text":{"anyOf":[{"type":"string","examples":["a"]},{"type":"null"}],` +
		`"description":"A text.","default":null},"many":{"type":["array","null"],"items":{"const":"a"}}},` +
		`"required":["text"]}`)
	return d
}
