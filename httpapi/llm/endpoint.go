package llm

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"

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

// target is where a request goes.
type target struct {
	*url.URL
	// version is Azure's api-version, azure whether its key has a header of its own.
	version string
	azure   bool
}

// vendor returns whose host it is.
func (t target) vendor() (preset.Vendor, bool) { return preset.VendorAt(t.Hostname()) }

// targetOf returns the base URL for an operation: the endpoint's own, else that of its model's
// vendor. A key goes to no vendor but its own.
func targetOf(o operation, e fsm.ModelEndpoint) (t target, err error) {
	at := preset.EndpointOf(e.Model, e.BaseURL)
	if e.BaseURL != "" {
		if u, err := url.Parse(e.BaseURL); err != nil || u.User != nil || u.Fragment != "" || hasOther(u.Query()) {
			return t, errBaseURL()
		}
		at.Base = o.wire.versioned(at.Base)
	} else {
		v, known := preset.VendorOf(e.Model)
		if !known {
			return t, refuse(http.StatusBadRequest, reasonEndpoint,
				"llm_model %q has no known vendor: set llm_base_url in the settings", e.Model)
		}
		if at.Base = o.wire.baseOf(v); at.Base == "" {
			return t, refuse(http.StatusBadRequest, reasonEndpoint,
				"%s, the vendor of llm_model, does not serve this API: use a model of its vendor, or set llm_base_url",
				v.Prefixes[0])
		}
	}
	if o.path == preset.PathRunning {
		at.Base = strings.TrimSuffix(at.Base, "/v1")
	}
	u, err := url.Parse(at.Base)
	if err != nil || !canonical(u) || u.Scheme != "https" && u.Scheme != "http" {
		return t, errBaseURL()
	}
	return target{URL: u, version: at.Version, azure: at.Azure}, nil
}

// canonical gives a URL's host and port their one spelling, by which what the operator and the
// vendors' list say of them is found. It returns false if they have none: a name that is not in ASCII
// is another one by the time it is resolved.
func canonical(u *url.URL) bool {
	host, port := strings.ToLower(strings.TrimRight(u.Hostname(), ".")), u.Port()
	if host == "" || strings.ContainsFunc(host, func(r rune) bool { return r > unicode.MaxASCII }) {
		return false
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.Unmap().String()
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return false
		}
		if port = strconv.FormatUint(n, 10); port != defaultPort(u.Scheme) {
			host += ":" + port
		}
	}
	u.Host = host
	return true
}

func defaultPort(scheme string) string {
	if scheme == "http" {
		return "80"
	}
	return "443"
}

func errBaseURL() *refusal {
	return refuse(http.StatusBadRequest, reasonEndpoint, "llm_base_url must be an http or https URL "+
		"without user, query (but api-version) and fragment, its host in ASCII")
}

// hasOther reports whether a query, which it changes, has another member than api-version.
func hasOther(query url.Values) bool {
	query.Del(preset.QueryVersion)
	return len(query) > 0
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

// below returns the URL of a path below the base. The endpoint's version counts before the request's.
func (t target) below(path string, query url.Values) (*url.URL, error) {
	u := *t.URL
	u.RawPath = strings.TrimRight(u.EscapedPath(), "/") + path
	plain, err := url.PathUnescape(u.RawPath)
	if err != nil {
		return nil, fmt.Errorf("the path is not escaped well: %w", err)
	}
	if t.version != "" {
		query.Set(preset.QueryVersion, t.version)
	}
	u.Path, u.RawQuery = plain, query.Encode()
	return &u, nil
}
