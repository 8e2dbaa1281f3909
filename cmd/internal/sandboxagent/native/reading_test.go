package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	openai "github.com/sashabaranov/go-openai"
	"pgregory.net/rapid"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

// answering is a client of a server that answers the nth request, from 0, with what write writes.
func answering(t *testing.T, write func(n int, w http.ResponseWriter, r *http.Request)) *client {
	t.Helper()
	var n atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		write(int(n.Add(1))-1, w, r)
	}))
	t.Cleanup(s.Close)
	c := newClient(engine.LLM{Model: "openai/scripted", BaseURL: s.URL, Timeout: 1}, http.DefaultTransport)
	c.firstDelay = time.Millisecond
	return c
}

// streamed asks for a stream.
func streamed() prompt {
	return prompt{onDelta: func(string, string) {}, withdraw: func() {}}
}

func deltaOf(member string) string { return `{"choices":[{"delta":{` + member + `}}]}` }

// The tokens of a try that failed are counted with those of the answer, and where none comes.
func TestAsk_CountsTriesThatFail(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{true, false} {
		c := answering(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			last := `{"error":{"message":"the engine died"}}`
			if answers && n == 1 {
				last = `{"choices":[{"finish_reason":"stop"}]}`
			}
			fmt.Fprintf(w, "data: %s\n\ndata: %s\n\ndata: %s\n\n", deltaOf(`"content":"a"`), `{"choices":[],"usage":`+
				`{"prompt_tokens":50,"completion_tokens":5,"cost":0.25,"prompt_tokens_details":{"cached_tokens":3}}}`, last)
		})
		one := 1
		c.llm.NumRetries = &one
		a, err := c.ask(t.Context(), streamed())
		if answers != (err == nil) || a == nil || a.usage.PromptTokens != 100 || a.usage.CompletionTokens != 10 ||
			a.usage.PromptTokensDetails.CachedTokens != 6 || *a.cost != 0.5 {
			t.Errorf("%v: %+v, %v", answers, a, err)
		}
	}
}

// What a failed try of Messages wrote to a cache is counted, too.
func TestAsk_CountsCacheWritesOfTriesThatFail(t *testing.T) {
	t.Parallel()
	c := answering(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "data: %s\n\ndata: %s\n\n", `{"type":"message_start","message":{"usage":{"input_tokens":1,`+
			`"cache_creation_input_tokens":7}}}`, `{"type":"error","error":{"message":"the engine died"}}`)
	})
	one := 1
	c.llm.NumRetries = &one
	if a, err := c.ask(t.Context(), streamed()); err == nil || a == nil || a.usage.PromptTokens != 16 || a.cached != 14 {
		t.Errorf("%+v, %v", a, err)
	}
}

// Signs of life after the reason to finish do not hold up the answer.
func TestTry_SignsOfLifeAfterTheEnd(t *testing.T) {
	t.Parallel()
	c := answering(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "data: %s\n\n", `{"choices":[{"delta":{"content":"Here."},"finish_reason":"stop"}]}`)
		for range 60 {
			fmt.Fprint(w, ": still here\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
		fmt.Fprint(w, `data: {"error":{"message":"it was waited for me"}}`+"\n\n")
	})
	r, _ := c.dialects.get().write(c.request(streamed()), nil)
	a, failed := c.try(t.Context(), r, nil)
	if failed != nil || a.text != "Here." {
		t.Errorf("%+v, %v", a, failed)
	}
}

// Ids are kept with each call, so that they are bounded.
func TestRead_LongIDs(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 1<<19)
	var a parts
	err := a.read(strings.NewReader(fmt.Sprintf(`{"id":%q,"choices":[{"message":{"tool_calls":[{"id":%q,"function":`+
		`{"name":%q,"arguments":"{}"}}]},"finish_reason":%q}]}`, long, long, long, long)))
	if err != nil || len(a.id) > longestID || len(a.finish) > longestID || len(a.calls[0].id) > longestID ||
		len(a.calls[0].name) > longestID || a.size < 3*len(long) {
		t.Errorf("%v, an id of %d bytes, %d counted", err, len(a.id), a.size)
	}
	if e := saysError(json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)); len(e.message) > longestError {
		t.Errorf("an error of %d bytes", len(e.message))
	}
}

