package native

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	openai "github.com/sashabaranov/go-openai"
)

// mostCalls bounds the calls of one answer.
const mostCalls = 128

// reads is which texts are read for calls. A text that quotes a call must not become one.
type reads int

const (
	// readsNone is for models that call natively: their texts are texts.
	readsNone reads = iota
	// readsLines reads calls that begin a line.
	readsLines
	// readsAll reads calls after words too, for models that were told to write them.
	readsAll
)

// written is a form in which models write calls with tags.
type written struct {
	head, parameter *regexp.Regexp
	end             string
}

// The forms in which models write calls into their texts.
var ( //nolint:gochecknoglobals // compiled once, read-only
	functionTag    = regexp.MustCompile(`\A<function=([^>\n]+)>`)
	parameter      = regexp.MustCompile(`\A<parameter=([^>\n]+)>`)
	invokeTag      = regexp.MustCompile(`\A<invoke name="([^"\n]+)">`)
	namedParameter = regexp.MustCompile(`\A<parameter name="([^"\n]+)"[^>\n]*>`)
	callStart      = regexp.MustCompile(`<function=|<invoke name="|` +
		`<(?:[\w:]*tool_calls?|tools|function_call)>|\[TOOL_CALLS\]`)
	around = regexp.MustCompile(`\A(?:\s|</?(?:[\w:]*tool_calls?|tools|function_call)>|\[TOOL_CALLS\])+`)
)

// readCalls finds the calls that a text is, or ends with, and what is before them. Only tools that
// are offered are called so, and what is quoted or followed by words is no call.
func readCalls(text string, tools []openai.Tool, how reads) (rest string, calls []openai.ToolCall) {
	spoken := text
	if how == readsAll { // what follows is a result that the model made up
		spoken, _, _ = strings.Cut(text, executionResult)
	}
	body := strings.TrimSpace(spoken)
	if inner, is := unfenced(body); is {
		body = inner
	}
	if calls, _ = callsOnly(body, tools); len(calls) > 0 {
		return "", calls
	}
	read := 0
	for _, at := range places(spoken, how) {
		if at < read {
			continue // it is among calls, or within one, that words follow
		}
		calls, after := callsOnly(spoken[at:], tools)
		if len(calls) > 0 {
			return strings.TrimRight(spoken[:at], " \t\r\n"), calls
		}
		read = len(spoken) - len(after)
	}
	return text, nil
}

// places are where a call may begin: outside of fences, indented code, quotes and, unless all are
// read, not after words in its line.
func places(text string, how reads) []int {
	var list []int
	fence, deep := "", 0
	for at := 0; at < len(text) && len(list) < mostCalls; {
		line, _, _ := strings.Cut(text[at:], "\n")
		bare := strings.TrimLeft(line, " \t")
		indent := len(line) - len(bare)
		switch run := fenceOf(bare); {
		case fence != "":
			if strings.HasPrefix(run, fence) && strings.TrimSpace(bare[len(run):]) == "" && indent < deep+4 {
				fence = ""
			}
		case run != "":
			fence, deep = run, indent
		case indent >= 4 || strings.HasPrefix(line, "\t") || strings.HasPrefix(bare, ">"):
		default:
			m := callStart.FindStringIndex(bare)
			if m != nil && (m[0] == 0 || how == readsAll && !opened(bare[:m[0]])) {
				list = append(list, at+indent+m[0])
			}
		}
		at += len(line) + 1
	}
	return list
}

// fenceOf is the mark of a fence that a line begins with; empty if it begins none.
func fenceOf(line string) string {
	for _, mark := range []string{"`", "~"} {
		rest := strings.TrimLeft(line, mark)
		if n := len(line) - len(rest); n >= 3 && (mark == "~" || !strings.Contains(rest, mark)) {
			return line[:n]
		}
	}
	return ""
}

// opened reports whether a line has the beginning of a quote or of code, and not its end.
func opened(before string) bool {
	return strings.Count(before, "`")%2 == 1 || strings.Count(before, `"`)%2 == 1 ||
		strings.Count(before, "“") > strings.Count(before, "”")
}

// callsOnly are the calls that a text consists of; none if there is something else. Then rest is what
// follows all that looks like calls.
func callsOnly(text string, tools []openai.Tool) (calls []openai.ToolCall, rest string) {
	for {
		if text = text[len(around.FindString(text)):]; text == "" {
			return calls, ""
		}
		found, rest := nextCall(text, tools)
		if len(found) == 0 || len(calls)+len(found) > mostCalls {
			return nil, rest
		}
		calls, text = append(calls, found...), rest
	}
}

// nextCall reads the calls that a text begins with, and what follows them.
func nextCall(text string, tools []openai.Tool) (calls []openai.ToolCall, rest string) {
	if strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[") {
		raw, rest := firstValue(text)
		return callsIn(raw, tools), rest
	}
	for _, form := range []written{
		{functionTag, parameter, "</function>"}, {invokeTag, namedParameter, "</invoke>"},
	} {
		if m := form.head.FindStringSubmatch(text); m != nil {
			return form.read(m[1], text[len(m[0]):], tools)
		}
	}
	return nil, text
}

