package modelserver

import (
	"net/http"
	"strings"
	"time"
)

// first shows a fault in the first answers of a conversation.
func first(n int, fault func(*Reply)) func(*Reply) {
	return func(a *Reply) {
		if a.R.Number <= n {
			fault(a)
			return
		}
		a.Good()
	}
}

// begins writes the beginning of an answer.
func (a *Reply) begins() {
	a.Delta(map[string]any{"role": "assistant", "content": "I write the fi"}, nil)
}

// broken are answers that break off after the header.
func broken() []Behaviour {
	return []Behaviour{
		{
			Name: "reset after the header", Maker: "every server", Source: FromMemory,
			Answer: first(1, func(a *Reply) { a.Raw(": hello\n\n"); a.Break() }),
		},
		{
			Name: "reset in the middle", Maker: "every server", Source: FromMemory,
			Answer: first(2, func(a *Reply) { a.begins(); a.Break() }),
		},
		{
			Name: "ends in the middle", Maker: "every server behind a proxy",
			Source: "https://github.com/anomalyco/opencode/pull/40061", Answer: first(2, (*Reply).begins),
		},
		{
			Name: "ends in the middle of a call", Maker: "every server behind a proxy", Source: FromMemory,
			Answer: first(1, func(a *Reply) {
				c := a.Call.native()
				c["index"] = 0
				c["function"].(map[string]any)["arguments"] = a.Call.Arguments[:20]
				a.CallPart(c)
			}),
		},
		{
			Name: "nothing after the header", Maker: "every server behind a proxy", Source: FromMemory,
			Answer: first(2, (*Reply).Head),
		},
		{
			Name: "[DONE] and nothing else", Maker: "proxy", Source: FromMemory,
			Answer: first(1, func(a *Reply) { a.Raw("data: [DONE]\n\n") }),
		},
		{
			Name: "an empty object", Maker: "proxy", Source: FromMemory,
			Answer: first(1, func(a *Reply) { a.JSON(http.StatusOK, map[string]any{}) }),
		},
		{
			Name: "a page of HTML with 200", Maker: "a proxy's page", Source: FromMemory,
			Answer: first(1, func(a *Reply) { a.Raw("<html>502 Bad Gateway</html>") }),
		},
		{
			Name: "half of an event", Maker: "proxy", Source: FromMemory,
			Answer: first(1, func(a *Reply) { a.begins(); a.Raw(`data: {"choices":[{"del`) }),
		},
		{
			Name: "silence in the middle", Maker: "a hung server", Source: FromMemory, Timeout: 1,
			Answer: first(1, func(a *Reply) { a.begins(); a.Pause(time.Minute) }),
		},
		{
			Name: "only keep-alives, longer than the time-out", Maker: "OpenRouter with a long prefill", Timeout: 1,
			Source: "OpenRouter's documentation, API reference, Streaming",
			Answer: first(1, func(a *Reply) {
				for range 6 {
					a.Raw(": OPENROUTER PROCESSING\n\n")
					a.Pause(300 * time.Millisecond)
				}
				a.Good()
			}),
		},
	}
}

