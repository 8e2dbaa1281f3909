package native

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	openai "github.com/sashabaranov/go-openai"
)

// A model without native calls has the tools in its prompt and writes its calls as a text. The form
// is that of upstream's converter (openhands-sdk/openhands/sdk/llm/mixins/fn_call_converter.py),
// which models are trained with. readcalls.go reads what they write.

const (
	executionResult = "EXECUTION RESULT of ["
	howToWrite      = `
To call one, answer in this form and write nothing after it:

<function=NAME>
<parameter=FIRST>value</parameter>
<parameter=SECOND>
a value
of several lines
</parameter>
</function>

- A call begins with <function= and ends with </function>. Every required parameter is given.
- One call an answer. You may write what you think before it, and nothing after it. Its result is in the next message.
- Values are written as they are, without quotes or escapes. Lists and objects are written as JSON.
- Where no call is needed, answer in words.`
)

// writeTools moves the tools into the prompt and the calls into the texts.
func writeTools(r *openai.ChatCompletionRequest) {
	tools, forbidden := r.Tools, r.ToolChoice != nil
	r.Tools, r.ToolChoice, r.ParallelToolCalls = nil, nil, nil
	r.Messages = writeCalls(r.Messages)
	if len(tools) == 0 || forbidden {
		return
	}
	text := describe(tools) + howToWrite
	if len(r.Messages) > 0 && r.Messages[0].Role == openai.ChatMessageRoleSystem {
		r.Messages[0].Content += "\n\n" + text
		return
	}
	r.Messages = slices.Insert(r.Messages, 0, openai.ChatCompletionMessage{
		Role: openai.ChatMessageRoleSystem, Content: text,
	})
}

// writeCalls returns the messages with their calls and results as texts.
func writeCalls(list []openai.ChatCompletionMessage) []openai.ChatCompletionMessage {
	names := map[string]string{}
	var out []openai.ChatCompletionMessage
	results := false // the last one has results
	for _, m := range list {
		if m.Role == openai.ChatMessageRoleTool {
			text := executionResult + names[m.ToolCallID] + "]:\n" + m.Content
			if results {
				out[len(out)-1].Content += "\n\n" + text
			} else {
				out = append(out, userText(text))
			}
			results = true
			continue
		}
		for _, c := range m.ToolCalls {
			names[c.ID] = c.Function.Name
			m.Content = strings.TrimSpace(m.Content + "\n\n" + writeCall(c.Function))
		}
		m.ToolCalls, results = nil, false
		out = append(out, m)
	}
	return out
}

func writeCall(f openai.FunctionCall) string {
	var arguments map[string]any
	_ = json.Unmarshal([]byte(f.Arguments), &arguments) // view.go made it an object
	var b strings.Builder
	b.WriteString("<function=" + f.Name + ">\n")
	for _, name := range slices.Sorted(maps.Keys(arguments)) {
		value, is := arguments[name].(string)
		if !is {
			raw, _ := json.Marshal(arguments[name]) // what was decoded encodes
			value = string(raw)
		}
		if strings.Contains(value, "\n") {
			value = "\n" + value + "\n"
		}
		fmt.Fprintf(&b, "<parameter=%s>%s</parameter>\n", name, value)
	}
	b.WriteString("</function>")
	return b.String()
}

// parameters is the part of a tool's schema that a prompt shows.
type parameters struct {
	Properties map[string]struct {
		Type        any    `json:"type"`
		Description string `json:"description"`
		Enum        []any  `json:"enum"`
		Items       any    `json:"items"`
	} `json:"properties"`
	Required []string `json:"required"`
}

func parametersOf(t openai.Tool) parameters {
	var p parameters
	if raw, err := json.Marshal(t.Function.Parameters); err == nil {
		_ = json.Unmarshal(raw, &p) // a schema of another form has no parameters to show
	}
	return p
}

// describe is the tools in a prompt.
func describe(tools []openai.Tool) string {
	var b strings.Builder
	b.WriteString("You have these functions:\n")
	for i, t := range tools {
		fmt.Fprintf(&b, "\n---- BEGIN FUNCTION #%d: %s ----\nDescription: %s\n", i+1, t.Function.Name, t.Function.Description)
		p := parametersOf(t)
		if len(p.Properties) > 0 {
			b.WriteString("Parameters:\n")
		}
		for n, name := range slices.Sorted(maps.Keys(p.Properties)) {
			one := p.Properties[name]
			needed := "optional"
			if slices.Contains(p.Required, name) {
				needed = "required"
			}
			fmt.Fprintf(&b, "  (%d) %s (%v, %s): %s\n", n+1, name, one.Type, needed, one.Description)
			if len(one.Enum) > 0 {
				fmt.Fprintf(&b, "      Allowed values: %v\n", one.Enum)
			}
			if one.Items != nil {
				items, _ := json.Marshal(one.Items) // what was decoded encodes
				fmt.Fprintf(&b, "      Items: %s\n", items)
			}
		}
		fmt.Fprintf(&b, "---- END FUNCTION #%d ----\n", i+1)
	}
	return b.String()
}
