package modelserver

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// inResponses are behaviours of servers of Responses.
func inResponses() []Behaviour {
	list := slices.Concat(responsesThoughts(), responsesEvents(), responsesStreams())
	for i := range list {
		list[i].API = Responses
	}
	return list
}

func responsesThoughts() []Behaviour {
	return []Behaviour{
		{
			Name: "encrypted thoughts are wanted back", Maker: "OpenAI", Effort: "high", Answer: thinking,
			Source: "https://github.com/continuedev/continue/issues/11994",
			Refuse: func(r *Request) *Refusal {
				if thoughtless(r, func(m Message, s string) bool { return m.Thought == s }) {
					return refuse(http.StatusBadRequest, "Item 'fc_1' of type 'function_call' was provided without its "+
						"required 'reasoning' item: 'rs_1'.")
				}
				return nil
			},
		},
		{
			Name: "encrypted thoughts of another account", Maker: "OpenAI", Effort: "high", Answer: thinking,
			Source: "https://github.com/openai/codex/issues/8145",
			Refuse: func(r *Request) *Refusal {
				if r.Any(func(m Message) bool { return m.Thought != "" }) {
					return &Refusal{http.StatusBadRequest, `{"error":{"message":"The encrypted content gAAA...DQ== could not be ` +
						`verified.","type":"invalid_request_error","param":null,"code":"invalid_encrypted_content"}}`}
				}
				return nil
			},
		},
		{
			Name: "no encrypted thoughts", Maker: "OpenAI, models that do not reason", Effort: "low", Source: FromMemory,
			Refuse: without("include", refuse(http.StatusBadRequest, "Encrypted content is not supported with this model.")),
		},
		{
			Name: "no summaries of thoughts", Maker: "OpenAI, an unverified organization", Effort: "low",
			Source: "https://github.com/OpenHands/software-agent-sdk/issues/987",
			Refuse: func(r *Request) *Refusal {
				if r.member("reasoning", "summary") != nil {
					return &Refusal{http.StatusBadRequest, `{"error":{"message":"Your organization must be verified to generate ` +
						`reasoning summaries.","type":"invalid_request_error","param":"reasoning.summary","code":"unsupported_value"}}`}
				}
				return nil
			},
		},
		{
			Name: "no effort", Maker: "OpenAI, models that do not reason", Effort: "low", Source: FromMemory,
			Refuse: without("reasoning", refuse(http.StatusBadRequest,
				"Unsupported parameter: 'reasoning.effort' is not supported with this model.")),
		},
		{
			Name: "nothing is stored", Maker: "OpenAI, zero data retention", Source: FromMemory,
			Refuse: func(r *Request) *Refusal {
				if r.Has("previous_response_id") || r.Body["store"] != false {
					return refuse(http.StatusBadRequest, "Previous response cannot be used for this organization due to Zero "+
						"Data Retention.")
				}
				return nil
			},
		},
	}
}

// responsesEvents are what servers make of the events of Responses.
func responsesEvents() []Behaviour {
	return []Behaviour{
		{
			Name: "no items at the end", Maker: "OpenAI over Codex, new-api",
			Source: "https://github.com/QuantumNous/new-api/issues/4362",
			Answer: func(a *Reply) {
				a.rewritten(func(s string) string {
					at := strings.LastIndex(s, `"output":[`)
					end := strings.LastIndex(s, `],"status":"completed"`)
					if at < 0 || end < at {
						panic("the stream has another form")
					}
					return s[:at] + `"output":[` + s[end:]
				})
			},
		},
		{
			Name: "no deltas", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) {
				a.rewritten(func(s string) string {
					return dropEvent(dropEvent(s, "response.function_call_arguments.delta"), "response.output_text.delta")
				})
			},
		},
		{
			Name: "only the event at the end", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) {
				a.rewritten(func(s string) string { return s[strings.LastIndex(s, "event: "):] })
			},
		},
		{
			Name: "no event lines", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) { a.rewritten(func(s string) string { return dropLines(s, "event:") }) },
		},
		{
			Name: "ends before response.completed", Maker: "proxy",
			Source: "https://github.com/openclaw/openclaw/pull/108989",
			Answer: first(2, func(a *Reply) {
				a.rewritten(func(s string) string { return dropEvent(s, "response.completed") })
			}),
		},
	}
}

