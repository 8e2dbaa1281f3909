package modelserver

import (
	"net/http"
	"slices"
	"strings"
)

// forms are the forms of whole answers and of streams that nobody asked for.
func forms() []Behaviour {
	return []Behaviour{
		{
			Name: "answers whole though a stream was asked for", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) { a.Whole(a.message(), "tool_calls") },
		},
		{
			Name: "streams though a whole answer was asked for", Maker: "proxy, o1", Source: FromMemory,
			Refuse: func(r *Request) *Refusal {
				if r.Streams() && r.Number == 1 {
					return refuse(http.StatusBadRequest, "'stream' does not support true with this model")
				}
				return nil
			},
			Answer: func(a *Reply) {
				a.R.Body["stream"] = true
				a.Good()
			},
		},
		{
			Name: "streams whole messages", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) { a.Event(a.Body(a.message(), "tool_calls")); a.Raw("data: [DONE]\n\n") },
		},
		{
			Name: "streams as application/json", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) {
				a.headed = true
				a.W.Header().Set("Content-Type", "application/json")
				a.Good()
			},
		},
		{
			Name: "lines of JSON in the place of events", Maker: "Ollama's own protocol", Source: FromMemory,
			Answer: func(a *Reply) {
				a.headed = true
				a.W.Header().Set("Content-Type", "application/x-ndjson")
				a.Raw(asJSON(a.Frame(map[string]any{"index": 0, "delta": a.message(), "finish_reason": nil})) + "\n")
				a.Raw(asJSON(a.Frame(map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": "stop"})) + "\n")
			},
		},
		{
			Name: "content as a list", Maker: "Mistral", Source: "https://github.com/vercel/ai/issues/13703", Text: true,
			Answer: func(a *Reply) {
				if a.Call != nil {
					a.Good()
					return
				}
				thought := []any{map[string]any{"type": "text", "text": "I think."}}
				a.Delta(map[string]any{"content": []any{map[string]any{"type": "thinking", "thinking": thought}}}, nil)
				a.Delta(map[string]any{"content": []any{map[string]any{"type": "text", "text": a.Text}}}, nil)
				a.Delta(map[string]any{"content": []any{map[string]any{"type": "reference", "reference_ids": []int{1}}}}, nil)
				a.End("stop")
			},
		},
		{
			Name: "the old function_call", Maker: "old proxies", Source: FromMemory,
			Answer: func(a *Reply) {
				call := map[string]any{"name": a.Call.Name, "arguments": a.Call.Arguments}
				a.Delta(map[string]any{"function_call": call}, nil)
				a.End("function_call")
			},
		},
		{
			Name: "one call in the place of a list", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) {
				a.Delta(map[string]any{"tool_calls": a.Call.native()}, nil)
				a.End("tool_calls")
			},
		},
	}
}

// message is the answer's message with its call.
func (a *Reply) message() map[string]any {
	if a.Call == nil {
		return map[string]any{"content": a.Text}
	}
	return map[string]any{"content": nil, "tool_calls": []any{a.Call.native()}}
}

