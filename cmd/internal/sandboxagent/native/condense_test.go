package native

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// summaries answers the condenser, which offers no tools.
func summaries(answers ...modeltest.Answer) *modeltest.Story {
	return &modeltest.Story{When: modeltest.When{System: "keep the memory"}, Answers: answers, InOrder: true}
}

// A long history is condensed, again and again, and the task goes on.
func TestCondense_LongHistory(t *testing.T) {
	var answers []modeltest.Answer
	for i := range 20 {
		answers = append(answers, modeltest.Calls(echo(fmt.Sprint(i))))
	}
	answers = append(answers, modeltest.Text("Done."))
	r := newRig(t, &modeltest.Script{
		Stories: []*modeltest.Story{summaries(modeltest.Text("what was so far")), {Answers: answers, InOrder: true}},
	},
		func(s *engine.Setup) { s.Agent.Condenser.MaxSize = 12 })
	r.add(newProbe("echo"))
	r.say("go")
	r.ends(engine.Finished)
	list := all[*event.Condensation](r)
	if len(list) < 3 || *list[0].Summary != "what was so far" || *list[0].SummaryOffset != 2 {
		t.Errorf("%d condensations: %+v", len(list), list)
	}
	if n := sizeOf(view(r.events())); n > 14 {
		t.Errorf("the view has %d events", n)
	}
	last := r.server.Requests()[len(r.server.Requests())-1]
	if m := last.Messages; m[0].Role != "system" || m[1].Text != "go" || !strings.Contains(m[2].Text, "what was so far") {
		t.Errorf("the view begins with %+v", m[:3])
	}
	var stats event.Stats
	mustDecode(t, r.memory.State(engine.KeyStats), &stats)
	if stats.UsageToMetrics["condenser"].AccumulatedTokenUsage.PromptTokens == 0 {
		t.Error("the condenser's tokens are not counted")
	}
}

// A context that is too long is condensed once and the run goes on; one that stays too long, or
// without a condenser, ends it.
func TestCondense_ContextTooLong(t *testing.T) {
	long := modeltest.Answer{Text: "Done.", Fault: &modeltest.Fault{Kind: modeltest.ContextLength, Times: 1}}
	script := func(a modeltest.Answer) *modeltest.Script {
		return &modeltest.Script{Stories: []*modeltest.Story{summaries(modeltest.Text("so far")),
			{Answers: []modeltest.Answer{
				modeltest.Calls(echo("a")), modeltest.Calls(echo("b")), modeltest.Calls(echo("c")), a}, InOrder: true}}}
	}
	r := newRig(t, script(long))
	r.add(newProbe("echo"))
	r.say("go")
	r.ends(engine.Finished)
	if got := r.story(); got[len(got)-3] != "condensation request" ||
		!strings.HasPrefix(got[len(got)-2], "condensation of") {
		t.Errorf("story: %v", got)
	}
	long.Fault.Times = 0
	r = newRig(t, script(long))
	r.add(newProbe("echo"))
	r.say("go")
	_ = r.fails("LLMContextWindowExceedError")

	off := false
	r = newRig(t, script(long), func(s *engine.Setup) { s.Agent.Condenser.Enabled = &off })
	r.add(newProbe("echo"))
	r.say("go")
	_ = r.fails("LLMContextWindowExceedError")
	if len(all[*event.CondensationRequest](r)) != 0 {
		t.Error("a condensation was requested without a condenser")
	}
}

// A long history whose condensation fails is sent as it is.
func TestCondense_SoftFailure(t *testing.T) {
	var answers []modeltest.Answer
	for i := range 5 {
		answers = append(answers, modeltest.Calls(echo(fmt.Sprint(i))))
	}
	r := newRig(t, &modeltest.Script{Stories: []*modeltest.Story{
		summaries(modeltest.Answer{Fault: &modeltest.Fault{Kind: modeltest.BadRequest}}),
		{Answers: append(answers, modeltest.Text("Done.")), InOrder: true},
	}}, func(s *engine.Setup) { s.Agent.Condenser.MaxSize = 6 })
	r.add(newProbe("echo"))
	r.say("go")
	r.ends(engine.Finished)
	if n := len(all[*event.Condensation](r)); n != 0 {
		t.Errorf("%d condensations", n)
	}
}

