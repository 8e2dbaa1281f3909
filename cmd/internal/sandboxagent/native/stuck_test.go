package native

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// counter is a tool whose result is another one each time.
type counter struct {
	*probe
	n int
}

func (c *counter) Run(context.Context, json.RawMessage) tools.Observation {
	c.n++
	return tools.Observation{Kind: "ProbeObservation", Content: []event.Content{event.TextContent(fmt.Sprint(c.n))}}
}

// Each pattern of repetition ends the run at its limit, and what only looks like one goes on until
// the model ends.
func TestStuck_Patterns(t *testing.T) {
	byTurn := func(answer func(turn int) modeltest.Answer) *modeltest.Script {
		return &modeltest.Script{Func: func(q modeltest.Request) (modeltest.Answer, bool) {
			if n := q.Number - 1; n < 12 { // a hint begins a turn of the script
				return answer(n), true
			}
			return modeltest.Text("Done."), true
		}}
	}
	unknown := func(args string) modeltest.Answer {
		return modeltest.Calls(modeltest.Call{Name: "nothing", Raw: args})
	}
	for name, c := range map[string]struct {
		answer  func(turn int) modeltest.Answer
		want    engine.Outcome
		actions int
		hints   int
	}{
		"one action, one result": {func(int) modeltest.Answer { return modeltest.Calls(echo("a")) }, engine.Stuck, 4, 0},
		"two actions in turns": {
			func(n int) modeltest.Answer { return modeltest.Calls(echo("ab"[n%2 : n%2+1])) },
			engine.Stuck,
			6,
			0,
		},
		"an unknown tool":  {func(int) modeltest.Answer { return unknown(`{}`) }, engine.Stuck, 4, 1},
		"broken arguments": {func(int) modeltest.Answer { return unknown(`{"a":`) }, engine.Stuck, 4, 1},
		"an error that the hint ends": {func(n int) modeltest.Answer {
			if n%4 < 3 {
				return unknown(`{}`)
			}
			return modeltest.Calls(echo(fmt.Sprint(n)))
		}, engine.Finished, 12, 3},
		"other arguments each time": {
			func(n int) modeltest.Answer { return unknown(fmt.Sprintf(`{"n":%d}`, n)) },
			engine.Finished,
			12,
			0,
		},
		"another result each time": {func(int) modeltest.Answer {
			return modeltest.Calls(modeltest.Tool("count", map[string]string{"text": "a"}))
		}, engine.Finished, 12, 0},
		"three actions in turns": {
			func(n int) modeltest.Answer { return modeltest.Calls(echo("abc"[n%3 : n%3+1])) },
			engine.Finished,
			12,
			0,
		},
		"another thought each time": {func(n int) modeltest.Answer {
			return modeltest.Answer{Text: fmt.Sprint(n), Calls: []modeltest.Call{echo("a")}}
		}, engine.Finished, 12, 0},
		"the same twice in a batch": {
			func(int) modeltest.Answer { return modeltest.Calls(echo("a"), echo("a")) },
			engine.Stuck,
			4,
			0,
		},
		"an answer that has nothing": {
			func(int) modeltest.Answer { return modeltest.Answer{Reasoning: "Hm."} },
			engine.Stuck,
			0,
			0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, byTurn(c.answer))
			r.add(newProbe("echo"), &counter{probe: newProbe("count")})
			r.say("go")
			r.ends(c.want)
			hints := strings.Count(strings.Join(r.story(), "\n"), nudgeErrors)
			if n := len(all[*event.Action](r)); n != c.actions || hints != c.hints {
				t.Errorf("%d actions and %d hints, want %d and %d\n%s", n, hints, c.actions, c.hints, strings.Join(r.story(), "\n"))
			}
			// A message of the user begins anew.
			r.server.SetScript(modeltest.Turns(modeltest.Calls(echo("a")), modeltest.Text("Here.")))
			r.say("go on")
			r.ends(engine.Finished)
		})
	}
	r := newRig(t, byTurn(func(int) modeltest.Answer { return modeltest.Calls(echo("a")) }))
	r.memory.set(t, engine.KeyStuckDetection, false)
	r.add(newProbe("echo"))
	r.say("go")
	r.ends(engine.Finished)
	if n := len(all[*event.Action](r)); n != 12 {
		t.Errorf("without detection: %d actions", n)
	}
}

// A stream that ends in its middle is asked for again in the same step: nothing of it is stored, and
// what it sent is not sent again.
func TestFaults_BrokenStreamDoublesNothing(t *testing.T) {
	for _, kind := range []string{modeltest.Cut, modeltest.Truncated, modeltest.StreamError, modeltest.Garbage} {
		text := strings.Repeat("word ", 20)
		r := newRig(t, modeltest.Turns(modeltest.Answer{Text: text, Fault: &modeltest.Fault{Kind: kind, Times: 2}}))
		r.say("go")
		r.ends(engine.Finished)
		if n := len(r.server.Requests()); n != 3 {
			t.Errorf("%s: %d requests", kind, n)
		}
		if got := r.deltas(); got != text {
			t.Errorf("%s: %q was sent in all", kind, got)
		}
		r.tells("user: go", "system", "agent: "+text)
	}
}

// deltas is the text that was sent in parts.
func (r *rig) deltas() string {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	var b strings.Builder
	for _, e := range r.memory.sent {
		if d, is := e.(*event.StreamingDelta); is && d.Content != nil {
			b.WriteString(*d.Content)
		}
	}
	return b.String()
}

