package native

import (
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// A text ends the run; its deltas are sent and not stored; tokens and cost are counted.
func TestStep_Text(t *testing.T) {
	price := 0.5
	r := newRig(t, &modeltest.Script{Key: "sk-scripted", Models: []string{
		"scripted",
	}, Stories: []*modeltest.Story{{Answers: []modeltest.Answer{{
		Text: "It is four, I am sure of it.", Reasoning: "Two and two.", Usage: &modeltest.Usage{
			Prompt:     100,
			Completion: 10,
			Cached:     40,
			Reasoning:  3,
		},
	}}}}}, func(s *engine.Setup) {
		s.Agent.LLM.InputCostPerToken = &price
		s.Agent.Suffix = "Answer in English."
		s.Secrets = map[string]engine.Secret{"TOKEN": {Value: "hush-hush", Description: "of the forge"}}
	})
	r.say("What is 2+2?")
	r.ends(engine.Finished)
	r.tells("user: What is 2+2?", "system", "agent: It is four, I am sure of it.")

	var text, thoughts string
	for _, e := range r.memory.sent {
		d := e.(*event.StreamingDelta)
		if d.Content != nil {
			text += *d.Content
		}
		if d.ReasoningContent != nil {
			thoughts += *d.ReasoningContent
		}
	}
	m := all[*event.Message](r)[1]
	if text != "It is four, I am sure of it." || thoughts != "Two and two." ||
		*m.LLMMessage.ReasoningContent != thoughts || *m.LLMResponseID != "chatcmpl-1" {
		t.Errorf("deltas %q %q, message %+v", text, thoughts, m)
	}
	var stats event.Stats
	mustDecode(t, r.memory.State(engine.KeyStats), &stats)
	got := stats.UsageToMetrics["agent"]
	want := event.Metrics{ModelName: "openai/scripted", AccumulatedCost: 50, AccumulatedTokenUsage: event.TokenUsage{
		Model: "openai/scripted", PromptTokens: 100, CompletionTokens: 10, CacheReadTokens: 40, ReasoningTokens: 3,
		PerTurnToken: 110, ResponseID: "chatcmpl-1",
	}}
	if got != want {
		t.Errorf("stats\n%+v\nwant\n%+v", got, want)
	}
	prompt := r.server.Requests()[0].Messages[0]
	for _, part := range []string{
		"software engineer",
		r.setup.WorkingDir,
		"Answer in English.",
		"- $TOKEN: of the forge",
	} {
		if prompt.Role != "system" || !strings.Contains(prompt.Text, part) {
			t.Errorf("the system prompt lacks %q", part)
		}
	}
	if strings.Contains(prompt.Text, "hush-hush") {
		t.Error("the system prompt has a secret's value")
	}
	r.say("And 3+3?")
	r.ends(engine.Finished)
	if n := len(all[*event.SystemPrompt](r)); n != 1 {
		t.Errorf("%d system prompts", n)
	}
	mustDecode(t, r.memory.State(engine.KeyStats), &stats)
	if got := stats.UsageToMetrics["agent"].AccumulatedTokenUsage.PromptTokens; got != 200 {
		t.Errorf("%d prompt tokens after two answers", got)
	}
}

// The calls of one answer are executed in their order, each has one result, and what follows
// finish is dropped.
func TestStep_Calls(t *testing.T) {
	r := newRig(t, modeltest.Turns(
		modeltest.Answer{
			Text:      "I look.",
			Reasoning: "Where?",
			Calls:     []modeltest.Call{echo("one"), echo("two"), echo("three")},
		},
		modeltest.Calls(echo("four"), finishing("All done."), echo("never")),
	))
	p := newProbe("echo")
	r.add(p)
	r.say("go")
	r.ends(engine.Finished)
	r.tells("user: go", "system", "call echo", "call echo", "call echo",
		"result echo: echo one", "result echo: echo two", "result echo: echo three",
		"call echo", "call finish", "result echo: echo four", "result finish: All done.")
	if got := strings.Join(*p.runs, " "); got != "one two three four" {
		t.Errorf("executed: %s", got)
	}
	a := all[*event.Action](r)
	if len(a[0].Thought) != 1 || a[0].Thought[0].Text != "I look." || *a[0].ReasoningContent != "Where?" ||
		len(a[1].Thought) != 0 || a[1].ReasoningContent != nil {
		t.Errorf("thoughts: %+v %+v", a[0], a[1])
	}
	if a[0].LLMResponseID != a[2].LLMResponseID || a[2].LLMResponseID == a[3].LLMResponseID ||
		a[0].SecurityRisk != "UNKNOWN" {
		t.Errorf("responses %s %s %s, risk %s", a[0].LLMResponseID, a[2].LLMResponseID, a[3].LLMResponseID, a[0].SecurityRisk)
	}
	if o := all[*event.Observation](r)[1]; o.ActionID != a[1].ID || o.ToolCallID != a[1].ToolCallID {
		t.Errorf("the second result is of %s %s, want %s %s", o.ActionID, o.ToolCallID, a[1].ID, a[1].ToolCallID)
	}
	if got := event.FinalResponse(r.events()); got != "All done." {
		t.Errorf("final response %q", got)
	}
}

// What can't be called is an error for the model, and the run goes on.
func TestStep_InvalidCalls(t *testing.T) {
	r := newRig(t, modeltest.Turns(
		modeltest.Calls(
			modeltest.Call{Name: "nothing"}, modeltest.Call{
				Name: "echo",
				Raw:  `{"text": "a`,
			}, modeltest.Call{Name: "echo", Raw: `["a"]`},
			modeltest.Tool("echo", map[string]string{"txt": "a"}), echo("good"),
		),
		modeltest.Text("Enough."),
	))
	r.add(newProbe("echo"))
	r.say("go")
	r.ends(engine.Finished)
	r.tells("user: go", "system",
		"call nothing null", "error nothing", "call echo null", "error echo", "call echo null", "error echo",
		"call echo null", "error echo",
		"call echo", "result echo: echo good", "agent: Enough.")
	a := all[*event.Action](r)
	if !strings.Contains(a[1].ToolCall.Arguments, `"_openhands_malformed_tool_call":true`) ||
		a[3].ToolCall.Arguments != `{"txt":"a"}` {
		t.Errorf("arguments: %s and %s", a[1].ToolCall.Arguments, a[3].ToolCall.Arguments)
	}
	for i, want := range []string{
		`There is no tool "nothing"`,
		"not a JSON object",
		"not a JSON object",
		"echo needs the text",
	} {
		if e := all[*event.AgentError](r)[i]; !strings.Contains(e.Error, want) || e.Classification.Kind != "agent_action" {
			t.Errorf("error %d: %q %+v, want %q", i, e.Error, e.Classification, want)
		}
	}
	last := r.server.Requests()[1]
	if n := len(last.Messages); n != 8 || last.Messages[7].Text != "echo good" {
		t.Errorf("%d messages: %+v", n, last.Messages)
	}
}

// An empty answer is followed by a hint; the third in a row is stuck.
func TestStep_EmptyAnswers(t *testing.T) {
	r := newRig(t,
		modeltest.InOrder(modeltest.Answer{Reasoning: "Hm."}, modeltest.Text("Here."), modeltest.Answer{Reasoning: "Hm."}))
	r.say("go")
	r.ends(engine.Finished)
	r.tells("user: go", "system", "agent: ", "environment: "+nudgeEmpty, "agent: Here.")
	r.say("again")
	r.ends(engine.Stuck)
}

// A model that counts its calls anew in each answer has ids of its own for each call.
func TestStep_IDsThatRepeat(t *testing.T) {
	same := func(text string) modeltest.Call { c := echo(text); c.ID = "call_0"; return c }
	r := newRig(t,
		modeltest.Turns(modeltest.Calls(same("a"), same("b")), modeltest.Calls(same("c")), modeltest.Text("Done.")))
	r.add(newProbe("echo"))
	r.say("go")
	r.ends(engine.Finished)
	ids := map[string]bool{}
	for _, a := range all[*event.Action](r) {
		ids[a.ToolCallID] = true
	}
	if len(ids) != 3 {
		t.Errorf("ids: %v", ids)
	}
}

// What a call was executed without is named in its result.
func TestStep_NamesIgnoredArguments(t *testing.T) {
	t.Parallel()
	r := newRig(t, modeltest.InOrder(
		modeltest.Calls(modeltest.Call{Name: "think", Raw: `{"thought":"Hm.","mood":"good"}`}), modeltest.Text("Done.")))
	r.say("go")
	r.ends(engine.Finished)
	if got := observed(all[*event.Observation](r)[0]); !strings.Contains(got, "think has no argument mood") {
		t.Errorf("the result is %q", got)
	}
}
