package native

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	openai "github.com/sashabaranov/go-openai"
	"pgregory.net/rapid"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/ops/agents/modelserver"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// What a server refuses is refused once: the next request does not have it.
func TestDialect_IsRemembered(t *testing.T) {
	t.Parallel()
	for _, b := range modelserver.All() {
		if b.API != "" || b.Name != "forbids stream_options" && b.Name != "no parser of calls" {
			continue
		}
		if n, err := solve(t, b); err != nil || n != 3 {
			t.Errorf("%s: %d requests, %v; want a refused one and two", b.Name, n, err)
		}
	}
}

// Whatever the history, each dialect gets a request that keeps its rules.
func TestFit_KeepsTheRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := dialect{
			noPictures: rapid.Bool().Draw(t, "noPictures"), noSystem: rapid.Bool().Draw(t, "noSystem"),
			alternate: rapid.Bool().Draw(t, "alternate"), fullContent: rapid.Bool().Draw(t, "fullContent"),
			shortIDs: rapid.Bool().Draw(t, "shortIDs"), thoughts: rapid.Bool().Draw(t, "thoughts"),
			written: rapid.Bool().Draw(t, "written"), told: rapid.Bool().Draw(t, "told"),
		}
		list := messages(view(history(t)), true)
		kept, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		tools := []openai.Tool{{Type: "function", Function: &openai.FunctionDefinition{Name: "echo"}}}
		r := d.fit(openai.ChatCompletionRequest{Messages: list, Tools: tools, Stream: true})
		if now, _ := json.Marshal(list); string(now) != string(kept) {
			t.Fatal("the history itself was changed")
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
		if err := modeltest.CheckResults(asRead(r.Messages)); err != nil {
			t.Fatalf("%v\n%+v", err, r.Messages)
		}
		if problem := breaks(d, r); problem != "" {
			t.Fatalf("%s: %+v\n%+v", problem, d, r.Messages)
		}
	})
}

// breaks says which rule of a dialect a request breaks.
func breaks(d dialect, r *openai.ChatCompletionRequest) string {
	before := ""
	for i, m := range r.Messages {
		for _, c := range m.ToolCalls {
			switch {
			case d.written || d.told:
				return "a native call"
			case badInName.MatchString(c.Function.Name) || c.Function.Name == "" || !goodID.MatchString(c.ID):
				return "a name or an id"
			case d.shortIDs && len(c.ID) != 9:
				return "a long id"
			}
		}
		switch {
		case d.written && m.Role == "tool":
			return "a native result"
		case d.noSystem && m.Role == "system":
			return "a system message"
		case d.alternate && m.Role == before && m.Role != "tool", d.alternate && m.Role == "user" && before == "tool":
			return "the order"
		case d.alternate && m.Role == "assistant" && (before == "" || before == "system"):
			return "the first message"
		case m.Role == "assistant" && i == len(r.Messages)-1:
			return "the last message"
		case d.fullContent && strings.TrimSpace(m.Content) == "" && len(m.MultiContent) == 0:
			return "an empty message"
		}
		before = m.Role
	}
	if d.written && len(r.Tools) > 0 {
		return "native tools"
	}
	return ""
}

// A server may want to be asked again after more than a minute; then that is waited for.
func TestRetry_WaitsAsLongAsTheServerSays(t *testing.T) {
	t.Parallel()
	r := newRig(t, modeltest.Turns(modeltest.Answer{
		Text: "Here.", Fault: &modeltest.Fault{Kind: modeltest.RateLimit, Times: 1, RetryAfterS: 300},
	}))
	var waited []time.Duration
	r.client.pause = func(_ context.Context, d time.Duration) error {
		waited = append(waited, d)
		return nil
	}
	r.say("go")
	r.ends(engine.Finished)
	if !slices.Equal(waited, []time.Duration{5 * time.Minute}) {
		t.Errorf("waited %v", waited)
	}
}

// A text that the limit cuts again and again is stored as far as it came, and ends with a reason.
func TestStep_TheLimitCutsEveryAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, modeltest.InOrder(modeltest.Answer{
		Text: "part ", Finish: "length", Usage: &modeltest.Usage{Prompt: 10, Completion: 2},
	}))
	r.say("go")
	_ = r.fails("LLMOutputLimitError")
	r.tells("user: go", "system", "agent: part part part part ")
	var stats event.Stats
	mustDecode(t, r.memory.State(engine.KeyStats), &stats)
	if got := stats.UsageToMetrics["agent"].AccumulatedTokenUsage; got.PromptTokens != 40 || got.CompletionTokens != 8 {
		t.Errorf("counted %+v", got)
	}
}

