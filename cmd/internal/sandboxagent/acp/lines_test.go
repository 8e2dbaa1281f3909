package acp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

// A line of 11 MiB passes with its strings shortened, between characters; an update never reaches
// the SDK, and neither does garbage.
func TestLines_LongStringsAreShortened(t *testing.T) {
	long, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "result": map[string]any{
		"text": strings.Repeat("é\u0001\"", 11<<20/8), "after": "kept"}})
	if err != nil {
		t.Fatal(err)
	}
	in := "npm noise\n" + `{"jsonrpc":"2.0","method":"session/update","params":{"n":1}}` + "\n" + string(long)
	var updates, garbage int
	out, err := io.ReadAll(newLineReader(strings.NewReader(in), func(json.RawMessage) { updates++ },
		func([]byte) { garbage++ }))
	if err != nil || updates != 1 || garbage != 1 {
		t.Fatalf("%v, %d updates, %d garbage", err, updates, garbage)
	}
	var m struct{ Result struct{ Text, After string } }
	if err := json.Unmarshal(out, &m); err != nil || !utf8.Valid(out) {
		t.Fatalf("what is left is not valid: %v", err)
	}
	if m.Result.After != "kept" || len(m.Result.Text) == 0 || len(out) > 2*maxString ||
		bytes.Count(out, []byte("\n")) != 1 {
		t.Errorf("%d bytes of text, %d in all, after %q", len(m.Result.Text), len(out), m.Result.After)
	}
}

// A line without long strings can't be shortened: the reading ends with the reason.
func TestLines_TooLongHasAReason(t *testing.T) {
	r := newLineReader(strings.NewReader("["+strings.Repeat("1,", 6<<20)+"1]\n"), func(json.RawMessage) {},
		func([]byte) {})
	if _, err := io.ReadAll(r); !errors.Is(err, errLine) {
		t.Errorf("%v, want %v", err, errLine)
	}
}

// A value that would end the text it stands in is refused; the gateway's other protocols are beside
// OpenAI's.
func TestExpand_Placeholders(t *testing.T) {
	v := values{ask: true, dataDir: "/d"}
	v.llm.Model, v.llm.BaseURL = "m", "http://127.0.0.1:1/llm/v1"
	for in, want := range map[string]string{
		"{{llm_model}} {{ask?untrusted:never}}": "m untrusted",
		"{{llm_anthropic_url}}":                 "http://127.0.0.1:1/llm/anthropic",
		"{{llm_gemini_url}} {{data_dir}}":       "http://127.0.0.1:1/llm/gemini /d",
		`{"a":{"b":1}}`:                         `{"a":{"b":1}}`,
	} {
		if got, err := v.expand(in); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", in, got, err, want)
		}
	}
	v.llm.BaseURL = "https://llm.example/v1/messages" // it says the native agent's API
	if got, err := v.expand("{{llm_base_url}} {{llm_anthropic_url}}"); err != nil ||
		got != "https://llm.example/v1 https://llm.example" {
		t.Errorf("%q, %v", got, err)
	}
	v.llm.Model = `m","x":"`
	for _, in := range []string{"{{llm_model}}", "{{unknown}}"} {
		if got, err := v.expand(in); err == nil {
			t.Errorf("%s: %q, want an error", in, got)
		}
	}
}

// A key goes to no vendor but its own, whatever API the agent speaks.
func TestExpand_TheKeyGoesToTheModelsVendor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ model, in, want string }{
		{
			"deepseek/deepseek-chat",
			"{{llm_base_url}} {{llm_anthropic_url}}",
			"https://api.deepseek.com/v1 https://api.deepseek.com/anthropic",
		},
		{
			"claude-opus-4-5",
			"{{llm_base_url}} {{llm_anthropic_url}}",
			"https://api.anthropic.com/v1 https://api.anthropic.com",
		},
		{"gemini/gemini-3-pro", "{{llm_gemini_url}}", "https://generativelanguage.googleapis.com"},
		{"", "{{llm_base_url}} {{llm_anthropic_url}}{{llm_gemini_url}}", "https://api.openai.com/v1 "},
		{
			"openai/gpt-5",
			"{{llm_anthropic_url}}",
			"",
		}, {"openai/gpt-5", "{{llm_gemini_url}}", ""}, {"bedrock/claude", "{{llm_base_url}}", ""},
	} {
		v := values{named: c.model, llm: engine.LLM{APIKey: "sk-owner"}}
		got, err := v.expand(c.in)
		if c.want != "" && (err != nil || got != c.want) ||
			c.want == "" && (err == nil || !strings.Contains(err.Error(), "llm_base_url")) {
			t.Errorf("%s with the model %q: %q, %v, want %q", c.in, c.model, got, err, c.want)
		}
	}
}