// Arguments beyond all bounds are no answer, in parts or in one; a command that is too long is an
// error for the model.
func TestFaults_HugeArguments(t *testing.T) {
	for _, streamed := range []bool{true, false} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			part := strings.Repeat("x", 64<<10)
			call := `{"choices":[{"index":0,"%s":{"role":"assistant","tool_calls":[{"index":0,"id":"c","type":"function",` +
				`"function":{"name":"echo","arguments":"%s"}}]}%s}]}`
			if !streamed {
				fmt.Fprintf(w, call, "message", strings.Repeat(part, 129), `,"finish_reason":"tool_calls"`)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for range 129 {
				fmt.Fprintf(w, "data: "+call+"\n\n", "delta", part, "")
			}
			fmt.Fprint(w,
				"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n")
		}))
		defer s.Close()
		r := newRig(t, modeltest.Turns(modeltest.Text("x")), func(setup *engine.Setup) {
			setup.Agent.LLM.Stream, setup.Agent.LLM.BaseURL = &streamed, s.URL+"/v1"
		})
		r.add(newProbe("echo"))
		r.say("go")
		if f := r.fails("LLMNoResponseError"); !strings.Contains(f.Detail, "larger than 8 MiB") {
			t.Error(f.Detail)
		}
		r.tells("user: go", "system")
	}
	long := modeltest.Tool("terminal", map[string]string{"command": "echo " + strings.Repeat("x", 300<<10)})
	r := newRig(t, modeltest.Turns(modeltest.Calls(long), modeltest.Text("Enough.")))
	r.say("go")
	r.ends(engine.Finished)
	r.tells("user: go", "system", "call terminal null", "error terminal", "agent: Enough.")
}

// A stream with bytes that are no UTF-8, in a text and in arguments, is stored as valid JSON.
func TestFaults_InvalidUTF8(t *testing.T) {
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		delta, finish := "\"content\":\"a\xff\xfeb\"", "stop"
		if n++; n == 1 {
			delta = "\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"echo\"," +
				"\"arguments\":\"{\\\"text\\\":\\\"\xc3\x28\\\"}\"}}]"
			finish = "tool_calls"
		}
		fmt.Fprint(w,
			"data: {\"choices\":[{\"index\":0,\"delta\":{"+delta+"}}]}\n\ndata: {\"choices\":[{\"index\":0,"+
				"\"delta\":{},\"finish_reason\":\""+finish+"\"}]}\n\ndata: [DONE]\n\n")
	}))
	defer s.Close()
	r := newRig(t, modeltest.Turns(modeltest.Text("x")),
		func(setup *engine.Setup) { setup.Agent.LLM.BaseURL = s.URL + "/v1" })
	r.add(newProbe("echo"))
	r.say("go")
	r.ends(engine.Finished)
	r.tells("user: go", "system", "call echo", "result echo: echo \uFFFD(", "agent: a\uFFFD\uFFFDb")
}

// The model is switched and a secret is added while the model is called: the next step asks the
// other model, and its command has the secret.
func TestStep_ChangesInTheMiddle(t *testing.T) {
	hold, began := make(chan struct{}), make(chan struct{}, 1)
	command := modeltest.Calls(modeltest.Tool("terminal",
		map[string]any{"command": `[ "$NEW_TOKEN" = new-value ] && echo it is $NEW_TOKEN`}))
	command.Hold = hold
	r := newRig(t,
		&modeltest.Script{
			Func: func(modeltest.Request) (modeltest.Answer, bool) { began <- struct{}{}; return command, true },
		})
	other := modeltest.New(t, modeltest.Turns(modeltest.Text("?"), modeltest.Text("Another model.")))
	r.say("go")
	done := make(chan error, 1)
	go func() {
		_, err := r.run(t.Context())
		done <- err
	}()
	<-began
	llm := r.setup.Agent.LLM
	llm.Model, llm.BaseURL = "openai/other", other.BaseURL()
	if err := r.SwitchLLM(t.Context(), llm); err != nil {
		t.Fatal(err)
	}
	r.UpdateSecrets(map[string]engine.Secret{"NEW_TOKEN": {Value: "new-value"}})
	close(hold)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	got := r.story()
	if len(got) != 5 || !strings.Contains(got[3], "it is <secret-hidden>") || got[4] != "agent: Another model." {
		t.Errorf("the story is %q", got)
	}
	if q := other.Requests(); len(q) != 1 || q[0].Model != "other" || len(r.server.Requests()) != 1 {
		t.Errorf("the other model had %d requests, the first %d", len(q), len(r.server.Requests()))
	}
}

// Images of a message reach the model in their order.
func TestStep_Images(t *testing.T) {
	r := newRig(t, modeltest.Turns(modeltest.Text("A cat.")))
	m := userMessage(event.SourceUser, "What is it?")
	m.LLMMessage.Content = append(m.LLMMessage.Content,
		event.Content{Type: "image", ImageURLs: []string{
			"data:image/png;base64,iVBORw0KGgowMDAw", "https://example.org/b.png",
		}})
	if err := r.memory.Append(m); err != nil {
		t.Fatal(err)
	}
	r.ends(engine.Finished)
	body := string(r.server.Requests()[0].Body)
	var at []int
	for _, part := range []string{"What is it?", "data:image/png;base64,iVBORw0KGgowMDAw", "https://example.org/b.png"} {
		at = append(at, strings.Index(body, part))
	}
	if slices.Contains(at, -1) || !slices.IsSorted(at) || strings.Count(body, `"image_url"`) < 2 {
		t.Errorf("the request is %s", body)
	}
}
