package preset

import (
	"slices"
	"strings"
)

// Vendor is a server of models that names of models tell. The engines and the model gateway know no
// other one: ops/check finds another table.
type Vendor struct {
	// Prefixes stand before a slash in the names of its models, as LiteLLM has them. The first is the
	// vendor's own. Its server does not know them.
	Prefixes []string
	// Begins are the beginnings, in lower case, of names without a prefix.
	Begins []string
	// OpenAI, Anthropic and Gemini are the base URLs of these APIs, with the version. One that is empty
	// is not served there, or is where the settings' base URL says.
	OpenAI, Anthropic, Gemini string
	// Local means that the URLs are the sandbox's own: no node reaches them.
	Local bool
}

var vendors = []Vendor{ //nolint:gochecknoglobals // read-only
	{
		Prefixes: []string{"openai", "text-completion-openai"},
		Begins:   []string{"gpt", "o1", "o3", "o4", "codex", "chatgpt"},
		OpenAI:   "https://api.openai.com/v1",
	},
	{
		Prefixes:  []string{"anthropic"},
		Begins:    []string{"claude"},
		OpenAI:    "https://api.anthropic.com/v1",
		Anthropic: "https://api.anthropic.com/v1",
	},
	{
		Prefixes: []string{"gemini"}, Begins: []string{"gemini"},
		OpenAI: "https://generativelanguage.googleapis.com/v1beta/openai",
		Gemini: "https://generativelanguage.googleapis.com/v1beta",
	},
	{Prefixes: []string{"openrouter"}, OpenAI: "https://openrouter.ai/api/v1"},
	{
		Prefixes: []string{"mistral"},
		Begins:   []string{"mistral", "codestral", "devstral"},
		OpenAI:   "https://api.mistral.ai/v1",
	},
	{Prefixes: []string{"codestral"}, OpenAI: "https://codestral.mistral.ai/v1"}, // another key than Mistral's
	{
		Prefixes: []string{"deepseek"}, Begins: []string{"deepseek"},
		OpenAI: "https://api.deepseek.com/v1", Anthropic: "https://api.deepseek.com/anthropic/v1",
	},
	{Prefixes: []string{"groq"}, OpenAI: "https://api.groq.com/openai/v1"},
	{Prefixes: []string{"xai"}, Begins: []string{"grok"}, OpenAI: "https://api.x.ai/v1"},
	{
		Prefixes: []string{"dashscope"},
		Begins:   []string{"qwen"},
		OpenAI:   "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
	},
	{Prefixes: []string{"moonshot"}, Begins: []string{"kimi"}, OpenAI: "https://api.moonshot.ai/v1"},
	{Prefixes: []string{"together_ai"}, OpenAI: "https://api.together.xyz/v1"},
	{Prefixes: []string{"fireworks_ai"}, OpenAI: "https://api.fireworks.ai/inference/v1"},
	{Prefixes: []string{"cerebras"}, OpenAI: "https://api.cerebras.ai/v1"},
	{Prefixes: []string{"openhands"}, OpenAI: "https://llm-proxy.app.all-hands.dev/v1"},
	{Prefixes: []string{"lm_studio"}, OpenAI: "http://localhost:1234/v1", Local: true},
	{Prefixes: []string{"ollama", "ollama_chat"}, OpenAI: "http://localhost:11434/v1", Local: true},
	{Prefixes: []string{"azure"}}, // where the settings' base URL says
	{Prefixes: []string{"custom_openai", "hosted_vllm", "vllm", "litellm_proxy"}},
}

// Vendors returns the known vendors. The caller must not change what the vendors point to.
func Vendors() []Vendor { return slices.Clone(vendors) }

// VendorOf returns the vendor of a model: by its prefix, else by the beginning of its name, else the
// first one, OpenAI. It returns false for a prefix that is not known.
func VendorOf(model string) (Vendor, bool) {
	if prefix, _, prefixed := strings.Cut(model, "/"); prefixed {
		return vendorWith(func(v Vendor) bool { return slices.Contains(v.Prefixes, prefix) })
	}
	begins := func(start string) bool { return strings.HasPrefix(strings.ToLower(model), start) }
	if v, known := vendorWith(func(v Vendor) bool { return slices.ContainsFunc(v.Begins, begins) }); known {
		return v, true
	}
	return vendors[0], true
}

// VendorAt returns the vendor that has a host, in lower case. Its models may be asked there by any API.
func VendorAt(host string) (Vendor, bool) {
	at := "https://" + host + "/"
	return vendorWith(func(v Vendor) bool {
		return !v.Local && (strings.HasPrefix(v.OpenAI, at) || strings.HasPrefix(v.Anthropic, at) ||
			strings.HasPrefix(v.Gemini, at))
	})
}

func vendorWith(is func(Vendor) bool) (v Vendor, known bool) {
	if i := slices.IndexFunc(vendors, is); i >= 0 {
		return vendors[i], true
	}
	return Vendor{}, false
}

// BareModel removes a vendor's prefix, which the model's server does not know. A name such as
// Qwen/Qwen3-Coder stays.
func BareModel(model string) string {
	_, rest, prefixed := strings.Cut(model, "/")
	if _, known := VendorOf(model); prefixed && known {
		return rest
	}
	return model
}
