package modelserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// anthropic is a refusal in Anthropic's form.
func anthropic(format string, args ...any) *Refusal {
	return &Refusal{http.StatusBadRequest, asJSON(map[string]any{"type": "error", "error": map[string]any{
		"type": "invalid_request_error", "message": fmt.Sprintf(format, args...),
	}})}
}

// member is a member of a member of the body; nil is none.
func (r *Request) member(name, inner string) any {
	object, _ := r.Body[name].(map[string]any)
	return object[inner]
}

// signature is what a thought of an answer is known by.
func (r *Request) signature() string { return fmt.Sprintf("sig-%d", r.Number) }

// thinking answers with a thought before each call.
func thinking(a *Reply) {
	if a.Call != nil && a.stream != nil {
		a.stream.thinks("I think.", a.R.signature())
	}
	a.Good()
}

// thoughtless finds a call of this conversation whose thought is not there as it was said.
func thoughtless(r *Request, kept func(m Message, signature string) bool) bool {
	return r.Any(func(m Message) bool {
		n, ours := 0, false
		if len(m.Calls) > 0 {
			_, err := fmt.Sscanf(m.Calls[0].ID, "call_%d", &n)
			ours = err == nil
		}
		return ours && !kept(m, fmt.Sprintf("sig-%d", n))
	})
}

// inMessages are behaviours of servers of Messages.
func inMessages() []Behaviour {
	list := slices.Concat(messagesThoughts(), messagesMembers(), messagesEvents(), messagesStreams())
	for i := range list {
		list[i].API = Messages
	}
	return list
}

func messagesThoughts() []Behaviour {
	return []Behaviour{
		{
			Name: "thoughts are wanted back with their signature", Maker: "Anthropic", Effort: "high",
			Source: "https://github.com/anomalyco/opencode/issues/3077", Answer: thinking,
			Refuse: func(r *Request) *Refusal {
				if thoughtless(r, func(m Message, s string) bool { return m.Thought == "I think.|"+s }) {
					return anthropic("messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found " +
						"`tool_use`. When `thinking` is enabled, a final `assistant` message must start with a thinking block")
				}
				return nil
			},
		},
		{
			Name: "thoughts of a history that changed", Maker: "Anthropic", Effort: "high",
			Source: "https://github.com/anomalyco/opencode/issues/48637", Answer: thinking,
			Refuse: func(r *Request) *Refusal {
				if r.Number > 1 && r.Any(func(m Message) bool { return m.Thought != "" }) {
					return anthropic("messages.1.content.0: Invalid `signature` in `thinking` block. " +
						"The block is bound to a different conversation.")
				}
				return nil
			},
		},
		{
			Name: "thoughts though thinking is off", Maker: "Anthropic",
			Source: "https://github.com/tailcallhq/forgecode/issues/1853", Answer: thinking,
			Refuse: func(r *Request) *Refusal {
				if r.Any(func(m Message) bool { return m.Thought != "" }) {
					return anthropic("messages.1.content.0: When thinking is disabled, an `assistant` message in the final " +
						"position cannot contain `thinking`. To use thinking blocks, enable `thinking` in your request.")
				}
				return nil
			},
		},
		{
			Name: "no adaptive thinking", Maker: "Anthropic, older models", Effort: "medium",
			Source: "https://github.com/envoyproxy/ai-gateway/pull/1988",
			Refuse: func(r *Request) *Refusal {
				if r.Has("output_config") || r.member("thinking", "type") == "adaptive" {
					return anthropic("adaptive thinking is not supported on this model")
				}
				if r.member("thinking", "type") != "enabled" {
					return anthropic("thinking: the settings want thoughts")
				}
				return nil
			},
		},
	}
}

// messagesMembers are the members of a request that servers of Messages refuse.
func messagesMembers() []Behaviour {
	return []Behaviour{
		{
			Name: "a temperature beside thoughts", Maker: "Anthropic", Effort: "high", Temperature: 0.2,
			Source: "https://github.com/MartialBE/one-hub/issues/529",
			Refuse: func(r *Request) *Refusal {
				if r.Has("temperature") && r.Has("thinking") {
					return anthropic("`temperature` may only be set to 1 when thinking is enabled.")
				}
				return nil
			},
		},
		{
			Name: "cache_control is not known", Maker: "Vertex behind a proxy",
			Source: "https://github.com/cg-dot/vertexai-cf-workers/pull/21",
			Refuse: func(r *Request) *Refusal {
				if strings.Contains(asJSON(r.Body), `"cache_control"`) {
					return anthropic("system.0.cache_control: Extra inputs are not permitted")
				}
				return nil
			},
		},
		{
			Name: "nothing is cached unless it is marked", Maker: "Anthropic", Text: true,
			Source: "Anthropic's documentation, Prompt caching",
			Refuse: func(r *Request) *Refusal {
				if n := strings.Count(asJSON(r.Body), `"cache_control"`); n < 2 {
					return &Refusal{http.StatusTeapot, fmt.Sprintf("%d marks: this prompt is paid whole each time", n)}
				}
				return nil
			},
		},
		{
			Name: "the model's limit of output", Maker: "Anthropic, older models", Source: FromMemory,
			Refuse: func(r *Request) *Refusal {
				if n, _ := r.Body["max_tokens"].(float64); n > 8192 {
					return anthropic("max_tokens: %.0f > 8192, which is the maximum allowed number of output tokens for scripted", n)
				}
				return nil
			},
		},
		{
			Name: "a schema of another draft", Maker: "Anthropic",
			Source: "https://github.com/anthropics/claude-code/issues/63673",
			Refuse: func(r *Request) *Refusal {
				if strings.Contains(asJSON(r.Body["tools"]), "draft-07") {
					return anthropic("tools.12.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12")
				}
				return nil
			},
		},
	}
}