// A question beside the conversation and a title store nothing.
func TestAsk_AndTitle(t *testing.T) {
	r := newRig(t, &modeltest.Script{Stories: []*modeltest.Story{
		{When: modeltest.When{User: "how far"}, Answers: []modeltest.Answer{modeltest.Text("Half.")}},
		{
			When:    modeltest.When{System: "Write a title"},
			Answers: []modeltest.Answer{modeltest.Text("\"A title " + strings.Repeat("long ", 20) + "\"\nmore")},
		},
		{Answers: []modeltest.Answer{modeltest.Calls(echo("a"))}},
	}})
	r.add(newProbe("echo"))
	r.memory.set(t, engine.KeyConfirmationPolicy, engine.Policy{Kind: "AlwaysConfirm"})
	r.say("go")
	r.ends(engine.Waiting) // a call without a result
	before := len(r.events())
	if got, err := r.Ask(t.Context(), "how far are you?"); err != nil || got != "Half." {
		t.Errorf("asked: %q %v", got, err)
	}
	if got, err := r.Title(t.Context(), "go"); err != nil || !strings.HasPrefix(got, "A title long") ||
		len([]rune(got)) != 50 {
		t.Errorf("title: %q %v", got, err)
	}
	if n := len(r.events()); n != before {
		t.Errorf("%d events were stored", n-before)
	}
}

// The last count corrects the estimate of the tokens: a history that is above the model's limit by it
// is condensed before it is refused.
func TestCondense_ByTheCountedTokens(t *testing.T) {
	t.Parallel()
	many := &modeltest.Usage{Prompt: 5000, Completion: 10}
	var answers []modeltest.Answer
	for i := range 6 {
		a := modeltest.Calls(echo(fmt.Sprint(i)))
		a.Usage = many
		answers = append(answers, a)
	}
	r := newRig(t, &modeltest.Script{Stories: []*modeltest.Story{summaries(modeltest.Text("so far")),
		{Answers: append(answers, modeltest.Text("Done.")), InOrder: true}}},
		func(s *engine.Setup) { s.Agent.LLM.MaxInputTokens = 4000 })
	r.add(newProbe("echo"))
	r.say("go")
	r.ends(engine.Finished)
	if n := len(all[*event.Condensation](r)); n == 0 {
		t.Error("nothing was condensed")
	}
}

// A refusal that names the window teaches it: the next history is condensed before it is sent.
func TestWindow_OfARefusal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"This model's maximum context length is 8192 tokens. However, your messages resulted in 9001": 8192,
		`{"error":{"code":400,"message":"exceeds the available context size","n_ctx":4096}}`:          4096,
		"the prompt is too long": 0,
	} {
		w := &window{}
		if w.refused(text); w.limit != want {
			t.Errorf("%s: %d, want %d", text, w.limit, want)
		}
	}
}

// A task of many steps comes to its end with a window that holds a few of its results, whether the
// settings say how large it is or the server does when it refuses.
func TestCondense_ASmallWindow(t *testing.T) {
	t.Parallel()
	const window, steps = 10_000, 25
	for name, limit := range map[string]int{"told": window, "found out": 0, "listed": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var done, refused atomic.Int32
			script := &modeltest.Script{Func: func(r modeltest.Request) (modeltest.Answer, bool) {
				tokens := len(r.Body) / bytesPerToken
				switch {
				case tokens > window:
					refused.Add(1)
					return modeltest.Answer{Fault: &modeltest.Fault{Kind: modeltest.ContextLength, Message: fmt.Sprintf(
						"This model's maximum context length is %d tokens. However, there are %d.", window, tokens)}}, true
				case len(r.Tools) == 0:
					return modeltest.Text(fmt.Sprintf("%d steps are done", done.Load())), true
				case done.Load() == steps:
					return modeltest.Calls(finishing("Done.")), true
				}
				a := modeltest.Calls(echo(fmt.Sprintf("%d %s", done.Add(1), strings.Repeat("x", 8000))))
				a.Usage = &modeltest.Usage{Prompt: tokens, Completion: 100}
				return a, true
			}}
			most := int32(0)
			switch name {
			case "found out":
				most = 3
			case "listed":
				script.Models, script.Window = []string{"scripted"}, window
			}
			r := newRig(t, script, func(s *engine.Setup) {
				streamed := false
				s.Agent.LLM.MaxInputTokens, s.Agent.LLM.Stream = limit, &streamed
			})
			r.add(newProbe("echo"))
			r.say("go")
			outcome := engine.Continue
			for n := 0; outcome == engine.Continue; n++ {
				var err error
				if outcome, err = r.Step(t.Context()); err != nil || n > 5*steps {
					t.Fatalf("after %d steps: %v", done.Load(), err)
				}
			}
			if done.Load() != steps || refused.Load() > most {
				t.Errorf("%d steps are done, %d requests were refused", done.Load(), refused.Load())
			}
		})
	}
}

