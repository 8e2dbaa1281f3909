package modelserver

import (
	"encoding/json"
	"strings"
)

// once writes the call with other arguments.
func once(change func(string) string) func(*Reply) {
	return func(a *Reply) {
		c := *a.Call
		c.Arguments = change(c.Arguments)
		a.Calls(c)
	}
}

// arguments are what models and servers do to the arguments of calls.
func arguments() []Behaviour {
	return []Behaviour{
		{
			Name: "arguments in a fence", Maker: "small models", Source: FromMemory,
			Answer: once(func(s string) string { return "```json\n" + s + "\n```" }),
		},
		{
			Name: "arguments are encoded twice", Maker: "small models",
			Source: "https://github.com/vllm-project/vllm/pull/54964",
			Answer: once(func(s string) string { return asJSON(s) }),
		},
		{
			Name: "newlines in arguments are not escaped", Maker: "small models", Source: FromMemory,
			Answer: once(func(s string) string { return strings.ReplaceAll(s, `\n`, "\n") }),
		},
		{
			Name: "the last brace is lost", Maker: "vLLM's hermes parser",
			Source: "https://github.com/vllm-project/vllm/issues/22885",
			Answer: once(func(s string) string { return strings.TrimSuffix(s, "}") }),
		},
		{
			Name: "an argument that there is not", Maker: "models", Source: FromMemory,
			Answer: once(func(s string) string { return strings.TrimSuffix(s, "}") + `,"encoding":"utf-8","overwrite":true}` }),
		},
		{
			Name: "arguments come twice", Maker: "proxy", Source: FromMemory,
			Answer: once(func(s string) string { return s + s }),
		},
		{
			Name: "the call within its arguments", Maker: "small models", Source: FromMemory,
			Answer: func(a *Reply) {
				once(func(s string) string {
					return asJSON(map[string]any{"name": a.Call.Name, "arguments": json.RawMessage(s)})
				})(a)
			},
		},
		{
			ChatOnly: true, Name: "parallel calls in one", Maker: "Gemini's compatible endpoint", Two: true,
			Source: "https://github.com/NousResearch/hermes-agent/issues/62940",
			Answer: func(a *Reply) {
				if !a.Writes() {
					a.Good()
					return
				}
				other := strings.ReplaceAll(a.Call.Arguments, File, "other.txt")
				first := a.Call.native()
				first["index"] = 0
				a.CallPart(first)
				a.CallPart(map[string]any{"index": 0, "function": map[string]any{"name": "", "arguments": other}})
				a.End("tool_calls")
			},
		},
		{
			ChatOnly: true, Name: "parallel calls have one index", Maker: "gcli2api", Two: true,
			Source: "https://github.com/su-kaka/gcli2api/pull/406",
			Answer: func(a *Reply) {
				if !a.Writes() {
					a.Good()
					return
				}
				for _, name := range []string{"other.txt", File} {
					c := Call{"call_same", a.Call.Name, strings.ReplaceAll(a.Call.Arguments, File, name)}.native()
					c["index"] = 0
					a.CallPart(c)
				}
				a.End("tool_calls")
			},
		},
	}
}

// names are what models make of the names of tools.
func names() []Behaviour {
	named := func(change func(string) string) func(*Reply) {
		return func(a *Reply) {
			c := *a.Call
			c.Name = change(c.Name)
			a.Calls(c)
		}
	}
	return []Behaviour{
		{
			Name: "a namespace before the name", Maker: "gpt-oss, Kimi K2", Source: FromMemory,
			Answer: named(func(s string) string { return "functions." + s }),
		},
		{
			Name: "a namespace and a number", Maker: "Kimi K2", Source: FromMemory,
			Answer: named(func(s string) string { return "functions." + s + ":0" }),
		},
		{
			Name: "a channel after the name", Maker: "gpt-oss", Source: FromMemory,
			Answer: named(func(s string) string { return s + "<|channel|>commentary" }),
		},
		{
			Name: "the name in capitals and with spaces", Maker: "small models", Source: FromMemory,
			Answer: named(func(s string) string { return " " + strings.ToUpper(s) + " " }),
		},
		{
			Name: "default_api before the name", Maker: "Gemini", Source: FromMemory,
			Answer: named(func(s string) string { return "default_api:" + s }),
		},
		{
			Name: "a tool without a name, and a server that minds", Maker: "OpenAI", Source: FromMemory,
			Refuse: each(func(c Call) bool { return ordinary.MatchString(c.Name) }, refuse(400,
				"Invalid 'messages[2].tool_calls[0].function.name': empty string. Expected a string with minimum length 1")),
			Answer: func(a *Reply) {
				if a.R.Number == 1 {
					a.Calls(Call{"call_x", "", "{}"}, Call{"call_y", "functions.sing a song", "{}"})
					return
				}
				a.Good()
			},
		},
	}
}

// said writes the call as a text.
func said(text func(Call) string) func(*Reply) {
	return func(a *Reply) {
		if a.Call == nil {
			a.Good()
			return
		}
		a.Say(text(*a.Call))
	}
}

