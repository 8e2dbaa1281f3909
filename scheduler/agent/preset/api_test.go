package preset

import "testing"

// TestAPIOf: a base URL says the API, else the maker at its own address.
func TestAPIOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		model, base string
		want        API
	}{
		{"anthropic/claude-opus-4-5", "", Messages},
		{"claude-opus-4-5", "https://api.anthropic.com", Messages},
		{"claude-opus-4-5", "https://api.anthropic.com/v1/chat/completions", Completions},
		{"claude-opus-4-5", "https://litellm.corp.example/v1", Completions},
		{"claude-opus-4-5", "https://litellm.corp.example/v1/messages/", Messages},
		{"deepseek-chat", "", Completions},
		{"deepseek-chat", "https://api.deepseek.com/anthropic", Messages},
		{"kimi-k2", "https://api.moonshot.ai/anthropic/v1", Messages},
		{"gpt-5.2", "", Responses},
		{"openai/o3", "https://api.openai.com/v1", Responses},
		{"gpt-5.2", "https://api.openai.com/v1/chat/completions", Completions},
		{"gpt-4.1", "", Completions},
		{"gpt-5.2", "http://llm:8000/v1", Completions},
		{"qwen3", "http://llm:8000/v1/responses?api-version=1", Responses},
		{"bedrock/anthropic.claude", "", Completions},
		{"", "", Completions},
	} {
		if got := APIOf(c.model, c.base); got != c.want {
			t.Errorf("%s at %q is asked in %s, want %s", c.model, c.base, got, c.want)
		}
	}
}
