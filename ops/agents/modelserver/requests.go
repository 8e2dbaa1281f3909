package modelserver

import "net/http"

// without refuses requests that have a member.
func without(member string, refusal *Refusal) func(*Request) *Refusal {
	return func(r *Request) *Refusal {
		if r.Has(member) {
			return refusal
		}
		return nil
	}
}

// streamless refuses streams.
func streamless(refusal *Refusal) func(*Request) *Refusal {
	return func(r *Request) *Refusal {
		if r.Streams() {
			return refusal
		}
		return nil
	}
}

// parameters are the members of a request that servers refuse.
func parameters() []Behaviour {
	forbidden := `{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","stream_options",` +
		`"include_usage"],"msg":"Extra inputs are not permitted","input":true}]},"type":"invalid_request_error"}`
	return []Behaviour{
		{
			Name: "refuses stream", Maker: "OpenAI o1", Source: "https://github.com/github/gh-models/issues/31",
			Refuse: streamless(refuse(http.StatusBadRequest,
				"Unsupported value: 'stream' does not support true with this model. Supported values are: false.")),
		},
		{
			Name: "refuses a stream without a verified organization", Maker: "OpenAI o3",
			Source: "https://github.com/chatboxai/chatbox/issues/2263",
			Refuse: streamless(refuse(http.StatusBadRequest, "Your organization must be verified to stream this model.")),
		},
		{
			ChatOnly: true, Name: "refuses tools in a stream", Maker: "llama.cpp",
			Source: "https://github.com/simonw/llm-llama-server/issues/3",
			Refuse: streamless(refuse(http.StatusInternalServerError, "Cannot use tools with stream")),
		},
		{
			ChatOnly: true, Name: "forbids stream_options", Maker: "Mistral",
			Source: "https://github.com/openai/openai-agents-python/issues/442",
			Refuse: without("stream_options", &Refusal{http.StatusUnprocessableEntity, forbidden}),
		},
		{
			ChatOnly: true, Name: "does not know stream_options, and says so in a list", Maker: "Gemini's compatible endpoint",
			Source: "https://github.com/SuzumiyaAkizuki/ComfyUI-NewBie-LLM-Formatter/issues/3",
			Refuse: without("stream_options", &Refusal{http.StatusBadRequest, `[{"error":{"code":400,"message":"Invalid JSON ` +
				`payload received. Unknown name \"stream_options\": Cannot find field.","status":"INVALID_ARGUMENT"}}]`}),
		},
		{
			ChatOnly: true, Name: "forbids stream_options with data sources", Maker: "Azure",
			Source: "https://github.com/openai/openai-python/issues/2296",
			Refuse: without("stream_options", refuse(http.StatusBadRequest,
				"Validation error at #/stream_options: Extra inputs are not permitted")),
		},
	}
}

// outputs are the limits of output that servers refuse.
func outputs() []Behaviour {
	return []Behaviour{
		{
			Name: "refuses max_tokens", Maker: "OpenAI", Source: "https://github.com/caozhiyuan/copilot-api/issues/164",
			MaxTokens: 512, Refuse: without("max_tokens", refuse(http.StatusBadRequest, "Unsupported parameter: 'max_tokens' "+
				"is not supported with this model. Use 'max_completion_tokens' instead.")),
		},
		{
			Name: "wants max_tokens", Maker: "proxy to Anthropic", Source: FromMemory,
			Refuse: func(r *Request) *Refusal {
				if !r.Has("max_tokens") {
					return refuse(http.StatusBadRequest, "max_tokens: Field required")
				}
				return nil
			},
		},
		{
			Name: "refuses max_tokens and max_completion_tokens", Maker: "proxy", Source: FromMemory, MaxTokens: 512,
			Refuse: func(r *Request) *Refusal {
				for _, name := range []string{"max_tokens", "max_completion_tokens"} {
					if r.Has(name) {
						return flat(http.StatusBadRequest, "Extra inputs are not permitted: %s", name)
					}
				}
				return nil
			},
		},
		{
			Name: "max_tokens is above the model's limit", Maker: "OpenAI",
			Source: "https://github.com/ChatGPTNextWeb/NextChat/issues/3195", MaxTokens: 64000,
			Refuse: without("max_tokens", refuse(http.StatusBadRequest, "max_tokens is too large: 64000. "+
				"This model supports at most 16384 completion tokens, whereas you provided 64000.")),
		},
		{
			Name: "max_tokens leaves no room in the window", Maker: "vLLM",
			Source: "https://github.com/claude-code-best/claude-code/issues/272", MaxTokens: 8000,
			Refuse: without("max_tokens", flat(http.StatusBadRequest, "'max_tokens' or 'max_completion_tokens' is too "+
				"large: 8000. This model's maximum context length is 8192 tokens and your request has 3000 input tokens")),
		},
		{
			Name: "max_tokens is above a maximum", Maker: "Doubao", MaxTokens: 32000,
			Source: "https://github.com/Gitlawb/openclaude/issues/331",
			Refuse: without("max_tokens", refuse(http.StatusBadRequest, "The parameter `max_tokens` specified in the request "+
				"are not valid: integer above maximum value, expected a value <= 12288, but got 32000 instead.")),
		},
		{
			Name: "max_tokens is above the gateway's limit", Maker: "Bedrock Access Gateway", MaxTokens: 4096,
			Source: "https://github.com/aws-samples/bedrock-access-gateway/issues/41",
			Refuse: without("max_tokens", refuse(http.StatusBadRequest, "The maximum tokens you requested exceeds the model "+
				"limit of 2048. Try again with a maximum tokens value that is lower than 2048.")),
		},
		{
			Name: "refuses a temperature", Maker: "OpenAI o-series on Azure", Source: FromMemory, Temperature: 0.2,
			Refuse: without("temperature", refuse(http.StatusBadRequest, "Unsupported value: 'temperature' does not support "+
				"0.2 with this model. Only the default (1) value is supported.")),
		},
		{
			Name: "refuses parallel_tool_calls and tool_choice", Maker: "DeepSeek reasoner",
			Source: "https://github.com/shareAI-lab/Kode-CLI/pull/182",
			Refuse: func(r *Request) *Refusal {
				if r.Has("parallel_tool_calls") || r.Has("tool_choice") {
					return refuse(http.StatusBadRequest, "deepseek-reasoner does not support this tool_choice")
				}
				return nil
			},
		},
	}
}