// An answer of Responses has a bounded number of items, also of those without a text.
func TestRead_ManyItems(t *testing.T) {
	t.Parallel()
	var stream strings.Builder
	for i := range mostItems + 1 {
		fmt.Fprintf(&stream, "data: {\"type\":\"response.output_text.delta\",\"output_index\":%d,\"delta\":\"\"}\n\n", i)
	}
	var a parts
	if err := a.read(strings.NewReader(stream.String())); !errors.Is(err, errItems) || !errors.Is(err, errUnbounded) {
		t.Errorf("a stream of many items: %v", err)
	}
}

// An answer has a bounded number of calls, in whatever form they come.
func TestRead_ManyCalls(t *testing.T) {
	t.Parallel()
	var stream, joined strings.Builder
	for i := range mostCalls + 1 {
		fmt.Fprintf(&stream, "data: %s\n\n", deltaOf(fmt.Sprintf(`"tool_calls":[{"index":%d}]`, i)))
		fmt.Fprintf(&joined, `{"text":"%d"}`, i)
	}
	var a parts
	if err := a.read(strings.NewReader(stream.String())); !errors.Is(err, errUnbounded) || !errors.Is(err, errCalls) {
		t.Errorf("a stream of many calls: %v", err)
	}
	if got := objects(joined.String()); len(got) != 1 {
		t.Errorf("%d joined calls", len(got))
	}
	list := "[" + strings.Repeat(`{"name":"echo","arguments":{}},`, mostCalls) + `{"name":"echo","arguments":{}}]`
	tools := []openai.Tool{{Type: "function", Function: &openai.FunctionDefinition{Name: "echo"}}}
	if got, _ := callsOnly(list, tools); len(got) > 0 {
		t.Errorf("%d written calls", len(got))
	}
}

// A content is read as deep as servers write it.
func TestContent_Depth(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]content{
		`[{"type":"thinking","thinking":[{"type":"text","text":"Hm."}]},{"type":"text","text":"Yes."}]`: {"Yes.", "Hm."},
		`null`: {}, `"a"`: {"a", ""}, `{"text":"a"}`: {"a", ""},
		strings.Repeat(`{"text":`, 500) + `"deep"` + strings.Repeat("}", 500): {},
	} {
		var c content
		if err := json.Unmarshal([]byte(raw), &c); err != nil || c != want {
			t.Errorf("%.80s is %+v, %v", raw, c, err)
		}
	}
}

// A value ends where it is one, however it is parted, and no object ends before that.
func TestExtent_OfValues(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.SampledFrom([]rune(`{}[]":,\a1 `)), 0, 30, -1).Draw(t, "text")
		raw, err := json.Marshal(map[string]any{text: []any{text, map[string]any{"a": text}}})
		if err != nil {
			t.Fatal(err)
		}
		var e extent
		for i := range raw {
			if e.ended() {
				t.Fatalf("%s ends at %d", raw, i)
			}
			e.add(raw[i : i+1])
		}
		if !e.ended() {
			t.Fatalf("%s does not end", raw)
		}
		e = extent{}
		if e.add([]byte(text)); json.Valid([]byte(text)) && !e.ended() {
			t.Fatalf("%s does not end", text)
		}
	})
}

// The failure names whose limit a node's gateway says it was.
func TestAsk_SaysWhoseLimitItWas(t *testing.T) {
	t.Parallel()
	for limit, want := range map[string]string{
		"user":     "Your own conversations have as many requests to models in progress",
		"node":     "A node said (HTTP 429): full",
		"endpoint": "The model's server limits the rate of requests. Try again later. The model's server said",
		"":         "The model's server limits the rate of requests.",
	} {
		c := answering(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Bivouac-Limit", limit)
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"error":{"message":"full","code":"bivouac_busy"}}`)
		})
		var f *engine.Failure
		if _, err := c.ask(t.Context(), streamed()); !errors.As(err, &f) || f.Code != codeRateLimit ||
			!strings.Contains(f.Detail, want) {
			t.Errorf("%q: %v, want %s", limit, err, want)
		}
	}
}
