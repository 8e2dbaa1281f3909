package acp

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"bivouac.dev/bivouac/scheduler/agent/engine"
)

// placeholder is what may stand in a command line: {{name}}, and {{ask?yes:no}} for a value that
// depends on whether the confirmation policy may ask.
var placeholder = regexp.MustCompile(`\{\{(ask\?[^:{}]*:[^{}]*|[a-z_]+)\}\}`) //nolint:gochecknoglobals // compiled once, read-only

// values are what the placeholders stand for.
type values struct {
	llm     engine.LLM
	dataDir string
	ask     bool
}

// expand fills the placeholders in. Values go into JSON and TOML texts, so one that would end such
// a text is refused.
func (v values) expand(s string) (string, error) {
	var bad error
	out := placeholder.ReplaceAllStringFunc(s, func(m string) string {
		name := m[2 : len(m)-2]
		if choice, ok := strings.CutPrefix(name, "ask?"); ok {
			yes, no, _ := strings.Cut(choice, ":")
			if v.ask {
				return yes
			}
			return no
		}
		text, known := v.named(name)
		switch {
		case !known:
			bad = fmt.Errorf("there is no placeholder %s", m)
		case strings.ContainsFunc(text, func(r rune) bool { return r == '"' || r == '\\' || unicode.IsControl(r) }):
			bad = fmt.Errorf("the value of %s has a quote, a backslash or a control character in it", m)
		}
		return text
	})
	return out, bad
}

func (v values) named(name string) (string, bool) {
	switch name {
	case "llm_model":
		return v.llm.Model, true
	case "llm_base_url":
		return cmp.Or(v.llm.BaseURL, "https://api.openai.com/v1"), true
	case "llm_anthropic_url":
		return vendorURL(v.llm.BaseURL, "anthropic"), true
	case "llm_gemini_url":
		return vendorURL(v.llm.BaseURL, "gemini"), true
	case "llm_api_key":
		return v.llm.APIKey, true
	case "data_dir":
		return v.dataDir, true
	}
	return "", false
}

// vendorURL returns the base of another vendor's protocol. The gateway has it beside OpenAI's,
// below /llm; another endpoint is the vendor's own or speaks both at its root.
func vendorURL(base, vendor string) string {
	u, err := url.Parse(base)
	if err != nil || base == "" {
		return base
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
	if path.Base(u.Path) == "llm" {
		u.Path += "/" + vendor
	}
	return u.String()
}

// command fills in a preset's command line. A variable whose value is empty is left out, so that
// an agent uses its own default.
func (v values) command(p Preset, environ []string) (command, error) {
	c := command{path: p.Command}
	var err error
	if c.path, err = v.expand(p.Command); err != nil {
		return command{}, err
	}
	for _, a := range p.Args {
		if a, err = v.expand(a); err != nil {
			return command{}, err
		}
		c.args = append(c.args, a)
	}
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		// npm's own variables and Claude Code's change what agents do below them.
		if _, set := p.Env[name]; !set && !strings.HasPrefix(name, "npm_") && name != "CLAUDECODE" {
			c.env = append(c.env, e)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		value, err := v.expand(p.Env[name])
		if err != nil {
			return command{}, err
		}
		if value != "" {
			c.env = append(c.env, name+"="+value)
		}
	}
	return c, nil
}

// namesModel reports whether the agent gets its model by its command line.
func (p Preset) namesModel() bool {
	const name = "{{llm_model}}"
	has := func(s string) bool { return strings.Contains(s, name) }
	return slices.ContainsFunc(p.Args, has) || slices.ContainsFunc(slices.Collect(maps.Values(p.Env)), has)
}

// bareModel removes a provider's prefix, which the model's server does not know. A name such as
// Qwen/Qwen3-Coder stays.
func bareModel(model string) string {
	prefix, rest, found := strings.Cut(model, "/")
	if !found {
		return model
	}
	switch prefix {
	case "anthropic", "cerebras", "custom_openai", "deepseek", "fireworks_ai", "gemini", "groq", "hosted_vllm", "litellm_proxy",
		"lm_studio", "mistral", "moonshot", "ollama", "ollama_chat", "openai", "openhands", "openrouter", "together_ai", "vllm", "xai":
		return rest
	}
	return model
}
