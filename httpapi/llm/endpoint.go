package llm

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// baseOf returns a vendor's base URL for an API, "" for one that it does not serve.
func (w wire) baseOf(v preset.Vendor) string {
	switch {
	case v.Local:
		return "" // the sandbox's own
	case w == wireAnthropic:
		return v.Anthropic
	case w == wireGemini:
		return v.Gemini
	}
	return v.OpenAI
}

// endpointOf returns the base URL for an operation: the endpoint's own, else that of its model's
// vendor. A key goes to no vendor but its own.
func endpointOf(o operation, e fsm.ModelEndpoint) (*url.URL, error) {
	base := strings.TrimRight(e.BaseURL, "/")
	if base != "" {
		base = o.wire.versioned(base)
	} else {
		v, known := preset.VendorOf(e.Model)
		if !known {
			return nil, refuse(http.StatusBadRequest, reasonEndpoint,
				"llm_model %q has no known vendor: set llm_base_url in the settings", e.Model)
		}
		if base = o.wire.baseOf(v); base == "" {
			return nil, refuse(http.StatusBadRequest, reasonEndpoint,
				"%s, the vendor of llm_model, does not serve this API: use a model of its vendor, or set llm_base_url",
				v.Prefixes[0])
		}
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		u.Scheme != "https" && u.Scheme != "http" {
		return nil, refuse(http.StatusBadRequest, reasonEndpoint, "llm_base_url must be an http or https URL "+
			"without user, query and fragment")
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
