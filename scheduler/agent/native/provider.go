package native

import "strings"

// provider is a prefix of a model's name, as LiteLLM uses it.
type provider struct {
	prefix string
	// base is the address that is used when the settings have none. Empty means that there is none.
	base string
}

var providers = []provider{ //nolint:gochecknoglobals // read-only
	{"anthropic", "https://api.anthropic.com/v1"},
	{"cerebras", "https://api.cerebras.ai/v1"},
	{"custom_openai", ""},
	{"deepseek", "https://api.deepseek.com/v1"},
	{"fireworks_ai", "https://api.fireworks.ai/inference/v1"},
	{"gemini", "https://generativelanguage.googleapis.com/v1beta/openai"},
	{"groq", "https://api.groq.com/openai/v1"},
	{"hosted_vllm", ""},
	{"litellm_proxy", ""},
	{"lm_studio", "http://localhost:1234/v1"},
	{"mistral", "https://api.mistral.ai/v1"},
	{"moonshot", "https://api.moonshot.ai/v1"},
	{"ollama", "http://localhost:11434/v1"},
	{"ollama_chat", "http://localhost:11434/v1"},
	{"openai", "https://api.openai.com/v1"},
	{"openhands", "https://llm-proxy.app.all-hands.dev/v1"},
	{"openrouter", "https://openrouter.ai/api/v1"},
	{"together_ai", "https://api.together.xyz/v1"},
	{"vllm", ""},
	{"xai", "https://api.x.ai/v1"},
}

// endpoint returns the name that the model's server knows and the server's address. One prefix of
// a provider is removed; a name such as Qwen/Qwen3-Coder stays. The address is empty where the
// settings and the provider have none.
func endpoint(model, baseURL string) (name, base string) {
	name, base = model, strings.TrimRight(baseURL, "/")
	if base == "" {
		base = "https://api.openai.com/v1"
	}
	prefix, rest, found := strings.Cut(model, "/")
	if !found {
		return name, base
	}
	for _, p := range providers {
		if p.prefix != prefix {
			continue
		}
		if baseURL == "" {
			base = p.base
		}
		return rest, base
	}
	return name, base
}

// reasons reports whether the model is one of OpenAI's that reason: they refuse a temperature and
// count their thoughts with the output.
func reasons(model string) bool {
	for _, prefix := range []string{"o1", "o3", "o4", "gpt-5", "gpt-6"} {
		if strings.HasPrefix(model, prefix) {
			return true
		}
	}
	return false
}

// wantsReasoning reports whether the model must be shown its own thoughts between tool calls.
func wantsReasoning(model string) bool {
	model = strings.ToLower(model)
	for _, part := range []string{"deepseek-reasoner", "deepseek-v3.2", "deepseek-v4", "kimi-k2", "minimax-m"} {
		if strings.Contains(model, part) {
			return true
		}
	}
	return false
}