func (c Call) json(arguments string) string {
	return asJSON(map[string]any{"name": c.Name, arguments: c.object()})
}

// written are calls that models write into the text.
func written() []Behaviour {
	return []Behaviour{
		{
			Name: "<tool_call> with JSON", Maker: "Hermes", Source: "https://github.com/NousResearch/hermes-agent/pull/742",
			Answer: said(func(c Call) string { return "I write it.\n<tool_call>\n" + c.json("arguments") + "\n</tool_call>" }),
		},
		{
			Name: "<tool_call> without an end", Maker: "Qwen", Source: FromMemory,
			Answer: said(func(c Call) string { return "<tool_call>\n" + c.json("arguments") }),
		},
		{
			Name: "<tool_call> with <function=", Maker: "Qwen3-Coder",
			Source: "https://github.com/NousResearch/hermes-agent/pull/7628",
			Answer: said(func(c Call) string { return "<tool_call>\n" + c.tagged() + "\n</tool_call>" }),
		},
		{
			Name: "<function= without an end", Maker: "Qwen3-Coder",
			Source: "https://github.com/NousResearch/hermes-agent/pull/83023",
			Answer: said(func(c Call) string { return strings.TrimSuffix(c.tagged(), "\n</function>") }),
		},
		{
			Name: "<function= with JSON", Maker: "Llama 3", Source: "https://github.com/NousResearch/hermes-agent/pull/35129",
			Answer: said(func(c Call) string { return "<function=" + c.Name + ">" + c.Arguments + "</function>" }),
		},
		{
			Name: "a call is the whole text", Maker: "Ollama with qwen2.5-coder",
			Source: "https://github.com/NousResearch/hermes-agent/issues/5867",
			Answer: said(func(c Call) string { return c.json("arguments") }),
		},
		{
			Name: "a call in a fence is the whole text", Maker: "Ollama with qwen2.5-coder", Source: FromMemory,
			Answer: said(func(c Call) string { return "```json\n" + c.json("parameters") + "\n```" }),
		},
		{
			Name: "<invoke", Maker: "MiniMax M2", Source: "https://github.com/NousResearch/hermes-agent/issues/29115",
			Answer: said(func(c Call) string {
				var b strings.Builder
				b.WriteString("<minimax:tool_call>\n<invoke name=\"" + c.Name + "\">\n")
				for name, value := range c.object() {
					b.WriteString("<parameter name=\"" + name + "\">" + value.(string) + "</parameter>\n")
				}
				return b.String() + "</invoke>\n</minimax:tool_call>"
			}),
		},
		{
			Name: "[TOOL_CALLS]", Maker: "vLLM with Mistral's template", Source: FromMemory,
			Answer: said(func(c Call) string { return "[TOOL_CALLS][" + c.json("arguments") + "]" }),
		},
		{
			Name: "two calls in a text", Maker: "Hermes", Two: true, Source: FromMemory,
			Answer: said(func(c Call) string {
				other := c
				other.Arguments = strings.ReplaceAll(c.Arguments, File, "other.txt")
				if c.Name == "finish" {
					return "<tool_call>" + c.json("arguments") + "</tool_call>"
				}
				return "<tool_call>" + other.json("arguments") + "</tool_call>\n<tool_call>" + c.json("arguments") + "</tool_call>"
			}),
		},
	}
}

// thoughts are thoughts in the text of an answer.
func thoughts() []Behaviour {
	thinks := func(text func(string) string) func(*Reply) {
		return func(a *Reply) {
			if a.Call != nil {
				a.Good()
				return
			}
			a.Say(text(a.Text))
		}
	}
	return []Behaviour{
		{
			Name: "<think> before the answer", Maker: "DeepSeek R1, Qwen3 without a reasoning parser",
			Source: "https://github.com/ggml-org/llama.cpp/issues/11861",
			Text:   true, Answer: thinks(func(s string) string { return "<think>\nHm. </answer>\n</think>\n\n" + s }),
		},
		{
			Name: "</think> without its beginning", Maker: "QwQ, DeepSeek R1 on vLLM",
			Source: "https://github.com/vllm-project/vllm/issues/13125", Text: true,
			Answer: thinks(func(s string) string { return "Hm, let me see.\n</think>\n\n" + s }),
		},
		{
			Name: "<think> before a call in the text", Maker: "Nemotron",
			Source: "https://github.com/OpenHands/software-agent-sdk (fn_call_converter.py, _preprocess_model_output)",
			Answer: said(func(c Call) string { return "<think>I write.</think>\n" + c.tagged() }),
		},
		{
			Name: "thoughts only, then nothing", Maker: "Qwen3", Source: FromMemory,
			Answer: func(a *Reply) {
				if a.R.Number == 1 {
					a.Say("<think>\nI should write the file.\n</think>")
					return
				}
				a.Good()
			},
		},
		{
			ChatOnly: true, Name: "reasoning in the place of reasoning_content", Maker: "OpenRouter, vLLM", Source: FromMemory,
			Answer: func(a *Reply) {
				a.Delta(map[string]any{"reasoning": "Hm."}, nil)
				a.Good()
			},
		},
	}
}
