package modelserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Reply is an answer that is being written.
type Reply struct {
	W http.ResponseWriter
	R *Request
	// Call is what the model calls; without one it says Text.
	Call *Call
	Text string

	gone <-chan struct{}
	// stream writes the answer in another API than chat completions, nil for that.
	stream stream
	// prompted reports that the tools are described in the prompt and called in a text.
	prompted bool
	headed   bool
	// edit collects a stream in the place of writing it.
	edit *strings.Builder
}

// plan decides what the model says, by what it sees.
func (a *Reply) plan(text bool) {
	for _, m := range a.R.Messages {
		a.prompted = a.prompted || strings.Contains(m.Text, "---- BEGIN FUNCTION #")
	}
	switch {
	case len(a.R.Tools) == 0 && !a.prompted:
		a.Text = "I have no tools and can only talk."
	case !a.R.written():
		a.Call = &Call{Name: "file_editor", Arguments: asJSON(map[string]any{
			"command": "create", "path": a.R.where() + "/" + File, "file_text": Content,
		})}
	case text:
		a.Text = Farewell
	default:
		a.Call = &Call{Name: "finish", Arguments: asJSON(map[string]any{"message": Farewell})}
	}
	if a.Call != nil {
		a.Call.ID = fmt.Sprintf("call_%d", a.R.Number)
	}
}

// Writes reports whether the answer is the first one of the task, which writes the file.
func (a *Reply) Writes() bool { return a.Call != nil && a.Call.Name == "file_editor" }

// Good writes the answer as OpenAI does, or as a text where the tools are in the prompt.
func (a *Reply) Good() {
	switch {
	case a.prompted && a.Call != nil:
		a.Say(a.Call.tagged())
	case a.Call != nil:
		a.Calls(*a.Call)
	default:
		a.Say(a.Text)
	}
}

// Say writes a text.
func (a *Reply) Say(text string) {
	if !a.R.Streams() {
		a.Whole(map[string]any{"content": text}, "stop")
		return
	}
	a.Delta(map[string]any{"role": "assistant", "content": ""}, nil)
	for piece := range slices.Chunk([]rune(text), 9) {
		a.Delta(map[string]any{"content": string(piece)}, nil)
	}
	a.End("stop")
}

// Calls writes native calls.
func (a *Reply) Calls(calls ...Call) {
	if !a.R.Streams() {
		var list []any
		for _, c := range calls {
			list = append(list, c.native())
		}
		a.Whole(map[string]any{"content": nil, "tool_calls": list}, "tool_calls")
		return
	}
	for i, c := range calls {
		first := c.native()
		first["index"] = i
		first["function"].(map[string]any)["arguments"] = ""
		a.CallPart(first)
		for piece := range slices.Chunk([]rune(c.Arguments), 9) {
			a.CallPart(map[string]any{"index": i, "function": map[string]any{"arguments": string(piece)}})
		}
	}
	a.End("tool_calls")
}

// CallPart writes a part of a call.
func (a *Reply) CallPart(part map[string]any) {
	a.Delta(map[string]any{"tool_calls": []any{part}}, nil)
}

// native is the call as OpenAI writes it.
func (c Call) native() map[string]any {
	return map[string]any{
		"id": c.ID, "type": "function", "function": map[string]any{"name": c.Name, "arguments": c.Arguments},
	}
}

// tagged is the call in the form of upstream's prompt and of Qwen3-Coder.
func (c Call) tagged() string {
	arguments := c.object()
	var b strings.Builder
	b.WriteString("<function=" + c.Name + ">\n")
	for _, name := range slices.Sorted(maps.Keys(arguments)) {
		value := fmt.Sprint(arguments[name])
		if strings.Contains(value, "\n") {
			value = "\n" + value + "\n"
		}
		fmt.Fprintf(&b, "<parameter=%s>%s</parameter>\n", name, value)
	}
	return b.String() + "</function>"
}

func (c Call) object() map[string]any {
	var arguments map[string]any
	if err := json.Unmarshal([]byte(c.Arguments), &arguments); err != nil {
		panic(err) // plan made them
	}
	return arguments
}

// Head begins a stream.
func (a *Reply) Head() {
	if a.headed {
		return
	}
	a.headed = true
	a.W.Header().Set("Content-Type", "text/event-stream")
	a.W.WriteHeader(http.StatusOK)
}

// Raw writes bytes at once.
func (a *Reply) Raw(text string) {
	if a.edit != nil {
		a.edit.WriteString(text)
		return
	}
	a.Head()
	fmt.Fprint(a.W, text)
	http.NewResponseController(a.W).Flush() //nolint:errcheck // a client that is gone ends the request
}

// Event writes one event.
func (a *Reply) Event(v any) { a.Raw("data: " + asJSON(v) + "\n\n") }

// Frame is a chunk with these choices.
func (a *Reply) Frame(choices ...any) map[string]any {
	return map[string]any{
		"id": fmt.Sprintf("chatcmpl-%d", a.R.Number), "object": "chat.completion.chunk", "created": 1,
		"model": "scripted", "choices": choices,
	}
}

// Delta writes a part of the message.
func (a *Reply) Delta(delta map[string]any, finish any) {
	if a.stream != nil {
		a.stream.part(partOf(delta))
		return
	}
	a.Event(a.Frame(map[string]any{"index": 0, "delta": delta, "finish_reason": finish}))
}

// End ends a stream as OpenAI does.
func (a *Reply) End(finish string) {
	if a.stream != nil {
		a.stream.end(finish)
		return
	}
	a.Delta(map[string]any{}, finish)
	if a.R.Has("stream_options") {
		f := a.Frame()
		f["choices"] = []any{}
		f["usage"] = map[string]any{"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
		a.Event(f)
	}
	a.Raw("data: [DONE]\n\n")
}

// Body is a whole answer.
func (a *Reply) Body(message map[string]any, finish any) map[string]any {
	message["role"] = "assistant"
	return map[string]any{
		"id": fmt.Sprintf("chatcmpl-%d", a.R.Number), "object": "chat.completion", "created": 1, "model": "scripted",
		"choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": finish}},
		"usage":   map[string]any{"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
	}
}

// Whole writes the answer in one piece.
func (a *Reply) Whole(message map[string]any, finish any) {
	if a.stream != nil {
		why, _ := finish.(string)
		a.stream.whole(partOf(message), why)
		return
	}
	a.JSON(http.StatusOK, a.Body(message, finish))
}

// JSON writes a body.
func (a *Reply) JSON(status int, v any) { write(a.W, &Refusal{status, asJSON(v)}) }

// Break resets the connection.
func (a *Reply) Break() { panic(http.ErrAbortHandler) }

// Pause waits, at most until the client is gone.
func (a *Reply) Pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-a.gone:
	}
}