// streams are the ways in which streams end, and what is between their events.
func streams() []Behaviour {
	good := func(finish any, after string) func(*Reply) {
		return func(a *Reply) {
			a.Delta(a.message(), nil)
			a.Delta(map[string]any{}, finish)
			a.Raw(after)
		}
	}
	return []Behaviour{
		{
			Name: "no finish_reason", Maker: "vllm-mlx", Source: "https://github.com/waybarrios/vllm-mlx/issues/628",
			Answer: good(nil, "data: [DONE]\n\n"),
		},
		{
			Name: "finish_reason is empty", Maker: "SGLang", Source: "https://github.com/sgl-project/sglang/issues/3912",
			Answer: good("", "data: [DONE]\n\n"),
		},
		{
			Name: "no [DONE]", Maker: "ik_llama.cpp", Source: "https://github.com/ikawrakow/ik_llama.cpp/issues/467",
			Answer: good("tool_calls", ""),
		},
		{
			Name: "the last line has no newline", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) {
				a.Raw("data: " + asJSON(a.Frame(map[string]any{"index": 0, "delta": a.message(), "finish_reason": "tool_calls"})))
			},
		},
		{
			Name: "no space after data:, and carriage returns", Maker: "Azure, gateways", Source: FromMemory,
			Answer: func(a *Reply) {
				frame := a.Frame(map[string]any{"index": 0, "delta": a.message(), "finish_reason": "tool_calls"})
				a.Raw("data:" + asJSON(frame) + "\r\n\r\ndata:[DONE]\r\n\r\n")
			},
		},
		{
			Name: "one newline between events", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) {
				frame := a.Frame(map[string]any{"index": 0, "delta": a.message(), "finish_reason": nil})
				end := a.Frame(map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": "tool_calls"})
				a.Raw("data: " + asJSON(frame) + "\ndata: " + asJSON(end) + "\ndata: [DONE]\n")
			},
		},
		{
			Name: "comments and named events", Maker: "OpenRouter",
			Source: "OpenRouter's documentation, API reference, Streaming",
			Answer: func(a *Reply) {
				a.Raw(strings.Repeat(": OPENROUTER PROCESSING\n\n", 50))
				a.Raw("event: message\nid: 1\nretry: 10\n")
				a.Good()
			},
		},
		{
			Name: "a chunk without choices first", Maker: "Azure's content filter", Source: FromMemory,
			Answer: func(a *Reply) {
				a.Event(map[string]any{"id": "", "model": "", "choices": []any{}, "prompt_filter_results": []any{map[string]any{
					"prompt_index": 0}}})
				a.Good()
			},
		},
		{
			Name: "finish_reason is stop with calls", Maker: "Gemini's compatible endpoint, Ollama", Source: FromMemory,
			Answer: good("stop", "data: [DONE]\n\n"),
		},
		{
			Name: "the connection is reset after finish_reason", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) {
				good("tool_calls", "")(a)
				a.Break()
			},
		},
	}
}

// numbers are values of another type than OpenAI's.
func numbers() []Behaviour {
	part := func(change func(map[string]any)) func(*Reply) {
		return func(a *Reply) {
			call := a.Call.native()
			call["index"] = 0
			change(call)
			a.CallPart(call)
			a.End("tool_calls")
		}
	}
	return []Behaviour{
		{
			Name: "arguments are an object", Maker: "llama.cpp", Source: "https://github.com/ggml-org/llama.cpp/issues/20198",
			Answer: part(func(c map[string]any) {
				function := c["function"].(map[string]any)
				function["arguments"] = Call{Arguments: function["arguments"].(string)}.object()
			}),
		},
		{
			Name: "ids are numbers", Maker: "proxy", Source: FromMemory,
			Answer: part(func(c map[string]any) { c["id"] = 7 }),
		},
		{
			Name: "the index is a text", Maker: "proxy", Source: FromMemory,
			Answer: part(func(c map[string]any) { c["index"] = "0" }),
		},
		{
			Name: "no index and no type", Maker: "Gemini's compatible endpoint, old", Source: FromMemory,
			Answer: part(func(c map[string]any) { delete(c, "index"); delete(c, "type") }),
		},
		{
			Name: "the id is empty", Maker: "Gemini's compatible endpoint, old", Source: FromMemory,
			Answer: part(func(c map[string]any) { c["id"] = "" }),
		},
		{
			Name: "each part repeats the id, with an empty name", Maker: "Kimi K2",
			Source: "https://github.com/tailcallhq/forgecode/issues/1122",
			Answer: func(a *Reply) {
				first := a.Call.native()
				first["id"] = "0"
				first["function"].(map[string]any)["arguments"] = ""
				a.CallPart(first)
				for piece := range slices.Chunk([]rune(a.Call.Arguments), 7) {
					function := map[string]any{"name": "", "arguments": string(piece)}
					a.CallPart(map[string]any{"id": "0", "function": function})
				}
				a.End("tool_calls")
			},
		},
		{
			Name: "usage is text", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) {
				f := a.Frame(map[string]any{"index": 0, "delta": a.message(), "finish_reason": "tool_calls"})
				f["usage"] = map[string]any{"prompt_tokens": "12", "completion_tokens": "3.0", "cost": "0.5",
					"prompt_tokens_details": nil}
				a.Event(f)
				a.Raw("data: [DONE]\n\n")
			},
		},
		{
			Name: "the answer's id is a number", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) {
				f := a.Frame(map[string]any{"index": "0", "delta": a.message(), "finish_reason": "tool_calls"})
				f["id"], f["created"], f["usage"] = 17, "now", []any{}
				a.Event(f)
				a.Raw("data: [DONE]\n\n")
			},
		},
	}
}