// What the parts of an answer cost is counted where the next one does not come, and none is shown.
func TestStep_AContinuationThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, modeltest.InOrder(
		modeltest.Answer{Text: "part ", Finish: "length", Usage: &modeltest.Usage{Prompt: 100_000, Completion: 2}},
		modeltest.Answer{Fault: &modeltest.Fault{Kind: modeltest.Unauthorized}}))
	r.say("go")
	_ = r.fails("LLMAuthenticationError")
	var stats event.Stats
	mustDecode(t, r.memory.State(engine.KeyStats), &stats)
	got := stats.UsageToMetrics["agent"].AccumulatedTokenUsage
	if got.PromptTokens != 100_000 || got.CompletionTokens != 2 {
		t.Errorf("counted %+v", got)
	}
	if last, is := r.memory.sent[len(r.memory.sent)-1].(*event.Message); !is || last.LLMMessage.Text() != brokenOff {
		t.Errorf("the part is still shown: %+v", r.memory.sent)
	}
}

// A call that the limit cut is not executed, however complete it could be made.
func TestStep_TheLimitCutsACall(t *testing.T) {
	t.Parallel()
	r := newRig(t, modeltest.InOrder(
		modeltest.Answer{Calls: []modeltest.Call{{Name: "echo", Raw: `{"text": "a"`}}, Finish: "length"},
		modeltest.Text("Done.")))
	p := newProbe("echo")
	r.add(p)
	r.say("go")
	r.ends(engine.Finished)
	r.tells("user: go", "system", "call echo null", "error echo", "agent: Done.")
	if e := all[*event.AgentError](r)[0]; !strings.Contains(e.Error, "limit of output cut this call") {
		t.Error(e.Error)
	}
}

// What an answer showed before it broke off is not shown twice, and not beside another answer.
func TestDisplay_OfARepeatedAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tries [][]string
		want  string
	}{
		"the same":        {[][]string{{"Hel", "lo w"}, {"Hello", " world"}}, "Hello world"},
		"another":         {[][]string{{"Hel", "lo w"}, {"Good", " day"}}, "Good day"},
		"less":            {[][]string{{"Hello w"}, {"Hel"}}, "Hel"},
		"partly another":  {[][]string{{"Hello w"}, {"Hello", " there"}, {"Help"}}, "Help"},
		"a shorter first": {[][]string{{"Hello"}, {"He"}, {"Hello, ", "you"}}, "Hello, you"},
		"thoughts":        {[][]string{{"<thi", "nk>no</th", "ink>", "yes"}}, "yes"},
		"a call":          {[][]string{{"I call.", "<tool", "_call>{", "}</tool_call>"}}, "I call."},
		"no call":         {[][]string{{"a <tool", "box> b"}}, "a <toolbox> b"},
		"an open end":     {[][]string{{"a <tool"}}, "a <tool"},
	} {
		shown, thought := "", ""
		d := &display{
			send:     func(text, reasoning string) { shown += text; thought += reasoning },
			withdraw: func() { shown = "" },
		}
		for _, try := range c.tries {
			d.again()
			for _, part := range try {
				d.add(part, "")
			}
		}
		d.end()
		if shown != c.want || (name == "thoughts") != (thought == "no") {
			t.Errorf("%s: shown %q, want %q; thought %q", name, shown, c.want, thought)
		}
		if d.fail(); shown != "" {
			t.Errorf("%s: %q is shown of an answer that does not come", name, shown)
		}
	}
}

func TestObjects_OfArguments(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"": {"{}"}, "null": {"{}"}, ` {"a":1} `: {`{"a":1}`}, "```json\n{\"a\":1}\n```": {`{"a":1}`},
		`"{\"a\":1}"`: {`{"a":1}`}, `{"a":1}{"a":2}`: {`{"a":1}`, `{"a":2}`}, `{"a":1}{"a":1}`: {`{"a":1}`},
		"{\"a\":\"b\nc\"}": {`{"a":"b\nc"}`}, `{"a":{"b":1}`: {`{"a":{"b":1}}`}, `{"a":"b`: {`{"a":"b`}, `["a"]`: {`["a"]`},
	} {
		if got := objects(text); !slices.Equal(got, want) {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.SampledFrom([]rune("{}[]\":,\\n\n`a1 ")), 0, 30, -1).Draw(t, "text")
		if len(objects(text)) == 0 {
			t.Fatal("no arguments")
		}
	})
}

