package modelserver

import (
	"encoding/base64"
	"net/http"
	"regexp"
	"strings"
)

// blind refuses every picture.
func blind(refusal *Refusal) func(*Request) *Refusal {
	return func(r *Request) *Refusal {
		if r.Any(func(m Message) bool { return len(m.Pictures) > 0 }) {
			return refusal
		}
		return nil
	}
}

// pictures are the pictures that servers refuse.
func pictures() []Behaviour {
	return []Behaviour{
		{
			Name: "a text-only model", Maker: "OpenRouter", Past: Picture,
			Source: "https://github.com/nexu-io/nexu/issues/875",
			Refuse: blind(refuse(http.StatusNotFound, "No endpoints found that support image input")),
		},
		{
			Name: "a text-only model in the cloud", Maker: "Ollama", Past: Picture,
			Source: "https://github.com/ollama/ollama/issues/17301",
			Refuse: blind(refuse(http.StatusBadRequest, "this model does not support image input (ref: b8bd630e)")),
		},
		{
			Name: "a text-only model on one's own server", Maker: "vLLM", Past: Picture, Source: FromMemory,
			Refuse: blind(flat(http.StatusBadRequest, "scripted is not a multimodal model")),
		},
		{
			Name: "a content that is no text", Maker: "DeepSeek", Past: Picture, Source: FromMemory,
			Refuse: blind(refuse(http.StatusBadRequest, "Failed to deserialize the JSON body into the target type: "+
				"messages[1]: unknown variant `image_url`, expected `text` at line 1 column 5000")),
		},
		{
			Name: "a part of a content that is not known", Maker: "llama.cpp", Past: Picture,
			Source: "https://github.com/ggml-org/llama.cpp/issues/12947",
			Refuse: blind(refuse(http.StatusInternalServerError,
				`Failed to parse messages: Unsupported content part type: "image_url"; messages = [...]`)),
		},
		{
			Name: "a server without pictures", Maker: "llama.cpp", Past: Picture,
			Source: "https://github.com/ggml-org/llama.cpp/issues/13566",
			Refuse: blind(refuse(http.StatusInternalServerError, "image input is not supported by this server")),
		},
		{
			Name: "no projector for pictures", Maker: "llama.cpp", Past: Picture, Source: FromMemory,
			Refuse: blind(refuse(http.StatusInternalServerError, "image input is not supported - hint: if this is "+
				"unexpected, you may need to provide the mmproj")),
		},
		{
			Name: "a text-only model and a tool's picture", Maker: "OpenRouter", Past: PictureTool,
			Source: "https://github.com/nexu-io/nexu/issues/875",
			Refuse: blind(refuse(http.StatusNotFound, "No endpoints found that support image input")),
		},
		{
			Name: "a request that is too large with its picture", Maker: "nginx", Past: Picture, Source: FromMemory,
			Refuse: blind(&Refusal{http.StatusRequestEntityTooLarge,
				"<html><head><title>413 Request Entity Too Large</title></head></html>"}),
		},
		{
			Name: "a picture that is none", Maker: "OpenAI", Past: Pointer,
			Source: "https://github.com/CosmosShadow/gptpdf/issues/6",
			Refuse: sound("You uploaded an unsupported image. Please make sure your image is below 20 MB in size and is of " +
				"one the following formats: ['png', 'jpeg', 'gif', 'webp']."),
		},
		{
			Name: "a picture that can't be read", Maker: "Anthropic", Past: Pointer,
			Source: "https://github.com/anthropics/claude-code/issues/9037", Refuse: sound("Could not process image"),
		},
		{
			Name: "a picture of another type", Maker: "Anthropic", Past: WrongType,
			Source: "https://github.com/vybestack/llxprt-code/issues/2130",
			Refuse: sound("messages.1.content.1: The image was specified using the image/png media type, " +
				"but the image appears to be a image/jpeg image"),
		},
	}
}

