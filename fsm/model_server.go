package fsm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Bounds of what an operator says of servers of models.
const (
	maxCA      = 64 << 10
	maxHeaders = 16
	// maxSlots bounds the requests that a server has at once from a node.
	maxSlots = 10_000
	// maxWindow bounds a window and an answer, in tokens.
	maxWindow = 100_000_000
	// maxModelSeconds bounds the time-out of a call, in seconds.
	maxModelSeconds = 3600
)

// ModelServer is what the operator says of a server of models (VersionServers).
type ModelServer struct {
	// Host is that of its URL: "llm.example.org" for every port, or "llm.example.org:8443".
	Host string `json:"host"`
	// CA are certificates in PEM that it is trusted by, beside the system's.
	CA string `json:"ca,omitempty"`
	// Headers are sent with each request. They are part of the state, and so no secrets.
	Headers map[string]string `json:"headers,omitempty"`
	// Slots bounds the requests that a node has there at once: others wait. 0 is no bound.
	Slots int64 `json:"slots,omitempty"`
}

// ModelProfile is what the operator says of the models that a pattern of LLM.Models means
// (VersionServers).
type ModelProfile struct {
	Model string `json:"model"`
	ModelSettings
}

// ModelSettings say how a model is called, in the words of the agent servers' llm. What is nil is
// found out.
type ModelSettings struct {
	MaxInputTokens    *int64   `json:"max_input_tokens,omitempty"`
	MaxOutputTokens   *int64   `json:"max_output_tokens,omitempty"`
	Temperature       *float64 `json:"temperature,omitempty"`
	Timeout           *int64   `json:"timeout,omitempty"`
	NumRetries        *int64   `json:"num_retries,omitempty"`
	Stream            *bool    `json:"stream,omitempty"`
	DisableVision     *bool    `json:"disable_vision,omitempty"`
	NativeToolCalling *bool    `json:"native_tool_calling,omitempty"`
}

// SettingsOf returns what the operator says of a model: the longest pattern that matches counts.
func (l LLM) SettingsOf(model string) (best ModelSettings) {
	longest := -1
	for _, p := range l.Profiles {
		if MatchesModel(p.Model, model) && len(p.Model) > longest {
			best, longest = p.ModelSettings, len(p.Model)
		}
	}
	return best
}

// ServerAt returns what the operator says of the server at a "host:port", nil for nothing. One with
// its port counts before one for every port.
func (l LLM) ServerAt(host, port string) (found *ModelServer) {
	at := host + ":" + port
	if strings.Contains(host, ":") {
		at = "[" + host + "]:" + port
	}
	for i := range l.Servers {
		s := &l.Servers[i]
		switch {
		case strings.EqualFold(s.Host, at):
			return s
		case strings.EqualFold(strings.TrimSuffix(strings.Trim(s.Host, "[]"), "."), host):
			found = s
		}
	}
	return found
}

// isHeaderName reports whether a text is a name of a header that an operator may add.
func isHeaderName(name string) bool {
	return name != "" && len(name) <= 64 && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
	})
}

// namesSecret reports whether the value of a header with this name is a credential as a rule.
func namesSecret(name string) bool {
	words := []string{"auth", "cookie", "key", "token", "secret", "passw", "credential"}
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(strings.ToLower(name), word) })
}

// checkModelHeader returns an error for a header that an operator may not add to requests.
func checkModelHeader(name, value string) error {
	switch {
	case !isHeaderName(name):
		return fmt.Errorf("%q is no name of a header", clip(name))
	case namesSecret(name):
		return fmt.Errorf("%q may hold a secret, which the configuration must not have: a key is the user's llm_api_key",
			clip(name))
	case slices.Contains([]string{
		"host", "connection", "upgrade", "te", "trailer", "expect", "accept-encoding", "content-type", "content-length",
		"transfer-encoding",
	}, strings.ToLower(name)):
		return fmt.Errorf("%q is the request's own", clip(name))
	case value == "" || len(value) > maxListedText ||
		strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("the value of %q must be of printable ASCII characters", clip(name))
	}
	return nil
}

// servers checks what is said of servers and models.
func (r *rules) servers(l LLM) {
	r.check(len(l.Servers) <= maxListed && len(l.Profiles) <= maxListed, "llm: a list has at most %d members", maxListed)
	hosts, models := map[string]bool{}, map[string]bool{}
	for _, s := range l.Servers {
		r.check(CheckHost(s.Host) == nil, "llm's servers: %q must be a host name or \"host:port\"", clip(s.Host))
		r.check(!hosts[strings.ToLower(s.Host)], "llm's servers: %q comes twice", clip(s.Host))
		hosts[strings.ToLower(s.Host)] = true
		r.check(s.CA == "" || len(s.CA) <= maxCA && strings.Contains(s.CA, "-----BEGIN CERTIFICATE-----"),
			"llm's servers: the ca of %q must be certificates in PEM, of at most %d bytes", clip(s.Host), maxCA)
		r.check(s.Slots >= 0 && s.Slots <= maxSlots, "llm's servers: slots must be between 0 and %d", maxSlots)
		r.check(len(s.Headers) <= maxHeaders, "llm's servers: %q has more than %d headers", clip(s.Host), maxHeaders)
		for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
			err := checkModelHeader(name, s.Headers[name])
			r.check(err == nil, "llm's servers: %v", err)
		}
	}
	within := func(name string, n *int64, low, high int64) {
		r.check(n == nil || *n >= low && *n <= high, "llm's profiles: %s must be between %d and %d", name, low, high)
	}
	for _, p := range l.Profiles {
		err := CheckModel(p.Model)
		r.check(err == nil, "llm's profiles: %v", err)
		r.check(!models[p.Model], "llm's profiles: %q comes twice", clip(p.Model))
		models[p.Model] = true
		within("max_input_tokens", p.MaxInputTokens, 1, maxWindow)
		within("max_output_tokens", p.MaxOutputTokens, 1, maxWindow)
		within("timeout", p.Timeout, 1, maxModelSeconds)
		within("num_retries", p.NumRetries, 0, 100)
		r.check(p.Temperature == nil || *p.Temperature >= 0 && *p.Temperature <= 2,
			"llm's profiles: temperature must be between 0 and 2")
	}
}

// text is a server as a difference shows it. The certificates are shown by their sum.
func (s ModelServer) text() string {
	text := fmt.Sprintf("%s slots %d", s.Host, s.Slots)
	if s.CA != "" {
		sum := sha256.Sum256([]byte(s.CA))
		text += " ca " + hex.EncodeToString(sum[:4])
	}
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		text += fmt.Sprintf(" %s: %s", name, s.Headers[name])
	}
	return text
}

// text is a profile as a difference shows it.
func (p ModelProfile) text() string {
	text := p.Model
	for _, of := range []struct {
		name string
		n    *int64
	}{
		{"max_input_tokens", p.MaxInputTokens}, {"max_output_tokens", p.MaxOutputTokens}, {"timeout", p.Timeout},
		{"num_retries", p.NumRetries},
	} {
		if of.n != nil {
			text += fmt.Sprintf(" %s %d", of.name, *of.n)
		}
	}
	if p.Temperature != nil {
		text += " temperature " + dollars(p.Temperature)
	}
	for _, of := range []struct {
		name string
		is   *bool
	}{{"stream", p.Stream}, {"disable_vision", p.DisableVision}, {"native_tool_calling", p.NativeToolCalling}} {
		if of.is != nil {
			text += fmt.Sprintf(" %s %t", of.name, *of.is)
		}
	}
	return text
}