// A text about calls is a text.
func TestReadCalls_OnlyCalls(t *testing.T) {
	t.Parallel()
	tools := []openai.Tool{{Type: "function", Function: &openai.FunctionDefinition{Name: "echo"}}}
	for _, text := range []string{
		"Write `<tool_call>{\"name\":\"echo\",\"arguments\":{}}</tool_call>` to call it.",
		"As in:\n```xml\n<function=echo>\n<parameter=text>a</parameter>\n</function>\n```\nand so on.",
		`{"name":"other","arguments":{}}`, `{"name":"echo"`, "<function=other><parameter=a>b</parameter></function>",
		"A <think> tag and a </think> tag in a line.",
		"```go\nx\n```\nand\n```xml\n" + echoTagged + "\n```", "As in:\n~~~\n" + echoTagged + "\n~~~", "```\n" + echoTagged,
		"As in:\n\n    " + echoTagged, "> " + echoTagged, "It writes \"" + echoTagged, "Use `it " + echoTagged + "`",
		"````md\n```\n" + echoTagged + "\n```\n" + echoTagged + "\n````", "<pre>\n" + echoTagged + "\n</pre>",
		"models write <function=echo> and so on", "<function=echo>", "<function=echo> and so on",
		"The README says:\n<tool_call>{\"name\":\"echo\",\"arguments\":{}}</tool_call>\nto call it.",
		echoTagged + "\nThat is all.", echoTagged + "\n" + echoTagged + "\nThat is all.",
		"<function=other>\n<parameter=text>\n" + echoTagged, `<function=echo>{"text":`,
	} {
		for _, how := range []reads{readsNone, readsLines, readsAll} {
			a := answer{text: text}
			a.think()
			if a.settle(tools, how); a.text != text || len(a.calls) > 0 || a.reasoning != "" {
				t.Errorf("%s\nbecomes %q and %+v", text, a.text, a.calls)
			}
		}
	}
	for _, c := range []struct {
		text string
		from reads // the least that reads it
		rest string
	}{
		{"So:\n" + echoTagged, readsLines, "So:"}, {"So: " + echoTagged, readsAll, "So:"},
		{"So:\n" + echoTagged + "\n" + executionResult + "echo]:\nmade up", readsAll, "So:"},
		{"```\nx\n```\n" + echoTagged, readsLines, "```\nx\n```"},
	} {
		for _, how := range []reads{readsNone, readsLines, readsAll} {
			a := answer{text: c.text}
			if a.settle(tools, how); (len(a.calls) == 1 && a.text == c.rest) != (how >= c.from) {
				t.Errorf("%q read as %d: %q and %+v", c.text, how, a.text, a.calls)
			}
		}
	}
	a := answer{text: "<function=echo><parameter=text>ends with </function></parameter></function>"}
	a.settle(tools, readsLines)
	if len(a.calls) != 1 || a.calls[0].Function.Arguments != `{"text":"ends with \u003c/function\u003e"}` {
		t.Errorf("a value with an end in it: %+v", a.calls)
	}
}

const echoTagged = "<function=echo><parameter=text>a</parameter></function>"

// A model that has called natively is one whose texts are texts, so that what it quotes of a file is
// not executed.
func TestStep_ATextOfANativeModel(t *testing.T) {
	t.Parallel()
	r := newRig(t, modeltest.InOrder(modeltest.Calls(echo("a")), modeltest.Text("It says:\n\n"+echoTagged)))
	r.add(newProbe("echo"))
	r.say("what does the README say?")
	r.ends(engine.Finished)
	r.tells("user: what does the README say?", "system", "call echo", "result echo: echo a",
		"agent: It says:\n\n"+echoTagged)
}

// What is quoted in a text is so in its continuation too.
func TestStep_AContinuationOfAFence(t *testing.T) {
	t.Parallel()
	r := newRig(t, modeltest.InOrder(modeltest.Answer{Text: "As in:\n```xml\n", Finish: "length"},
		modeltest.Text(echoTagged), modeltest.Text("Not asked for.")))
	r.add(newProbe("echo"))
	r.say("go")
	r.ends(engine.Finished)
	r.tells("user: go", "system", "agent: As in:\n```xml\n"+echoTagged)
}

// A refusal that no repair would change the request for is the answer at once.
func TestDialect_NothingToRepair(t *testing.T) {
	t.Parallel()
	r := newRig(t, modeltest.Turns(modeltest.Answer{Fault: &modeltest.Fault{
		Kind: modeltest.BadRequest, Message: "temperature, image, reasoning_effort, tool_call_id pattern, max_tokens",
	}}))
	r.say("go")
	_ = r.fails("LLMBadRequestError")
	if n := len(r.server.Requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// What was shown of an answer that broke off is withdrawn where the next one differs, and where none
// comes. Nothing of that is stored.
func TestStep_WithdrawsWhatBrokeOff(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]modeltest.Answer{
		"another answer": modeltest.Calls(finishing("Done.")),
		"none":           {Fault: &modeltest.Fault{Kind: modeltest.Unauthorized}},
	} {
		r := newRig(t, modeltest.InOrder(
			modeltest.Answer{Text: "I begin with a long text.", Fault: &modeltest.Fault{Kind: modeltest.Truncated}}, second))
		r.say("go")
		if name == "none" {
			_ = r.fails("LLMAuthenticationError")
		} else {
			r.ends(engine.Finished)
		}
		var shown string
		for _, e := range r.memory.sent {
			switch e := e.(type) {
			case *event.StreamingDelta:
				shown += *e.Content
			case *event.Message:
				shown = "" // as the page does
			}
		}
		stored := slices.ContainsFunc(all[*event.Message](r), func(m *event.Message) bool {
			return m.LLMMessage.Text() == brokenOff
		})
		if shown != "" || stored {
			t.Errorf("%s: %q is shown, stored: %v", name, shown, stored)
		}
	}
}
