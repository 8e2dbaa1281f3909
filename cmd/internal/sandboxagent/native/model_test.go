package native

import (
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// TestModel_AVendorsPrefixIsRemoved: the server gets the name that it knows.
func TestModel_AVendorsPrefixIsRemoved(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]string{
		"dashscope/qwen3-coder-plus": "qwen3-coder-plus", "codestral/codestral-latest": "codestral-latest",
		"openrouter/qwen/qwen3-coder": "qwen/qwen3-coder", "Qwen/Qwen3-Coder-480B": "Qwen/Qwen3-Coder-480B",
	} {
		r := newRig(t, modeltest.Turns(modeltest.Text("x")), func(s *engine.Setup) { s.Agent.LLM.Model = model })
		r.say("go")
		r.ends(engine.Finished)
		if got := r.server.Requests()[0].Model; got != want {
			t.Errorf("%s is sent as %q, want %q", model, got, want)
		}
	}
}

// TestModel_AKeyGoesToTheModelsVendor: without a base URL it never goes to another vendor.
func TestModel_AKeyGoesToTheModelsVendor(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]string{
		"claude-opus-4-5":    "https://api.anthropic.com/v1",
		"qwen3-coder-plus":   "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
		"dashscope/qwen-max": "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "gpt-5": "https://api.openai.com/v1",
		"bedrock/anthropic.claude": "", "Qwen/Qwen3-Coder": "", "hosted_vllm/x": "",
	} {
		if base := newClient(engine.LLM{Model: model}, nil).endpoint.Base; base != want {
			t.Errorf("%s is asked at %q, want %q", model, base, want)
		}
	}
}