// firstValue is the JSON value that a text begins with; empty if it is none.
func firstValue(text string) (value, rest string) {
	d := json.NewDecoder(strings.NewReader(text))
	var raw json.RawMessage
	if d.Decode(&raw) != nil {
		return "", text
	}
	return string(raw), text[d.InputOffset():]
}

// read reads a call whose arguments are tags, or one JSON object. The end may be left out after them.
func (w written) read(said, body string, tools []openai.Tool) (calls []openai.ToolCall, rest string) {
	name, known := toolMeant(said, tools)
	body = strings.TrimSpace(body)
	if strings.HasPrefix(body, "{") {
		raw, rest := firstValue(body)
		if raw == "" || !known {
			return nil, rest
		}
		return []openai.ToolCall{newCall(name, raw)}, strings.TrimPrefix(strings.TrimLeft(rest, " \t\r\n"), w.end)
	}
	schema := parameters{}
	for _, t := range tools {
		if t.Function.Name == name {
			schema = parametersOf(t)
		}
	}
	arguments := map[string]any{}
	for m := w.parameter.FindStringSubmatch(body); m != nil; m = w.parameter.FindStringSubmatch(body) {
		inner, after, ended := strings.Cut(body[len(m[0]):], "</parameter>")
		if !ended {
			if inner, after, ended = strings.Cut(body[len(m[0]):], w.end); !ended {
				return nil, ""
			}
			after = w.end + after
		}
		key := strings.TrimSpace(m[1])
		arguments[key] = schema.value(key, inner)
		body = strings.TrimLeft(after, " \t\r\n")
	}
	rest, ended := strings.CutPrefix(body, w.end)
	raw, err := json.Marshal(arguments)
	if err != nil || !known || !ended && len(arguments) == 0 {
		return nil, rest
	}
	return []openai.ToolCall{newCall(name, string(raw))}, rest
}

// value is an argument as it was written: JSON where the schema wants no text.
func (p parameters) value(key, text string) any {
	if strings.HasPrefix(text, "\n") {
		text = strings.TrimSuffix(strings.TrimPrefix(text, "\n"), "\n")
	}
	kind, described := p.Properties[key]
	if raw := strings.TrimSpace(text); described && kind.Type != "string" && json.Valid([]byte(raw)) {
		return json.RawMessage(raw)
	}
	return text
}

func newCall(name, arguments string) openai.ToolCall {
	return openai.ToolCall{
		Type: openai.ToolTypeFunction, Function: openai.FunctionCall{Name: name, Arguments: arguments},
	}
}

// callsIn are the calls that a JSON text is, one or a list.
func callsIn(text string, tools []openai.Tool) []openai.ToolCall {
	type object struct {
		Name       loose   `json:"name"`
		Arguments  loose   `json:"arguments"`
		Parameters loose   `json:"parameters"`
		Function   *object `json:"function"`
	}
	list := jsonObjects(text)
	if len(list) == 0 {
		var many []json.RawMessage
		if json.Unmarshal([]byte(text), &many) != nil {
			return nil
		}
		if len(many) > mostCalls {
			return nil
		}
		for _, one := range many {
			list = append(list, string(one))
		}
	}
	var calls []openai.ToolCall
	for _, one := range list {
		var w object
		if json.Unmarshal([]byte(one), &w) != nil {
			return nil
		}
		if w.Function != nil {
			w = *w.Function
		}
		name, known := toolMeant(string(w.Name), tools)
		if !known {
			return nil
		}
		arguments := string(w.Arguments)
		if arguments == "" {
			arguments = string(w.Parameters)
		}
		calls = append(calls, newCall(name, arguments))
	}
	return calls
}

// spaces are the namespaces that models write before a tool's name.
func spaces() []string { return []string{"functions", "function", "tools", "tool", "default_api"} }

var numbered = regexp.MustCompile(`:\d+$`) //nolint:gochecknoglobals // compiled once, read-only

// toolMeant is the tool that a model means by a name, and whether there is one. Some write a
// namespace before it, or a number or a channel after it.
func toolMeant(said string, tools []openai.Tool) (name string, known bool) {
	is := func(said string) bool {
		for _, t := range tools {
			if strings.EqualFold(t.Function.Name, said) {
				name = t.Function.Name
				return true
			}
		}
		return false
	}
	if is(said) {
		return name, true
	}
	bare, _, _ := strings.Cut(strings.Trim(strings.TrimSpace(said), "`\"'"), "<|")
	bare = numbered.ReplaceAllString(bare, "")
	if is(bare) {
		return name, true
	}
	if at := strings.IndexAny(bare, ".:/"); at > 0 && slices.Contains(spaces(), bare[:at]) && is(bare[at+1:]) {
		return name, true
	}
	return said, false
}
