package native

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	openai "github.com/sashabaranov/go-openai"
)

// cutOff is the reason to finish of an answer that the limit of output cut.
const cutOff = "length"

// think takes the thoughts out of an answer's text.
func (a *answer) think() {
	thought, text := thoughtIn(a.text)
	a.text = text
	if thought != "" {
		a.reasoning = strings.TrimSpace(a.reasoning + "\n" + thought)
	}
}

// settle gives calls the names and arguments of calls, and reads those in the text of an answer that
// has all of its parts: a part alone does not tell what is quoted. Without tools there are none.
func (a *answer) settle(tools []openai.Tool, how reads) {
	cut := a.finish == cutOff
	if len(a.calls) == 0 && len(tools) > 0 && how != readsNone && !(cut && unclosed(a.text)) {
		a.text, a.calls = readCalls(a.text, tools, how)
	}
	var calls []openai.ToolCall
	for i, c := range a.calls {
		c.Index = nil
		c.Function.Name, _ = toolMeant(c.Function.Name, tools)
		list := []string{c.Function.Arguments}
		if !cut || i < len(a.calls)-1 {
			list = objects(c.Function.Arguments)
		}
		if len(calls)+len(list) > mostCalls {
			list = []string{c.Function.Arguments}
		}
		for n, arguments := range list {
			if c.Function.Arguments = ownArguments(arguments, tools); n > 0 {
				c.ID = ""
			}
			calls = append(calls, c)
		}
	}
	a.calls = calls
}

// cutCall reports whether the limit of output cut the last call of the answer.
func (a *answer) cutCall() bool {
	return a.finish == cutOff && len(a.calls) > 0 &&
		objectError(a.calls[len(a.calls)-1].Function.Arguments) != nil
}

// thoughtIn separates the thoughts that a text begins with, as servers without a parser for them
// leave them. The beginning may be in the prompt, and the end be cut off.
func thoughtIn(text string) (thought, rest string) {
	trimmed := strings.TrimSpace(text)
	inner, begun := strings.CutPrefix(trimmed, "<think>")
	if !begun {
		inner = trimmed
	}
	thought, rest, ended := strings.Cut(inner, "</think>")
	split := strings.HasSuffix(thought, "\n") && (strings.HasPrefix(rest, "\n") || strings.HasPrefix(rest, "<"))
	if begun || ended && split {
		return strings.TrimSpace(thought), strings.TrimSpace(rest)
	}
	return "", text
}

// unclosed reports whether a text ends within a call.
func unclosed(text string) bool {
	for _, tag := range []string{"function", "tool_call", "invoke"} {
		if strings.Count(text, "<"+tag) > strings.Count(text, "</"+tag) {
			return true
		}
	}
	return false
}

// objects are the JSON objects that the arguments of a call are meant to be: more than one where a
// server joined calls, and the text itself where it is none.
func objects(text string) []string {
	t := strings.TrimSpace(text)
	for range 4 {
		if t == "" || t == "null" {
			return []string{"{}"}
		}
		if list := jsonObjects(t); len(list) > 0 {
			return list
		}
		var inner string
		if json.Unmarshal([]byte(t), &inner) == nil {
			t = strings.TrimSpace(inner)
			continue
		}
		inner, is := unfenced(t)
		if !is {
			break
		}
		t = inner
	}
	mended := escaped(t)
	for _, one := range []string{mended, closed(mended)} {
		if list := jsonObjects(one); len(list) == 1 {
			return list
		}
	}
	return []string{text}
}

// jsonObjects are the objects that a text consists of, each once; none if there is something else, or
// more than an answer may have calls.
func jsonObjects(text string) []string {
	var list []string
	known := map[string]bool{}
	d := json.NewDecoder(strings.NewReader(text))
	for {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil || !strings.HasPrefix(string(raw), "{") {
			return nil
		}
		if known[string(raw)] {
			continue
		}
		if len(list) == mostCalls {
			return nil
		}
		known[string(raw)] = true
		list = append(list, string(raw))
	}
}

// ownArguments unpacks a call that was written into its own arguments.
func ownArguments(arguments string, tools []openai.Tool) string {
	var members map[string]json.RawMessage
	if json.Unmarshal([]byte(arguments), &members) != nil || len(members) != 2 ||
		members["name"] == nil || members["arguments"] == nil {
		return arguments
	}
	if list := callsIn(arguments, tools); len(list) == 1 {
		return objects(list[0].Function.Arguments)[0]
	}
	return arguments
}

// unfenced is what is in a fence that is the whole text.
func unfenced(text string) (string, bool) {
	body, begun := strings.CutPrefix(text, "```")
	body, ended := strings.CutSuffix(body, "```")
	first, rest, more := strings.Cut(body, "\n")
	if !begun || !ended || !more || strings.ContainsAny(first, "{[") {
		return text, false
	}
	return strings.TrimSpace(rest), true
}

// escaped escapes the newlines and tabs in the texts of a JSON text.
func escaped(text string) string {
	var b strings.Builder
	scan(text, func(c byte, within bool) {
		switch {
		case within && c == '\n':
			b.WriteString(`\n`)
		case within && c == '\r':
			b.WriteString(`\r`)
		case within && c == '\t':
			b.WriteString(`\t`)
		default:
			b.WriteByte(c)
		}
	})
	return b.String()
}

// closed adds the braces that a JSON text lacks at its end; not the end of a text, which would be cut.
func closed(text string) string {
	var open []byte
	ends := scan(text, func(c byte, within bool) {
		switch {
		case within:
		case c == '{':
			open = append(open, '}')
		case c == '[':
			open = append(open, ']')
		case (c == '}' || c == ']') && len(open) > 0:
			open = open[:len(open)-1]
		}
	})
	if ends {
		return text
	}
	slices.Reverse(open)
	return text + string(open)
}

// scan calls each with the bytes of a JSON text, and whether they are within a text. It reports
// whether the end is within one.
func scan(text string, each func(c byte, within bool)) bool {
	within, escape := false, false
	for i := range len(text) {
		c := text[i]
		each(c, within)
		switch {
		case escape:
			escape = false
		case within && c == '\\':
			escape = true
		case c == '"':
			within = !within
		}
	}
	return within
}
