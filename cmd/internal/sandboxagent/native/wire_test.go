package native

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/ops/agents/modelserver"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// named is a behaviour of the model server.
func named(t *testing.T, name string, api preset.API) modelserver.Behaviour {
	t.Helper()
	for _, b := range modelserver.All() {
		if b.Name == name && b.API == modelserver.API(api) {
			return b
		}
	}
	t.Fatalf("there is no behaviour %q in %s", name, api)
	return modelserver.Behaviour{}
}

// Thoughts are stored as their maker wants them back, in upstream's members, and the tokens of both
// APIs are counted with those of the cache.
func TestWire_StoresThoughtsAndTokens(t *testing.T) {
	t.Parallel()
	for api, name := range map[preset.API]string{
		preset.Messages:  "thoughts are wanted back with their signature",
		preset.Responses: "encrypted thoughts are wanted back",
	} {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			s := modelserver.New(t, named(t, name, api))
			conv := newMemory()
			e, err := New(engine.Setup{
				ID: "0123456789abcdef0123456789abcdef", Dir: t.TempDir(), WorkingDir: t.TempDir(),
				Agent: engine.Agent{Kind: "openhands", LLM: engine.LLM{
					Model: "openai/scripted", APIKey: "sk-scripted", BaseURL: s.URL + api.Path(), ReasoningEffort: "high",
				}},
			}, conv)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if err := conv.Append(userMessage(event.SourceUser, modelserver.Task)); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if _, err := e.Step(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			events, err := conv.Events()
			if err != nil {
				t.Fatal(err)
			}
			seen := 0
			for _, ev := range events {
				a, is := ev.(*event.Action)
				if !is {
					continue
				}
				seen++
				blocks, _ := json.Marshal(a.ThinkingBlocks)
				got := fmt.Sprintf("%s %s %s", blocks, a.ResponsesReasoningItem, a.ToolCall.Origin)
				want := fmt.Sprintf(`[{"type":"thinking","thinking":"I think.","signature":"sig-%d"}]  completion`, seen)
				if api == preset.Responses {
					want = fmt.Sprintf(`[] {"id":"rs_%d","summary":["I think."],"content":null,"encrypted_content":"sig-%d",`+
						`"status":null} responses`, seen, seen)
				}
				if got != want {
					t.Errorf("call %d has %s, want %s", seen, got, want)
				}
			}
			if n := s.Requests(); seen != 2 || n != 2 {
				t.Errorf("%d calls in %d requests: the thoughts are not as the server wants them", seen, n)
			}
			var stats event.Stats
			mustDecode(t, conv.State(engine.KeyStats), &stats)
			used := stats.UsageToMetrics[usageAgent].AccumulatedTokenUsage
			written := map[preset.API]int64{preset.Messages: 60}[api]
			if used.PromptTokens != 200 || used.CompletionTokens != 20 || used.CacheReadTokens != 100 ||
				used.CacheWriteTokens != written {
				t.Errorf("%+v", used)
			}
		})
	}
}

// What is marked for the cache stays as it was in the next request.
func TestMessages_TheCachedPrefixRepeats(t *testing.T) {
	t.Parallel()
	d := dialect{api: preset.Messages}
	list := []openai.ChatCompletionMessage{{Role: "system", Content: "You write files."}, userText("Do it.")}
	var before string
	tool := openai.Tool{Type: "function", Function: &openai.FunctionDefinition{
		Name: "echo", Parameters: json.RawMessage(`{"type":"object"}`),
	}}
	for n := range 3 {
		w, _ := d.write(openai.ChatCompletionRequest{Model: "m", Messages: list, Tools: []openai.Tool{tool}}, nil)
		const mark = `,"cache_control":{"type":"ephemeral"}`
		body := string(w.body)
		if got := strings.Count(body, mark); got != min(n+2, 3) {
			t.Errorf("request %d has %d marks: %s", n, got, body)
		}
		plain := strings.ReplaceAll(body, mark, "")
		if end := strings.TrimSuffix(before, "]}"); !strings.HasPrefix(plain, end) {
			t.Errorf("request %d does not begin as the one before:\n%s\n%s", n, end, plain)
		}
		// The next request's second mark is where this one has its last.
		before = plain
		id := fmt.Sprintf("call_%d", n)
		list = append(list,
			openai.ChatCompletionMessage{Role: "assistant", ToolCalls: []openai.ToolCall{
				{ID: id, Type: "function", Function: openai.FunctionCall{Name: "echo", Arguments: "{}"}},
			}},
			openai.ChatCompletionMessage{Role: "tool", ToolCallID: id, Content: "done"})
	}
}

// Both APIs are shown as they come, and what is after the end of the answer is not waited for.
func TestWire_Streams(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		api  preset.API
	}{
		{"the stream stays open after message_stop", preset.Messages},
		{"the stream stays open after response.completed", preset.Responses},
	} {
		t.Run(string(c.api), func(t *testing.T) {
			t.Parallel()
			b := named(t, c.name, c.api)
			b.Text = true
			s := modelserver.New(t, b)
			client := newClient(engine.LLM{Model: "openai/scripted", APIKey: "k", BaseURL: s.URL + c.api.Path()}, nil)
			var shown []string
			p := prompt{messages: []openai.ChatCompletionMessage{userText("Hello.")}, withdraw: func() {}}
			p.onDelta = func(text, _ string) { shown = append(shown, text) }
			done := make(chan *answer, 1)
			go func() {
				a, err := client.ask(t.Context(), p)
				if err != nil {
					t.Error(err)
				}
				done <- a
			}()
			select {
			case a := <-done:
				if len(shown) < 3 || strings.Join(shown, "") != a.text || a.text == "" {
					t.Errorf("%q was shown of %q", shown, a.text)
				}
			case <-time.After(15 * time.Second):
				t.Error("the open stream was waited for")
			}
		})
	}
}
