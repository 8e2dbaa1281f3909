package acp

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// placeholder is what may stand in a command line: {{name}}, and {{ask?yes:no}} for a value that
// depends on whether the confirmation policy may ask.
var placeholder = regexp.MustCompile(
	`\{\{(ask\?[^:{}]*:[^{}]*|[a-z_]+)\}\}`,
) //nolint:gochecknoglobals // compiled once, read-only

// values are what the placeholders stand for.
type values struct {
	llm engine.LLM
	// named is the model that tells the vendor of the key: that of the settings or of the start, with
	// its prefix. An agent may be asked for another one.
	named   string
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
		text, err := v.value(name)
		switch {
		case err != nil:
			bad = err
		case strings.ContainsFunc(text, func(r rune) bool { return r == '"' || r == '\\' || unicode.IsControl(r) }):
			bad = fmt.Errorf("the value of %s has a quote, a backslash or a control character in it", m)
		}
		return text
	})
	return out, bad
}

// value returns what a placeholder stands for.
func (v values) value(name string) (string, error) {
	switch name {
	case "llm_model":
		return v.llm.Model, nil
	case "llm_base_url":
		return v.baseURL("OpenAI", func(p preset.Vendor) string { return p.OpenAI }, "")
	case "llm_anthropic_url":
		return v.baseURL("Anthropic", func(p preset.Vendor) string { return strings.TrimSuffix(p.Anthropic, "/v1") },
			"anthropic")
	case "llm_gemini_url":
		return v.baseURL("Gemini", func(p preset.Vendor) string { return strings.TrimSuffix(p.Gemini, "/v1beta") }, "gemini")
	case "llm_api_key":
		return v.llm.APIKey, nil
	case "data_dir":
		return v.dataDir, nil
	}
	return "", fmt.Errorf("there is no placeholder {{%s}}", name)
}

// baseURL returns where an API is served: at the settings' base URL, else by the model's vendor. A key
// goes to no vendor but its own, so that an API which that one does not serve is an error. Where no
// model tells the vendor, the Anthropic and Gemini URLs are empty, and an agent uses its own default.
func (v values) baseURL(api string, of func(preset.Vendor) string, path string) (string, error) {
	switch {
	case v.llm.BaseURL != "" && path == "":
		return preset.BaseURL(v.named, v.llm.BaseURL), nil
	case v.llm.BaseURL != "":
		return vendorURL(preset.BaseURL(v.named, v.llm.BaseURL), path), nil
	case v.named == "" && path != "":
		return "", nil
	}
	vendor, _ := preset.VendorOf(v.named)
	base := of(vendor)
	if base == "" && v.llm.APIKey != "" {
		return "", fmt.Errorf(
			"the vendor of the model %s is not known to serve the %s API: choose a model of its vendor, "+
				"or set llm_base_url in the settings",
			v.named,
			api,
		)
	}
	return base, nil
}

// vendorURL returns the base of another vendor's protocol. The gateway has it beside OpenAI's,
// below /llm; another endpoint is the vendor's own or speaks both at its root.
func vendorURL(base, vendor string) string {
	u, err := url.Parse(base)
	if err != nil {
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