// messagesEvents are what servers make of the events of Messages.
func messagesEvents() []Behaviour {
	return []Behaviour{
		{
			Name: "no event lines", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) { a.rewritten(func(s string) string { return dropLines(s, "event:") }) },
		},
		{
			Name: "the stream stays open after message_stop", Maker: "proxy",
			Source: "https://github.com/earendil-works/pi/issues/5592",
			Answer: staysOpen,
		},
		{
			Name: "no message_stop", Maker: "Anthropic", Source: "https://github.com/tombii/better-ccflare/pull/307",
			Answer: func(a *Reply) { a.rewritten(func(s string) string { return dropEvent(s, "message_stop") }) },
		},
		{
			Name: "ends before message_delta", Maker: "proxy", Source: "https://github.com/SamSaffron/term-llm/pull/955",
			Answer: first(2, func(a *Reply) {
				a.rewritten(func(s string) string { return dropEvent(dropEvent(s, "message_stop"), "message_delta") })
			}),
		},
		{
			Name: "blocks are counted from 1, as texts", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) {
				a.rewritten(func(s string) string { return strings.ReplaceAll(s, `"index":0`, `"index":"1"`) })
			},
		},
		{
			Name: "a block without a beginning", Maker: "proxy", Source: FromMemory, Text: true,
			Answer: func(a *Reply) {
				a.rewritten(func(s string) string {
					if a.Call != nil {
						return s
					}
					return dropEvent(s, "content_block_start")
				})
			},
		},
		{
			Name: "the input is whole at the beginning", Maker: "proxy",
			Source: "https://github.com/inflaborg/ccrelay/pull/119",
			Answer: func(a *Reply) {
				a.rewritten(func(s string) string {
					return strings.Replace(dropEvent(s, "content_block_delta"), `"input":{}`, `"input":`+a.Call.Arguments, 1)
				})
			},
		},
	}
}

// messagesStreams are the ways in which servers write Messages.
func messagesStreams() []Behaviour {
	return []Behaviour{
		{
			Name: "pings", Maker: "Anthropic", Source: "Anthropic's documentation, Streaming messages",
			Answer: func(a *Reply) {
				a.Raw("event: ping\ndata: {\"type\": \"ping\"}\n\n")
				a.Good()
			},
		},
		{
			Name: "overloaded in the stream", Maker: "Anthropic", Source: "Anthropic's documentation, Streaming messages",
			Answer: first(2, func(a *Reply) {
				a.begins()
				a.Raw("event: error\n")
				a.Event(map[string]any{"type": "error", "error": map[string]any{"type": "overloaded_error", "message": "Over"}})
			}),
		},
		{
			Name: "answers whole though a stream was asked for", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) { a.Whole(a.message(), "tool_calls") },
		},
		{
			Name: "an answer in chat completions", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) {
				a.stream = nil
				a.Good()
			},
		},
		{
			Name: "parallel calls", Maker: "Anthropic", Source: "Anthropic's documentation, Tool use", Two: true,
			Answer: parallel,
		},
	}
}

// parallel writes both files in one answer.
func parallel(a *Reply) {
	if !a.Writes() {
		a.Good()
		return
	}
	other := *a.Call
	other.ID, other.Arguments = "call_other", strings.ReplaceAll(a.Call.Arguments, File, "other.txt")
	a.Calls(*a.Call, other)
}

// staysOpen writes a good answer and does not end it.
func staysOpen(a *Reply) {
	a.Good()
	a.Pause(20 * time.Second)
}

// rewritten writes a good stream as change makes it.
func (a *Reply) rewritten(change func(string) string) {
	a.edit = &strings.Builder{}
	a.Good()
	text := a.edit.String()
	a.edit = nil
	a.Raw(change(text))
}

// dropLines leaves out the lines that begin so.
func dropLines(stream, prefix string) string {
	var b strings.Builder
	for line := range strings.Lines(stream) {
		if !strings.HasPrefix(line, prefix) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// dropEvent leaves out the events of a type.
func dropEvent(stream, kind string) string {
	var b strings.Builder
	for event := range strings.SplitSeq(stream, "\n\n") {
		_, data, _ := strings.Cut(event, "data: ")
		var is struct {
			Type string `json:"type"`
		}
		if json.Unmarshal([]byte(data), &is) == nil && is.Type != kind {
			b.WriteString(event + "\n\n")
		}
	}
	return b.String()
}