// responsesStreams are the ways in which servers write Responses.
func responsesStreams() []Behaviour {
	return []Behaviour{
		{
			Name: "the stream stays open after response.completed", Maker: "OpenAI",
			Source: "https://github.com/openai/codex/pull/9170",
			Answer: staysOpen,
		},
		{
			Name: "response.failed", Maker: "OpenAI", Source: "https://github.com/Wei-Shaw/sub2api/issues/3038",
			Answer: first(2, func(a *Reply) {
				a.begins()
				a.Raw("event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"id\":\"resp_1\"," +
					"\"object\":\"response\",\"status\":\"failed\",\"output\":[],\"error\":{\"code\":\"upstream_error\"," +
					"\"message\":\"Upstream request failed\"}}}\n\n")
			}),
		},
		{
			Name: "an error event", Maker: "OpenAI", Source: "OpenAI's documentation, Responses, Streaming events",
			Answer: first(2, func(a *Reply) {
				a.begins()
				a.Raw("event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"The server had an error\"," +
					"\"param\":null,\"sequence_number\":3}\n\n")
			}),
		},
		{
			Name: "arguments are an object", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) {
				item := map[string]any{
					"type": "function_call", "call_id": a.Call.ID, "name": a.Call.Name, "arguments": a.Call.object(),
				}
				a.Event(map[string]any{"type": "response.completed", "response": map[string]any{
					"id": 7, "object": "response", "status": "completed", "output": []any{item},
				}})
			},
		},
		{
			Name: "answers whole though a stream was asked for", Maker: "proxy", Source: FromMemory,
			Answer: func(a *Reply) { a.Whole(a.message(), "tool_calls") },
		},
		{
			Name: "parallel calls", Maker: "OpenAI", Source: "OpenAI's documentation, Function calling", Two: true,
			Answer: parallel,
		},
	}
}

// otherAPIs are servers that do not speak the API that the settings lead to.
func otherAPIs() []Behaviour {
	codex := `{"error":{"message":"This model is only supported in v1/responses and not in v1/chat/completions.",` +
		`"type":"invalid_request_error","param":"model","code":null}}`
	legacy := `{"error":{"message":"Unsupported legacy protocol: /v1/chat/completions is not supported. ` +
		`Please use /v1/responses.","type":"invalid_request_error"}}`
	list := []Behaviour{
		{
			Name: "a model of Responses", Maker: "OpenAI", API: Responses, Asked: Completions,
			Source:    "https://github.com/alvinunreal/tmuxai/issues/82",
			Elsewhere: &Refusal{http.StatusNotFound, codex},
		},
		{
			Name: "only Responses", Maker: "sub2api", API: Responses, Asked: Completions,
			Source: "https://github.com/Wei-Shaw/sub2api/issues/885", Elsewhere: &Refusal{http.StatusBadRequest, legacy},
		},
		{
			Name: "a model that chat completions do not have", Maker: "Azure", API: Responses,
			Asked: Completions, Source: "https://github.com/langgenius/dify-plugin-sdks/issues/264",
			Elsewhere: &Refusal{http.StatusBadRequest, `{"error":{"code":"OperationNotSupported","message":"The ` +
				`chatCompletion operation does not work with the specified model, gpt-5.1-codex. Please choose a ` +
				`different model."}}`},
		},
		{
			Name: "no Responses", Maker: "llama.cpp, old", Asked: Responses,
			Source: "https://github.com/BerriAI/litellm/issues/13130",
			Elsewhere: &Refusal{http.StatusNotFound,
				`{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}`},
		},
		{
			Name: "no Responses, and a page", Maker: "Ollama, old", Asked: Responses,
			Source: "https://github.com/langchain-ai/langchain/issues/32783",
		},
		{Name: "no Messages", Maker: "a proxy in OpenAI's form", Asked: Messages, Source: FromMemory},
	}
	for i := range list {
		list[i].Answer = (*Reply).Good
	}
	return list
}

// Title is a behaviour's name with its API.
func (b Behaviour) Title() string {
	if b.API == "" {
		return b.Name
	}
	return fmt.Sprintf("%s (%s)", b.Name, b.API)
}