// orders are the orders of messages that servers refuse.
func orders() []Behaviour {
	return []Behaviour{
		{
			ChatOnly: true, Name: "roles must alternate", Maker: "vLLM with Mistral's template", Past: TwoMessages,
			Source: "https://github.com/vllm-project/vllm/issues/6862", Refuse: alternating,
		},
		{
			ChatOnly: true, Name: "a user's message after a result", Maker: "Mistral", Past: Called,
			Source: "https://github.com/avante-corp/avante.nvim/issues/2562", Refuse: bridged,
		},
		{
			ChatOnly: true, Name: "a user's message after a result, on vLLM", Maker: "vLLM with Mistral Small 4", Past: Called,
			Source: "https://github.com/mistralai/mistral-vibe/issues/578", Refuse: bridged,
		},
		{
			ChatOnly: true, Name: "the last message is the assistant's", Maker: "Mistral", Past: Answered,
			Source: "https://github.com/crewAIInc/crewAI/issues/2194",
			Refuse: lastIsUser("Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"),
		},
		{
			Name: "no prefill", Maker: "Anthropic", Past: Answered,
			Source: "https://github.com/smallmain/vscode-unify-chat-provider/issues/249",
			Refuse: lastIsUser("This model does not support assistant message prefill. " +
				"The conversation must end with a user message."),
		},
		{
			ChatOnly: true, Name: "no system role", Maker: "vLLM with Gemma",
			Source: "https://github.com/vllm-project/vllm/pull/2964",
			Refuse: systemless(flat(http.StatusBadRequest, "System role not supported")),
		},
		{
			ChatOnly: true, Name: "no system role for this model", Maker: "OpenAI o1-mini",
			Source: "https://github.com/tailcallhq/forgecode/issues/1177",
			Refuse: systemless(refuse(http.StatusBadRequest,
				"Unsupported value: 'messages[0].role' does not support 'system' with this model.")),
		},
		{
			ChatOnly: true, Name: "only user and assistant", Maker: "llama.cpp with Mistral 7B's template",
			Source: "https://github.com/withcatai/node-llama-cpp/issues/263", Past: Called,
			Refuse: func(r *Request) *Refusal {
				other := func(m Message) bool { return m.Role != "user" && m.Role != "assistant" || len(m.Calls) > 0 }
				if r.Any(other) {
					return refuse(http.StatusInternalServerError, "Only user and assistant roles are supported!")
				}
				return alternating(r)
			},
		},
		{
			ChatOnly: true, Name: "every message needs a content", Maker: "proxy to Anthropic", Source: FromMemory, Past: Called,
			Refuse: func(r *Request) *Refusal {
				if r.Any(func(m Message) bool { return m.Empty }) {
					return refuse(http.StatusBadRequest, "messages.2: all messages must have non-empty content")
				}
				return nil
			},
		},
		{
			ChatOnly: true, Name: "an empty answer in the history", Maker: "Mistral", Source: FromMemory, Past: EmptyAnswers,
			Refuse: func(r *Request) *Refusal {
				if r.Any(func(m Message) bool { return m.Role == "assistant" && m.Empty && len(m.Calls) == 0 }) {
					return flat(http.StatusBadRequest, "Assistant message must have either content or tool_calls, but not none.")
				}
				return nil
			},
		},
	}
}

// alternating wants user and assistant in turn, as templates check it.
func alternating(r *Request) *Refusal {
	user := true
	for _, m := range r.Messages {
		switch {
		case m.Role == "system", m.Role == "tool", m.Role == "assistant" && len(m.Calls) > 0:
		case (m.Role == "user") != user:
			return flat(http.StatusBadRequest, "After the optional system message, conversation roles must alternate "+
				"user/assistant/user/assistant/...")
		default:
			user = !user
		}
	}
	return nil
}

// bridged wants an answer between a result and a user's message.
func bridged(r *Request) *Refusal {
	for i, m := range r.Messages[1:] {
		if m.Role == "user" && r.Messages[i].Role == "tool" {
			return &Refusal{http.StatusBadRequest, `{"object":"error","message":"Unexpected role 'user' after role 'tool'",` +
				`"type":"invalid_request_message_order","param":null,"code":"3230"}`}
		}
	}
	return nil
}

func lastIsUser(message string) func(*Request) *Refusal {
	return func(r *Request) *Refusal {
		if r.Messages[len(r.Messages)-1].Role == "assistant" {
			return flat(http.StatusBadRequest, "%s", message)
		}
		return nil
	}
}

func systemless(refusal *Refusal) func(*Request) *Refusal {
	return func(r *Request) *Refusal {
		if r.Any(func(m Message) bool { return m.Role == "system" }) {
			return refusal
		}
		return nil
	}
}
