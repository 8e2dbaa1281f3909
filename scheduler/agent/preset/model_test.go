package preset

import (
	"strings"
	"testing"
)

// TestModelOf: a model is found by its vendor's prefix, by its beginning, with a date, and on a server
// of one's own by its name alone, then without prices.
func TestModelOf(t *testing.T) {
	t.Parallel()
	for name, priced := range map[string]bool{
		"anthropic/claude-haiku-4-5-20251001": true, "claude-sonnet-4-5": true, "openai/gpt-5": true,
		"gpt-5-2025-08-07":            true,
		"openrouter/qwen/qwen3-coder": true, "deepseek/deepseek-v4-pro": true,
		"hosted_vllm/Qwen/Qwen3-Coder": false, "mistral/devstral-2512": false, "Qwen/Qwen3-Coder": false,
	} {
		m := ModelOf(name)
		if m.Window < 100_000 || m.Output == 0 || m.Vision == nil || m.Tools == nil {
			t.Errorf("%s: %+v", name, m)
		}
		if (m.Rates != nil) != priced {
			t.Errorf("%s: prices %+v, want any: %t", name, m.Rates, priced)
		}
	}
	for _, name := range []string{"", "openai/scripted", "openai/", "/", "bedrock/x", "gpt-5\t1", "-latest"} {
		if m := ModelOf(name); m != (Model{}) {
			t.Errorf("%q is known: %+v", name, m)
		}
	}
}

// TestModelTable: each line is whole, and its vendor is one of ours.
func TestModelTable(t *testing.T) {
	t.Parallel()
	n := 0
	for line := range strings.Lines(modelTable) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		vendor, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		id, rest, _ := strings.Cut(rest, "\t")
		m := readModel(rest)
		if v, known := VendorOf(vendor + "/" + id); !known || v.Prefixes[0] != vendor || m.Window == 0 {
			t.Errorf("%s/%s: %+v", vendor, id, m)
		}
		if r := m.Rates; r != nil && r.CachedInput != nil && *r.CachedInput > r.Input {
			t.Errorf("%s/%s: the cache costs more than the input", vendor, id)
		}
		n++
	}
	if n < 300 {
		t.Errorf("%d models", n)
	}
}

// TestListedModel reads the lists as the servers write them. The sources are their documentation and
// code: vllm/entrypoints/openai/protocol.py (ModelCard), llama.cpp's tools/server, OpenRouter's
// models API, Ollama's docs/api.md (api/ps), Mistral's and Groq's API reference, LM Studio's api/v0.
func TestListedModel(t *testing.T) {
	t.Parallel()
	yes, no := new(true), new(false)
	for maker, c := range map[string]struct {
		list string
		want Model
	}{
		"vLLM": {`{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm","root":"/w","parent":null,` +
			`"max_model_len":32768,"permission":[]}]}`, Model{Window: 32768}},
		"llama.cpp": {`{"models":[{"name":"m.gguf","capabilities":["completion"]}],"object":"list","data":[{"id":"m.gguf",` +
			`"meta":{"vocab_type":1,"n_vocab":128256,"n_ctx_train":131072,"n_params":8030261312}}]}`, Model{Window: 131072}},
		"a newer llama.cpp": {`{"data":[{"id":"m","meta":{"n_ctx":8192,"n_ctx_train":131072}}]}`, Model{Window: 8192}},
		"OpenRouter": {`{"data":[{"id":"other"},{"id":"m","context_length":262144,"architecture":{"input_modalities":` +
			`["text","image"]},"top_provider":{"context_length":131072,"max_completion_tokens":16384},` +
			`"supported_parameters":["temperature"],"pricing":{"prompt":"0"}}]}`,
			Model{Window: 131072, Output: 16384, Vision: yes, Tools: no}},
		"Ollama": {`{"models":[{"name":"m:latest","model":"m:latest","size":1,"context_length":4096}]}`,
			Model{Window: 4096}},
		"Mistral": {`{"data":[{"id":"m","capabilities":{"completion_chat":true,"function_calling":true,"vision":false},` +
			`"max_context_length":131072}]}`, Model{Window: 131072, Vision: no, Tools: yes}},
		"Groq": {`{"data":[{"id":"m","context_window":131072,"max_completion_tokens":32768}]}`,
			Model{Window: 131072, Output: 32768}},
		"LM Studio": {`{"data":[{"id":"m","max_context_length":131072,"loaded_context_length":4096,` +
			`"capabilities":["tool_use"]}]}`, Model{Window: 4096, Tools: yes}},
		"numbers as texts": {`{"data":[{"id":"m","context_length":"8192","max_completion_tokens":null}]}`,
			Model{Window: 8192}},
	} {
		got, found := ListedModel([]byte(c.list), "m")
		same := func(a, b *bool) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }
		if !found || got.Window != c.want.Window || got.Output != c.want.Output ||
			!same(got.Vision, c.want.Vision) || !same(got.Tools, c.want.Tools) {
			t.Errorf("%s: %+v, found %t, want %+v", maker, got, found, c.want)
		}
	}
	for _, list := range []string{
		``, `[]`, `{"data":[]}`, `{"data":[{"id":"a"},{"id":"b"}]}`, `{"data":{}}`, `{"data":["m"]}`,
	} {
		if m, found := ListedModel([]byte(list), "m"); found {
			t.Errorf("%s: %+v", list, m)
		}
	}
}
