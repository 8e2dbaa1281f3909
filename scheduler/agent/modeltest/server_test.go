package modeltest_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

func client(s *modeltest.Server, key string) *openai.Client {
	c := openai.DefaultConfig(key)
	c.BaseURL = s.BaseURL()
	return openai.NewClientWithConfig(c)
}

func ask(texts ...string) openai.ChatCompletionRequest {
	r := openai.ChatCompletionRequest{
		Model: "scripted", StreamOptions: &openai.StreamOptions{IncludeUsage: true},
		Tools: []openai.Tool{{Type: "function", Function: &openai.FunctionDefinition{Name: "terminal"}}},
	}
	for i, text := range texts {
		r.Messages = append(r.Messages, openai.ChatCompletionMessage{Role: []string{"user", "assistant"}[i%2], Content: text})
	}
	return r
}

type told struct {
	Text, Reasoning, Finish string
	Calls                   []string
	Total                   int
}

func stream(t *testing.T, c *openai.Client, r openai.ChatCompletionRequest) (told, error) {
	t.Helper()
	r.Stream = true
	s, err := c.CreateChatCompletionStream(t.Context(), r)
	if err != nil {
		return told{}, err
	}
	defer s.Close()
	var got told
	for {
		chunk, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		if chunk.Usage != nil {
			got.Total = chunk.Usage.TotalTokens
		}
		for _, choice := range chunk.Choices {
			got.Text += choice.Delta.Content
			got.Reasoning += choice.Delta.ReasoningContent
			got.Finish += string(choice.FinishReason)
			for _, call := range choice.Delta.ToolCalls {
				if call.ID != "" {
					got.Calls = append(got.Calls, call.ID+" "+call.Function.Name+" ")
				}
				got.Calls[*call.Index] += call.Function.Arguments
			}
		}
	}
}

