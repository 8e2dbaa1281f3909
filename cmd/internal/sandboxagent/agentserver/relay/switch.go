package relay

import (
	"maps"
	"strings"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// Leaves reports whether a switch names a server that is not the gateway, or a key that is no token of
// the gateway's. A client may send back what it was shown.
func (r *Relay) Leaves(now engine.LLM, given map[string]any) bool {
	key, base := access(given)
	elsewhere := base != "" && base != strings.TrimRight(now.BaseURL, "/") && !r.Relays(engine.LLM{BaseURL: base})
	return elsewhere || key != "" && !r.Relays(engine.LLM{APIKey: key})
}

// WithAccess returns what is stored of a switch. One without a key and another base URL stays with the
// server that now names, and keeps its key and API: kept is true.
func WithAccess(now engine.LLM, given map[string]any) (llm map[string]any, kept bool) {
	key, base := access(given)
	model, _ := given["model"].(string)
	old := strings.TrimRight(now.BaseURL, "/")
	if key != "" || base != "" && base != old || preset.BaseURL(model, old) != preset.BaseURL(now.Model, old) {
		return given, false
	}
	llm = maps.Clone(given)
	llm["base_url"], llm["api_key"] = now.BaseURL, now.APIKey
	if _, named := llm["api"]; !named && now.API != "" {
		llm["api"] = now.API
	}
	return llm, true
}

// access returns the key and the base URL that a switch names, "" for none and for what is masked.
func access(given map[string]any) (key, base string) {
	key, _ = given["api_key"].(string)
	if key == decode.Masked {
		key = ""
	}
	base, _ = given["base_url"].(string)
	return key, strings.TrimRight(base, "/")
}
