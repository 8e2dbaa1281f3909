package native

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	openai "github.com/sashabaranov/go-openai"
)

// The forms in which models write calls into their texts.
var ( //nolint:gochecknoglobals // compiled once, read-only
	functionTag = regexp.MustCompile(`(?s)<function=([^>\n]+)>(.*?)(?:</function>|\z)`)
	parameter   = regexp.MustCompile(`(?s)<parameter=([^>\n]+)>(.*?)(?:</parameter>|\z)`)
	invokeTag   = regexp.MustCompile(`(?s)<invoke name="([^"]+)">(.*?)(?:</invoke>|\z)`)
	named       = regexp.MustCompile(`(?s)<parameter name="([^"]+)"[^>]*>(.*?)(?:</parameter>|\z)`)
	callTag     = regexp.MustCompile(`(?s)<(?:tool_calls?|tools|function_call)>\s*([\[{].*?)` +
		`(?:</(?:tool_calls?|tools|function_call)>|\z)`)
	mistralTag = regexp.MustCompile(`(?s)\[TOOL_CALLS\]\s*([\[{].*)\z`)
	openTag    = regexp.MustCompile("(?s)(\\s|<[\\w:]*tool_calls?>|```\\w*)+\\z")
)

// readCalls finds the calls that a text has, and what is before them. Only tools that are offered
// are called so, and what stands in a fence or between backticks is no call.
func readCalls(text string, tools []openai.Tool) (rest string, calls []openai.ToolCall) {
	spoken, _, _ := strings.Cut(text, executionResult) // what follows is a result that the model made up
	for _, form := range []struct {
		tag  *regexp.Regexp
		read func(m []string) []openai.ToolCall
	}{
		{functionTag, func(m []string) []openai.ToolCall { return tagged(m, parameter, tools) }},
		{invokeTag, func(m []string) []openai.ToolCall { return tagged(m, named, tools) }},
		{callTag, func(m []string) []openai.ToolCall { return callsIn(m[1], tools) }},
		{mistralTag, func(m []string) []openai.ToolCall { return callsIn(m[1], tools) }},
	} {
		first := -1
		for _, at := range form.tag.FindAllStringSubmatchIndex(spoken, -1) {
			if quoted(spoken[:at[0]]) {
				continue
			}
			m := make([]string, len(at)/2)
			for i := range m {
				m[i] = spoken[at[2*i]:at[2*i+1]]
			}
			found := form.read(m)
			if len(found) > 0 && first < 0 {
				first = at[0]
			}
			calls = append(calls, found...)
		}
		if first >= 0 {
			return openTag.ReplaceAllString(spoken[:first], ""), calls
		}
	}
	body := strings.TrimSpace(text)
	if inner, is := unfenced(body); is {
		body = inner
	}
	if calls = callsIn(body, tools); len(calls) > 0 {
		return "", calls
	}
	return text, nil
}

// quoted reports whether what follows a text is quoted by it: in a fence that is not the whole
// text, or after a backtick.
func quoted(before string) bool {
	trimmed := strings.TrimSpace(before)
	if strings.HasSuffix(before, "`") && !strings.HasSuffix(before, "```") {
		return true
	}
	fences := strings.Count(trimmed, "```")
	return fences%2 == 1 && !strings.HasPrefix(trimmed, "```")
}

// tagged is a call whose arguments are tags, or one JSON object.
func tagged(m []string, tag *regexp.Regexp, tools []openai.Tool) []openai.ToolCall {
	name, known := toolMeant(m[1], tools)
	if !known {
		return nil
	}
	if list := jsonObjects(m[2]); len(list) == 1 {
		return []openai.ToolCall{newCall(name, list[0])}
	}
	schema := parameters{}
	for _, t := range tools {
		if t.Function.Name == name {
			schema = parametersOf(t)
		}
	}
	arguments := map[string]any{}
	for _, p := range tag.FindAllStringSubmatch(m[2], -1) {
		key, value := strings.TrimSpace(p[1]), p[2]
		if strings.HasPrefix(value, "\n") {
			value = strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n")
		}
		arguments[key] = value
		kind, described := schema.Properties[key]
		if raw := strings.TrimSpace(value); described && kind.Type != "string" && json.Valid([]byte(raw)) {
			arguments[key] = json.RawMessage(raw)
		}
	}
	raw, err := json.Marshal(arguments)
	if err != nil {
		return nil
	}
	return []openai.ToolCall{newCall(name, string(raw))}
}

func newCall(name, arguments string) openai.ToolCall {
	return openai.ToolCall{
		Type: openai.ToolTypeFunction, Function: openai.FunctionCall{Name: name, Arguments: arguments},
	}
}

// callsIn are the calls that a JSON text is, one or a list.
func callsIn(text string, tools []openai.Tool) []openai.ToolCall {
	type written struct {
		Name       loose    `json:"name"`
		Arguments  loose    `json:"arguments"`
		Parameters loose    `json:"parameters"`
		Function   *written `json:"function"`
	}
	list := jsonObjects(text)
	if len(list) == 0 {
		var many []json.RawMessage
		if json.Unmarshal([]byte(text), &many) != nil {
			return nil
		}
		for _, one := range many {
			list = append(list, string(one))
		}
	}
	var calls []openai.ToolCall
	for _, one := range list {
		var w written
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