// errorsWithin are errors that come with the status 200.
func errorsWithin() []Behaviour {
	within := func(e any) func(*Reply) {
		return first(2, func(a *Reply) { a.begins(); a.Event(map[string]any{"error": e}) })
	}
	return []Behaviour{
		{
			Name: "a rate limit as an event", Maker: "OpenRouter", Source: "OpenRouter's documentation, Errors",
			Answer: within(map[string]any{"code": 429, "message": "Rate limited by the provider"}),
		},
		{
			Name: "a failed provider as an event", Maker: "OpenRouter", Source: "OpenRouter's documentation, Errors",
			Answer: within(map[string]any{"code": "502", "message": "Provider disconnected"}),
		},
		{
			Name: "an error as a text", Maker: "LiteLLM",
			Source: FromMemory, Answer: within("litellm.InternalServerError: overloaded"),
		},
		{
			Name: "an error in a choice, and finish_reason error", Maker: "OpenRouter",
			Source: "OpenRouter's documentation, API reference, Streaming",
			Answer: first(1, func(a *Reply) {
				a.begins()
				a.Event(a.Frame(map[string]any{"index": 0, "delta": map[string]any{"content": ""}, "finish_reason": "error",
					"error": map[string]any{"code": 502, "message": "Upstream failed"}}))
				a.Raw("data: [DONE]\n\n")
			}),
		},
		{
			Name: "an error in the last chunk of a whole answer", Maker: "vLLM, proxies", Source: FromMemory,
			Answer: first(1, func(a *Reply) {
				a.Delta(map[string]any{"content": "I am done."}, nil)
				f := a.Frame(map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": "stop"})
				f["error"] = map[string]any{"message": "EngineCore encountered an issue", "code": 500}
				a.Event(f)
			}),
		},
		{
			Name: "an error with 200 and no stream", Maker: "OpenRouter", Source: "OpenRouter's documentation, Errors",
			Answer: first(1, func(a *Reply) {
				a.JSON(http.StatusOK, map[string]any{"error": map[string]any{"code": 503, "message": "No instances available"}})
			}),
		},
		{
			Name: "event: error", Maker: "Anthropic behind a proxy", Source: FromMemory,
			Answer: first(1, func(a *Reply) {
				a.Raw("event: error\ndata: " +
					"{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n")
			}),
		},
	}
}

// limits are answers that the limit of output cuts.
func limits() []Behaviour {
	cut := func(pieces int) func(*Reply) {
		return func(a *Reply) {
			if a.Call != nil {
				a.Good()
				return
			}
			words := strings.SplitAfter(Farewell, " ")
			said := ""
			for _, m := range a.R.Messages {
				if m.Role == "assistant" && m.Text != "" && strings.HasPrefix(Farewell, said+m.Text) {
					said += m.Text
				}
			}
			n := strings.Count(said, " ") // the pieces that the request shows
			if n >= pieces {
				a.Delta(map[string]any{"content": strings.Join(words[n:], "")}, nil)
				a.End("stop")
				return
			}
			a.Delta(map[string]any{"content": words[n]}, nil)
			a.End("length")
		}
	}
	return []Behaviour{
		{Name: "a text is cut once", Maker: "every server", Source: FromMemory, Text: true, Answer: cut(1)},
		{Name: "a text is cut three times", Maker: "every server", Source: FromMemory, Text: true, Answer: cut(3)},
		{
			Name: "a call is cut", Maker: "every server", Source: FromMemory,
			Answer: first(1, func(a *Reply) {
				c := a.Call.native()
				c["index"] = 0
				c["function"].(map[string]any)["arguments"] = a.Call.Arguments[:20]
				a.CallPart(c)
				a.End("length")
			}),
		},
	}
}

// busy are servers that can't answer yet.
func busy() []Behaviour {
	status := func(n, status int, body string, header ...string) func(*Reply) {
		return first(n, func(a *Reply) {
			if len(header) > 0 {
				a.W.Header().Set(header[0], header[1])
			}
			write(a.W, &Refusal{status, body})
		})
	}
	return []Behaviour{
		{
			Name: "loads its model", Maker: "llama.cpp", Source: FromMemory,
			Answer: status(3, http.StatusServiceUnavailable,
				`{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`),
		},
		{
			Name: "loads its model for minutes", Maker: "llama.cpp",
			Source: "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
			Answer: status(9, http.StatusServiceUnavailable,
				`{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`),
		},
		{
			Name: "limits the rate", Maker: "OpenAI", Source: FromMemory,
			Answer: status(2, http.StatusTooManyRequests, `{"error":{"message":"Rate limit reached","type":"requests"}}`,
				"Retry-After", "0"),
		},
		{
			Name: "is overloaded", Maker: "Anthropic", Source: FromMemory,
			Answer: status(2, 529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`),
		},
		{
			Name: "a gateway's page", Maker: "nginx", Source: FromMemory,
			Answer: status(2, http.StatusBadGateway, "<html><h1>502 Bad Gateway</h1></html>"),
		},
		{
			Name: "too many requests at once", Maker: "vLLM behind a queue", Source: FromMemory,
			Answer: status(2, http.StatusTooEarly, `{"detail":"Try again"}`),
		},
	}
}