// A server that cuts long requests in silence is found out by what it counts, once; the conversation
// says so and is kept short enough.
func TestCondense_AServerThatCutsInSilence(t *testing.T) {
	t.Parallel()
	const window, steps = 6000, 20
	var done, long atomic.Int32
	script := &modeltest.Script{Func: func(r modeltest.Request) (modeltest.Answer, bool) {
		if len(r.Tools) == 0 {
			return modeltest.Text("so far"), true
		}
		tokens := len(r.Body) / bytesPerToken
		if tokens > 2*window {
			long.Add(1)
		}
		a := modeltest.Calls(finishing("Done."))
		if done.Load() < steps {
			a = modeltest.Calls(echo(fmt.Sprintf("%d %s", done.Add(1), strings.Repeat("x", 6000))))
		}
		a.Usage = &modeltest.Usage{Prompt: min(tokens, window), Completion: 100}
		return a, true
	}}
	r := newRig(t, script, func(s *engine.Setup) { streamed := false; s.Agent.LLM.Stream = &streamed })
	r.add(newProbe("echo"))
	r.say("go")
	r.ends(engine.Finished)
	said := 0
	for _, line := range r.story() {
		if strings.Contains(line, "leaves out parts of requests above 6000 tokens") {
			said++
		}
	}
	if said != 1 || long.Load() > 8 || len(all[*event.Condensation](r)) == 0 {
		t.Errorf("said %d times; %d long requests, %d condensations", said, long.Load(), len(all[*event.Condensation](r)))
	}
}

// A server whose counts mean nothing is not taken for one that cuts; one that counts more than the
// window that was found has no such window.
func TestWindow_OfCounts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		counts      []int
		found, last int // what is found of them, and the limit after them
	}{
		{[]int{128, 128, 128, 128, 128}, 0, 0},
		{[]int{2000, 2000, 3000}, 0, 0},
		{[]int{2000, 2000, 2000, 2000}, 2000, 2000},
		{[]int{2000, 2000, 2000, 9000}, 2000, 0},
	} {
		w := &window{}
		found := 0
		p := prompt{tools: []openai.Tool{{}}}
		for _, n := range c.counts {
			p.messages = append(p.messages, userText(strings.Repeat("x", 40_000)))
			found = max(found, w.counted(p, n))
		}
		if found != c.found || w.limit != c.last {
			t.Errorf("%v: found %d, the limit is %d", c.counts, found, w.limit)
		}
	}
}

// To condense again what is condensed does nothing, and leaves nothing to be done.
func TestCondense_NothingIsLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t, &modeltest.Script{Stories: []*modeltest.Story{
		summaries(modeltest.Text("so far")), {Answers: []modeltest.Answer{modeltest.Text("Done.")}},
	}})
	r.say("go")
	r.ends(engine.Finished)
	for range 4 {
		if err := r.memory.Append(&event.CondensationRequest{Head: event.Head{Source: event.SourceUser}}); err != nil {
			t.Fatal(err)
		}
		if err := r.Condense(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	asked := len(r.server.Requests())
	r.say("and now?")
	r.ends(engine.Finished)
	if n := len(r.server.Requests()) - asked; n != 1 {
		t.Errorf("the next message takes %d requests", n)
	}
}
