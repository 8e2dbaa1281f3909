package llm

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"bivouac.dev/bivouac/fsm"
)

// vendor is a known vendor of models.
type vendor struct {
	// names are the prefixes of model names (LiteLLM's), the first is the vendor's own.
	names []string
	// begins are the beginnings of names without a prefix.
	begins []string
	// bases are the base URLs by API; an API without one is not served.
	bases map[wire]string
}

// vendors are the known vendors. The first is that of a model that nothing tells.
func vendors() []vendor {
	openAI := func(base string) map[wire]string { return map[wire]string{wireOpenAI: base} }
	return []vendor{
		{[]string{"openai", "text-completion-openai"}, []string{"gpt", "o1", "o3", "o4", "codex", "chatgpt"}, openAI("https://api.openai.com/v1")},
		{[]string{"anthropic"}, []string{"claude"}, map[wire]string{
			wireOpenAI: "https://api.anthropic.com/v1", wireAnthropic: "https://api.anthropic.com/v1"}},
		{[]string{"gemini"}, []string{"gemini"}, map[wire]string{
			wireOpenAI: "https://generativelanguage.googleapis.com/v1beta/openai", wireGemini: "https://generativelanguage.googleapis.com/v1beta"}},
		{[]string{"openrouter"}, nil, openAI("https://openrouter.ai/api/v1")},
		{[]string{"mistral", "codestral"}, []string{"mistral", "codestral", "devstral"}, openAI("https://api.mistral.ai/v1")},
		{[]string{"deepseek"}, []string{"deepseek"}, map[wire]string{
			wireOpenAI: "https://api.deepseek.com/v1", wireAnthropic: "https://api.deepseek.com/anthropic/v1"}},
		{[]string{"groq"}, nil, openAI("https://api.groq.com/openai/v1")},
		{[]string{"xai"}, []string{"grok"}, openAI("https://api.x.ai/v1")},
		{[]string{"dashscope"}, []string{"qwen"}, openAI("https://dashscope-intl.aliyuncs.com/compatible-mode/v1")},
		{[]string{"moonshot"}, []string{"kimi"}, openAI("https://api.moonshot.ai/v1")},
		{[]string{"together_ai"}, nil, openAI("https://api.together.xyz/v1")},
		{[]string{"fireworks_ai"}, nil, openAI("https://api.fireworks.ai/inference/v1")},
	}
}

// vendorOf returns the vendor of a model, nil for a prefix that is not known.
func vendorOf(model string) *vendor {
	all := vendors()
	prefix, _, prefixed := strings.Cut(strings.ToLower(model), "/")
	for i := range all {
		for _, name := range all[i].names {
			if prefixed && name == prefix {
				return &all[i]
			}
		}
		for _, start := range all[i].begins {
			if !prefixed && strings.HasPrefix(prefix, start) {
				return &all[i]
			}
		}
	}
	if prefixed {
		return nil
	}
	return &all[0]
}

// endpointOf returns the base URL for an operation: the settings', else that of the vendor of model,
// the conversation's. A key goes to no vendor but its own.
func endpointOf(o operation, settings *fsm.Settings, model string) (*url.URL, error) {
	base := ""
	if settings != nil && settings.Values.LLMBaseURL != nil {
		base = strings.TrimRight(*settings.Values.LLMBaseURL, "/")
	}
	if base != "" {
		base = o.wire.versioned(base)
	} else {
		v := vendorOf(model)
		if v == nil {
			return nil, refuse(http.StatusBadRequest, reasonEndpoint, "llm_model %q has no known vendor: set llm_base_url in the settings", model)
		}
		if base = v.bases[o.wire]; base == "" {
			return nil, refuse(http.StatusBadRequest, reasonEndpoint, "%s, the vendor of llm_model, does not serve this API: use a model of its vendor, or set llm_base_url", v.names[0])
		}
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, refuse(http.StatusBadRequest, reasonEndpoint, "llm_base_url must be an http or https URL without user, query and fragment")
	}
	return u, nil
}

// versioned returns a base URL of the settings with the API's version. An OpenAI base URL has it by
// custom, those of the others have it not.
func (w wire) versioned(base string) string {
	switch w {
	case wireAnthropic:
		return strings.TrimSuffix(base, "/v1") + "/v1"
	case wireGemini:
		return strings.TrimSuffix(strings.TrimSuffix(base, "/v1"), "/v1beta") + "/v1beta"
	case wireOpenAI:
	}
	return base
}

// below returns the URL of a path below a base.
func below(base *url.URL, path, query string) (*url.URL, error) {
	u := *base
	u.RawPath = strings.TrimRight(base.EscapedPath(), "/") + path
	plain, err := url.PathUnescape(u.RawPath)
	if err != nil {
		return nil, fmt.Errorf("the path is not escaped well: %w", err)
	}
	u.Path, u.RawQuery = plain, query
	return &u, nil
}