// sound refuses pictures whose bytes are not of their type.
func sound(message string) func(*Request) *Refusal {
	return func(r *Request) *Refusal {
		bad := func(m Message) bool {
			for _, url := range m.Pictures {
				head, data, _ := strings.Cut(strings.TrimPrefix(url, "data:"), ";base64,")
				if b, err := base64.StdEncoding.DecodeString(data); err != nil || http.DetectContentType(b) != head {
					return true
				}
			}
			return false
		}
		if r.Any(bad) {
			return refuse(http.StatusBadRequest, "%s", message)
		}
		return nil
	}
}

var (
	nine     = regexp.MustCompile(`^[a-zA-Z0-9]{9}$`)      //nolint:gochecknoglobals // compiled once, read-only
	ordinary = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`) //nolint:gochecknoglobals // compiled once, read-only
)

// pasts are the calls in a history that servers refuse.
func pasts() []Behaviour {
	return []Behaviour{
		{
			Name: "names of calls have a pattern", Maker: "OpenAI", Past: OddNames,
			Source: "https://github.com/mcp-use/mcp-use/issues/90",
			Refuse: each(func(c Call) bool { return ordinary.MatchString(c.Name) }, refuse(http.StatusBadRequest,
				"Invalid 'messages[2].tool_calls[0].function.name': string does not match pattern. "+
					"Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.")),
		},
		{
			Name: "ids have nine letters", Maker: "Mistral", Past: OddIDs,
			Source: "https://github.com/nearai/ironclaw/issues/1241",
			Refuse: each(func(c Call) bool { return nine.MatchString(c.ID) }, &Refusal{http.StatusBadRequest,
				`{"object":"error","message":"Tool call id was turn1_0 but must be a-z, A-Z, 0-9, with a length of 9.",` +
					`"type":"invalid_function_call","param":null,"code":"3280","raw_status_code":400}`}),
		},
		{
			Name: "ids have nine letters, with a 500", Maker: "omlx with Mistral's tokenizer", Past: OddIDs,
			Source: "https://github.com/jundot/omlx/pull/1997",
			Refuse: each(func(c Call) bool { return nine.MatchString(c.ID) }, flat(http.StatusInternalServerError,
				"Tool call id was call_49c89af0 but must be a-z, A-Z, 0-9, with a length of 9")),
		},
		{
			Name: "ids have a pattern", Maker: "Anthropic", Past: OddIDs,
			Source: "https://github.com/BlockRunAI/ClawRouter/issues/17",
			Refuse: each(func(c Call) bool { return ordinary.MatchString(c.ID) }, refuse(http.StatusBadRequest,
				"messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")),
		},
		{
			Name: "ids have a length", Maker: "OpenAI", Past: OddIDs, Source: "https://github.com/openclaw/openclaw/pull/875",
			Refuse: each(func(c Call) bool { return len(c.ID) <= 40 }, refuse(http.StatusBadRequest,
				"Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40, "+
					"but got a string with length 55 instead.")),
		},
	}
}

// refusals are what servers refuse of thoughts, of whole histories and of tools.
func refusals() []Behaviour {
	return []Behaviour{
		{
			Name: "thoughts are not taken back", Maker: "Groq", Past: Thought,
			Source: "https://github.com/janhq/jan/issues/8136",
			Refuse: func(r *Request) *Refusal {
				if r.Any(func(m Message) bool { return m.Reasoning }) {
					return refuse(http.StatusBadRequest, "'messages.2' : for 'role:assistant' the following must be satisfied"+
						"[('messages.2' : property 'reasoning_content' is unsupported)]")
				}
				return nil
			},
		},
		{
			Name: "thoughts are wanted back", Maker: "DeepSeek", Past: Thought,
			Source: "https://github.com/vectorize-io/hindsight/pull/1253",
			Refuse: func(r *Request) *Refusal {
				for _, m := range r.Messages {
					if len(m.Calls) > 0 && strings.HasPrefix(m.Calls[0].ID, "past") && !m.Reasoning {
						return refuse(http.StatusBadRequest,
							"The `reasoning_content` in the thinking mode must be passed back to the API.")
					}
				}
				return nil
			},
		},
		{
			Name: "a member of a schema is not known", Maker: "Gemini's compatible endpoint",
			Source: "https://github.com/openswarm-ai/openswarm/issues/24",
			Refuse: func(r *Request) *Refusal {
				tools := asJSON(r.Body["tools"])
				for _, name := range []string{"$schema", "additionalProperties", "const", "examples", "default"} {
					if strings.Contains(tools, `"`+name+`"`) {
						return refuse(http.StatusBadRequest, "Invalid JSON payload received. Unknown name %q at "+
							"'tools[0].function_declarations[0].parameters': Cannot find field.", name)
					}
				}
				return nil
			},
		},
		{
			Name: "a history that the server can't convert", Maker: "proxy", Past: Called, Source: FromMemory,
			Refuse: func(r *Request) *Refusal {
				if r.Any(func(m Message) bool { return len(m.Calls) > 0 && strings.HasPrefix(m.Calls[0].ID, "past") }) {
					return refuse(http.StatusBadRequest, "Value error, something in the conversation is not valid")
				}
				return nil
			},
		},
	}
}

// each refuses a request with a call that is not good.
func each(good func(Call) bool, refusal *Refusal) func(*Request) *Refusal {
	return func(r *Request) *Refusal {
		for _, m := range r.Messages {
			for _, c := range m.Calls {
				if !good(c) {
					return refusal
				}
			}
		}
		return nil
	}
}

// withoutCalls are servers and models without calls of tools.
func withoutCalls() []Behaviour {
	toolless := func(refusal *Refusal) func(*Request) *Refusal { return without("tools", refusal) }
	return []Behaviour{
		{
			Name: "no parser of calls", Maker: "vLLM", Source: "https://github.com/langchain4j/langchain4j/issues/3475",
			Refuse: toolless(flat(http.StatusBadRequest,
				`"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`)),
		},
		{
			Name: "the model has no tools", Maker: "Ollama", Source: "https://github.com/ollama/ollama/issues/5793",
			Refuse: toolless(&Refusal{http.StatusBadRequest,
				`{"error":{"message":"llama3 does not support tools","type":"api_error","param":null,"code":null}}`}),
		},
		{
			Name: "the model has no tools, and a past", Maker: "Ollama", Past: Called,
			Source: "https://github.com/ollama/ollama/issues/6027",
			Refuse: toolless(refuse(http.StatusBadRequest, "stablelm2:latest does not support tools")),
		},
		{
			Name: "no template for tools", Maker: "llama.cpp", Source: "https://github.com/defilantech/LLMKube/issues/126",
			Refuse: toolless(&Refusal{http.StatusInternalServerError,
				`{"error":{"code":500,"message":"tools param requires --jinja flag","type":"server_error"}}`}),
		},
		{
			Name: "tools are not a parameter", Maker: "llama.cpp, old",
			Source: "https://github.com/ggml-org/llama.cpp/issues/10920",
			Refuse: toolless(&Refusal{http.StatusInternalServerError,
				`{"code":500,"message":"Unsupported param: tools","type":"server_error"}`}),
		},
		{
			Name: "no provider has tools", Maker: "OpenRouter", Source: "https://github.com/evalstate/fast-agent/issues/122",
			Refuse: toolless(refuse(http.StatusNotFound, "No endpoints found that support tool use.")),
		},
		{
			Name: "the provider has no tools", Maker: "LiteLLM", Source: FromMemory,
			Refuse: toolless(refuse(http.StatusBadRequest, "litellm.UnsupportedParamsError: together_ai does not support "+
				"parameters: ['tools'], for model=scripted.")),
		},
	}
}
