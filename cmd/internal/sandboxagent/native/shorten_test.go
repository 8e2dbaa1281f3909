package native

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// longTool reads a long file.
type longTool struct{ *probe }

// Run implements tools.Tool.
func (l longTool) Run(context.Context, json.RawMessage) tools.Observation {
	return tools.Observation{
		Kind:    "ProbeObservation",
		Content: []event.Content{event.TextContent(strings.Repeat("A line of a long file.\n", 200))},
	}
}

// TestShorten_ManyStepsInASmallWindow: a task of many steps comes to its end with a window of 16,000
// tokens, no request is refused, and old outputs are shortened before anything is summarized. Most
// requests begin as the one before, which is what servers cache. BIVOUAC_DRILL=long does 300 steps.
func TestShorten_ManyStepsInASmallWindow(t *testing.T) {
	t.Parallel()
	const window = 16_000
	steps := 50
	if os.Getenv("BIVOUAC_DRILL") == "long" {
		steps = 300
	}
	done, refused, summarized, kept, firstShort := 0, 0, 0, 0, 0
	var before []json.RawMessage
	script := &modeltest.Script{Func: func(r modeltest.Request) (modeltest.Answer, bool) {
		tokens := len(r.Body) / bytesPerToken
		switch {
		case tokens > window:
			refused++
			return modeltest.Answer{Fault: &modeltest.Fault{Kind: modeltest.ContextLength}}, true
		case len(r.Tools) == 0:
			summarized++
			return modeltest.Text(fmt.Sprintf("%d steps are done", done)), true
		case done == steps:
			return modeltest.Calls(finishing("Done.")), true
		}
		var body struct{ Messages []json.RawMessage }
		if err := json.Unmarshal(r.Body, &body); err != nil {
			t.Error(err)
		}
		same := len(before) <= len(body.Messages)
		for i := range before {
			same = same && bytes.Equal(before[i], body.Messages[i])
		}
		if before = body.Messages; same {
			kept++
		}
		if firstShort == 0 && strings.Contains(string(r.Body), "bytes of this old output are left out") {
			firstShort = summarized + 1
		}
		done++
		a := modeltest.Calls(modeltest.Tool("long", map[string]string{"text": fmt.Sprint(done)}))
		a.Usage = &modeltest.Usage{Prompt: tokens, Completion: 100}
		return a, true
	}}
	r := newRig(t, script, func(s *engine.Setup) {
		streamed, large := false, 100_000
		s.Agent.LLM.MaxInputTokens, s.Agent.LLM.Stream, s.Agent.Condenser.MaxSize = window, &streamed, large
	})
	r.add(longTool{newProbe("long")})
	r.say("go")
	for n, outcome := 0, engine.Continue; outcome == engine.Continue; n++ {
		var err error
		if outcome, err = r.Step(t.Context()); err != nil || n > 3*steps {
			t.Fatalf("after %d steps: %v", done, err)
		}
	}
	t.Logf("%d steps, %d summaries, %d of %d requests begin as the one before", done, summarized, kept, steps)
	if done != steps || refused > 0 || firstShort != 1 || kept*10 < steps*6 {
		t.Errorf("%d steps, %d refused; the first output was shortened before summary %d; %d prefixes are kept",
			done, refused, firstShort, kept)
	}
	if n := len(all[*event.Condensation](r)); n > steps/8 {
		t.Errorf("%d condensations", n)
	}
}

// TestShorten_ARefusedHistory: a history that the server finds too long is shortened first, without a
// question to the model.
func TestShorten_ARefusedHistory(t *testing.T) {
	t.Parallel()
	summarized := 0
	script := &modeltest.Script{Func: func(r modeltest.Request) (modeltest.Answer, bool) {
		results := 0
		for _, m := range r.Messages {
			if m.Role == "tool" {
				results++
			}
		}
		switch {
		case len(r.Tools) == 0:
			summarized++
			return modeltest.Text("so far"), true
		case len(r.Body) > 60_000:
			return modeltest.Answer{
				Fault: &modeltest.Fault{Kind: modeltest.ContextLength, Message: "the prompt is too long"},
			}, true
		case results == 15:
			return modeltest.Calls(finishing("Done.")), true
		}
		return modeltest.Calls(modeltest.Tool("long", map[string]string{"text": fmt.Sprint(results)})), true
	}}
	r := newRig(t, script)
	r.add(longTool{newProbe("long")})
	r.say("go")
	r.ends(engine.Finished)
	if n := len(all[*event.Condensation](r)); n == 0 || summarized > 0 {
		t.Errorf("%d condensations, %d summaries", n, summarized)
	}
}

// TestShortText keeps whole characters and short texts.
func TestShortText(t *testing.T) {
	t.Parallel()
	if got := shortText("as it is"); got != "as it is" {
		t.Errorf("a short text became %q", got)
	}
	for n := range 4 {
		got := shortText(strings.Repeat("a", n) + strings.Repeat("世", 4000))
		if !utf8.ValidString(got) || len(got) > longOutput || !strings.Contains(got, "left out") {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
}
