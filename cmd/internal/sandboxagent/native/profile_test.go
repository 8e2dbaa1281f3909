package native

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// listing is a scripted model behind a server that lists its models as a maker does. It counts the
// questions for lists.
func listing(t *testing.T, script *modeltest.Script, lists map[string]string, asked *int) option {
	t.Helper()
	model := modeltest.New(t, script)
	to, err := url.Parse(model.URL())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			if *asked++; lists[r.URL.Path] == "" {
				http.NotFound(w, r)
				return
			}
			fmt.Fprint(w, lists[r.URL.Path])
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return func(setup *engine.Setup) { setup.Agent.LLM.BaseURL = s.URL + "/v1" }
}

// TestProfile_WhoSays: the settings count before the server's list, and that before the table. Only
// what is not known is asked for, once.
func TestProfile_WhoSays(t *testing.T) {
	t.Parallel()
	const vllm = `{"data":[{"id":"scripted","max_model_len":32768}]}`
	told := func(s *engine.Setup) { s.Agent.LLM.MaxInputTokens = 5000 }
	for name, c := range map[string]struct {
		model         string
		lists         map[string]string
		more          option
		window, asked int
	}{
		"the server lists it":        {"openai/scripted", map[string]string{"/v1/models": vllm}, nil, 32768, 1},
		"the settings say it":        {"openai/scripted", map[string]string{"/v1/models": vllm}, told, 5000, 0},
		"nobody says it":             {"openai/scripted", nil, nil, 0, 2},
		"the table has it":           {"openai/gpt-5", map[string]string{"/v1/models": vllm}, nil, 400_000, 0},
		"it has a name of the table": {"hosted_vllm/Qwen/Qwen3-Coder", nil, nil, 262_144, 2},
		"the server has less": {"hosted_vllm/Qwen/Qwen3-Coder",
			map[string]string{"/v1/models": `{"data":[{"id":"Qwen/Qwen3-Coder","max_model_len":65536}]}`}, nil, 65536, 1},
		"Ollama runs it": {"openai/scripted", map[string]string{"/v1/models": `{"data":[{"id":"scripted"}]}`,
			"/api/ps": `{"models":[{"name":"scripted:latest","context_length":4096}]}`}, nil, 4096, 2},
		"the list is none": {"openai/scripted", map[string]string{"/v1/models": `<html>`}, nil, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			options := []option{
				listing(t, modeltest.Turns(modeltest.Text("Done.")), c.lists, &asked),
				func(s *engine.Setup) { s.Agent.LLM.Model = c.model },
			}
			if c.more != nil {
				options = append(options, c.more)
			}
			r := newRig(t, modeltest.Turns(modeltest.Text("x")), options...)
			for range 2 {
				r.say("go")
				r.ends(engine.Finished)
			}
			if got := r.client.window.size(); got != c.window || asked != c.asked {
				t.Errorf("the window is %d, want %d; asked %d times, want %d", got, c.window, asked, c.asked)
			}
			var stats event.Stats
			mustDecode(t, r.memory.State(engine.KeyStats), &stats)
			if got := stats.UsageToMetrics["agent"].AccumulatedTokenUsage.ContextWindow; got != int64(c.window) {
				t.Errorf("the stats have the window %d", got)
			}
		})
	}
}

// TestProfile_PicturesOnlyWhereTheyAreTaken: a model that takes no pictures is sent none, without a
// refusal before, and the settings have the last word.
func TestProfile_PicturesOnlyWhereTheyAreTaken(t *testing.T) {
	t.Parallel()
	for model, c := range map[string]struct {
		off  *bool
		sent bool
	}{
		"openai/scripted": {nil, true}, "deepseek/deepseek-v4-pro": {nil, false},
		"deepseek/deepseek-v4-flash": {new(true), false}, "deepseek/deepseek-reasoner-x": {new(false), true},
	} {
		r := newRig(t, modeltest.Turns(modeltest.Text("Done.")), func(s *engine.Setup) {
			s.Agent.LLM.Model, s.Agent.LLM.DisableVision = model, c.off
		})
		m := userMessage(event.SourceUser, "Look.")
		m.LLMMessage.Content = append(m.LLMMessage.Content,
			event.Content{Type: "image", ImageURLs: []string{"data:image/png;base64,iVBORw0KGgowMDAw"}})
		if err := r.memory.Append(m); err != nil {
			t.Fatal(err)
		}
		r.ends(engine.Finished)
		if sent := strings.Contains(string(r.server.Requests()[0].Body), "image_url"); sent != c.sent {
			t.Errorf("%s: a picture is sent: %t, want %t", model, sent, c.sent)
		}
	}
}

// TestProfile_WhatAnAnswerCosts: the settings' prices, else the vendor's list where it is asked itself,
// else what the server says.
func TestProfile_WhatAnAnswerCosts(t *testing.T) {
	t.Parallel()
	said, price := 0.5, 0.001
	a := &answer{cost: &said, cached: 200, usage: openai.Usage{
		PromptTokens: 1000, CompletionTokens: 100, PromptTokensDetails: &openai.PromptTokensDetails{CachedTokens: 400},
	}}
	for want, llm := range map[float64]engine.LLM{
		1.0:    {Model: "openai/gpt-5", InputCostPerToken: &price},
		0.0018: {Model: "openai/gpt-5"}, // (600 * 1.25 + 400 * 0.125 + 100 * 10) / 1e6
		// (400 * 1 + 400 * 0.1 + 200 * 1.25 + 100 * 5) / 1e6
		0.00119: {Model: "anthropic/claude-haiku-4-5-20251001"},
		said:    {Model: "openai/gpt-5", BaseURL: "http://127.0.0.1:1/v1"},
	} {
		if got := newClient(llm, nil).cost(a); math.Abs(got-want) > 1e-9 {
			t.Errorf("%+v costs %g, want %g", llm, got, want)
		}
	}
}