// Both forms of an answer say the same.
func TestChat_WholeAndStreamed(t *testing.T) {
	answer := modeltest.Answer{
		Text: "I look at both files — first.", Reasoning: "Which one is it?", Usage: &modeltest.Usage{
			Prompt:     90,
			Completion: 10,
			Cached:     5,
		},
		Calls: []modeltest.Call{
			modeltest.Tool("terminal", map[string]any{"command": "cat a.txt b.txt"}),
			{ID: "mine", Name: "file_editor", Raw: `{"path": `},
		},
	}
	s := modeltest.New(t,
		&modeltest.Script{Key: "sk-1", Stories: []*modeltest.Story{{Answers: []modeltest.Answer{answer}}}})
	got, err := stream(t, client(s, "sk-1"), ask("go"))
	if err != nil {
		t.Fatal(err)
	}
	want := told{
		Text: answer.Text, Reasoning: answer.Reasoning, Finish: "tool_calls", Total: 100,
		Calls: []string{`call_1_1 terminal {"command":"cat a.txt b.txt"}`, `mine file_editor {"path": `},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	whole, err := client(s, "sk-1").CreateChatCompletion(t.Context(), ask("go"))
	if err != nil {
		t.Fatal(err)
	}
	m := whole.Choices[0].Message
	if m.Content != want.Text || m.ReasoningContent != want.Reasoning || len(m.ToolCalls) != 2 ||
		m.ToolCalls[1].Function.Arguments != `{"path": ` || whole.Usage.TotalTokens != 100 ||
		whole.Choices[0].FinishReason != "tool_calls" {
		t.Errorf("whole: %+v", whole)
	}
}

func TestChat_RefusesAnotherKeyAndModel(t *testing.T) {
	s := modeltest.New(t,
		&modeltest.Script{
			Key:     "sk-1",
			Models:  []string{"scripted"},
			Stories: []*modeltest.Story{{Answers: []modeltest.Answer{modeltest.Text("x")}}},
		})
	status := func(c *openai.Client, model string) int {
		r := ask("go")
		r.Model = model
		_, err := c.CreateChatCompletion(t.Context(), r)
		var api *openai.APIError
		if errors.As(err, &api) {
			return api.HTTPStatusCode
		}
		return 200
	}
	if a, b, c := status(client(s, "sk-2"),
		"scripted"), status(client(s, "sk-1"), "other"), status(client(s, "sk-1"), "scripted"); a != 401 || b != 404 ||
		c != 200 {
		t.Errorf("another key %d, another model %d, both right %d", a, b, c)
	}
	list := s.Requests()
	if len(list) != 3 || list[0].Key != "sk-2" || list[0].Status != 401 || list[2].Status != 200 ||
		list[2].LastUser() != "go" {
		t.Errorf("recorded: %+v", list)
	}
	models, err := client(s, "sk-1").ListModels(t.Context())
	if err != nil || len(models.Models) != 1 || models.Models[0].ID != "scripted" {
		t.Errorf("models: %+v %v", models, err)
	}
}

// A story goes on by what the request holds, and puts what it found into its answers.
func TestScript_TurnsAndGroups(t *testing.T) {
	script, err := modeltest.ParseScript([]byte(`{"stories": [
	  {"when": {"tool": "-"}, "answers": [{"text": "A title"}]},
	  {"when": {"user": "fix (?P<file>\\S+)", "any": "in (?P<dir>/\\S+)"}, "answers": [
	    {"calls": [{"name": "terminal", "arguments": {"command": "cat \"${dir}/${file}\""}}]},
	    {"text": "${file} is fixed."}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	c := client(modeltest.New(t, script), "any")
	r := ask("we are in /w", "yes", "fix a.txt")
	first, err := stream(t, c, r)
	if err != nil || len(first.Calls) != 1 || first.Calls[0] != `call_1_1 terminal {"command":"cat \"/w/a.txt\""}` {
		t.Fatalf("first: %+v %v", first, err)
	}
	r.Messages = append(r.Messages,
		openai.ChatCompletionMessage{
			Role: "assistant",
			ToolCalls: []openai.ToolCall{
				{ID: "call_1_1", Type: "function", Function: openai.FunctionCall{Name: "terminal", Arguments: "{}"}},
			},
		},
		openai.ChatCompletionMessage{Role: "tool", ToolCallID: "call_1_1", Content: "text"})
	if second, err := stream(t, c, r); err != nil || second.Text != "a.txt is fixed." {
		t.Errorf("second: %+v %v", second, err)
	}
	r.Tools = nil
	if title, err := stream(t, c, r); err != nil || title.Text != "A title" {
		t.Errorf("title: %+v %v", title, err)
	}
}

func TestScript_RefusesWhatItDoesNotKnow(t *testing.T) {
	for raw, want := range map[string]string{
		`{"storys": []}`:    "unknown field",
		`{"stories": [{}]}`: "has no answers",
		`{"stories": [{"answers": [{"fault": {"kind": "fire"}}]}]}`:          `no fault "fire"`,
		`{"stories": [{"when": {"user": "("}, "answers": [{"text": "x"}]}]}`: "missing closing",
	} {
		if _, err := modeltest.ParseScript([]byte(raw)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", raw, err, want)
		}
	}
}

// Every fault shows itself as the real one does, in both forms.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		kind   string
		status int // of the error, 0 for none
		want   string
		stream string // of the streamed form where it differs
	}{
		{modeltest.Hangup, 0, "EOF", ""},
		{modeltest.Unauthorized, 401, "Incorrect API key", ""},
		{modeltest.RateLimit, 429, "Rate limit", ""},
		{modeltest.NoQuota, 429, "current quota", ""},
		{modeltest.ServerError, 500, "had an error", ""},
		{modeltest.Unavailable, 503, "overloaded", ""},
		{modeltest.BadRequest, 400, "not valid", ""},
		{modeltest.ContextLength, 400, "maximum context length", ""},
		{modeltest.ContentFilter, 400, "was filtered", ""},
		{modeltest.Garbage, 0, "invalid character", ""},
		{modeltest.Truncated, 0, "unexpected EOF", ""},
		{modeltest.StreamError, 0, "had an error", "The engine died."},
	} {
		t.Run(c.kind, func(t *testing.T) {
			a := modeltest.Text("A long enough answer to be cut in its middle.")
			a.Fault = &modeltest.Fault{Kind: c.kind, RetryAfterS: 7, Times: 2}
			cl := client(modeltest.New(t, modeltest.InOrder(a)), "k")
			check := func(form, want string, err error) {
				var api *openai.APIError
				if err == nil || !strings.Contains(err.Error(), want) ||
					c.status != 0 && (!errors.As(err, &api) || api.HTTPStatusCode != c.status) {
					t.Errorf("%s: %v, want %d %q", form, err, c.status, want)
				}
			}
			_, err := cl.CreateChatCompletion(t.Context(), ask("go"))
			check("whole", c.want, err)
			_, err = stream(t, cl, ask("go"))
			if c.stream == "" {
				c.stream = c.want
			}
			check("streamed", c.stream, err)
			if got, err := stream(t, cl, ask("go")); err != nil || got.Text != a.Text {
				t.Errorf("after the fault: %+v %v", got, err)
			}
		})
	}
}

// A stream that ends early as if that were its end has no finish reason; the slow ones are whole.
func TestFaults_OfAStream(t *testing.T) {
	for kind, want := range map[string]told{
		modeltest.Cut:        {Text: "A long enough answer to be cut in it"},
		modeltest.Empty:      {},
		modeltest.Slow:       {Text: "A long enough answer to be cut in its middle.", Finish: "stop"},
		modeltest.SlowChunks: {Text: "A long enough answer to be cut in its middle.", Finish: "stop"},
	} {
		a := modeltest.Text("A long enough answer to be cut in its middle.")
		a.Fault = &modeltest.Fault{Kind: kind, DelayMS: 5}
		got, err := stream(t, client(modeltest.New(t, modeltest.InOrder(a)), "k"), ask("go"))
		got.Total = 0
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", kind, err, diff)
		}
	}
}

func TestChat_RefusesACallWithoutOneResult(t *testing.T) {
	call := modeltest.Message{Role: "assistant", Calls: []modeltest.Call{{ID: "a", Name: "x"}, {ID: "b", Name: "x"}}}
	result := func(id string) modeltest.Message { return modeltest.Message{Role: "tool", CallID: id} }
	user := modeltest.Message{Role: "user"}
	for name, c := range map[string]struct {
		messages []modeltest.Message
		ok       bool
	}{
		"both, any order": {[]modeltest.Message{user, call, result("b"), result("a"), user}, true},
		"one missing":     {[]modeltest.Message{user, call, result("a"), user}, false},
		"at the end":      {[]modeltest.Message{user, call}, false},
		"twice":           {[]modeltest.Message{user, call, result("a"), result("b"), result("b")}, false},
		"no call":         {[]modeltest.Message{user, result("a")}, false},
		"broken JSON": {
			[]modeltest.Message{user, {Role: "assistant", Calls: []modeltest.Call{{ID: "a", Raw: "{"}}}, result("a")},
			false,
		},
	} {
		if err := modeltest.CheckResults(c.messages); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server that is down refuses; one that holds its answer sees the client go.
func TestServer_DownUpAndHold(t *testing.T) {
	hold := make(chan struct{})
	s := modeltest.New(t, modeltest.InOrder(modeltest.Text("up"), modeltest.Answer{Text: "late", Hold: hold}))
	c := client(s, "k")
	s.Down()
	if _, err := stream(t, c, ask("go")); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("down: %v", err)
	}
	if err := s.Up(); err != nil {
		t.Fatal(err)
	}
	if got, err := stream(t, c, ask("go")); err != nil || got.Text != "up" {
		t.Errorf("up again: %+v %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.CreateChatCompletion(ctx, ask("go"))
		done <- err
	}()
	within, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	if err := s.Wait(within, 2); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a call that is canceled: %v", err)
	}
	if list := s.Requests(); len(list) != 2 {
		t.Errorf("%d requests", len(list))
	}
}

// What a demonstration reads: the requests so far.
func TestServer_ShowsItsRequests(t *testing.T) {
	s := modeltest.New(t, modeltest.InOrder(modeltest.Text("x")))
	if _, err := stream(t, client(s, "k"), ask("go")); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(s.URL() + "/requests")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list []modeltest.Request
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list) != 1 || list[0].Key != "k" ||
		list[0].Tools[0] != "terminal" {
		t.Errorf("%+v %v", list, err)
	}
}
