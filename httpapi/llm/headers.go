package llm

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"

	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// passes reports whether a header of a request reaches the endpoint. The others may choose another
// endpoint, account or model there, beside the owner's key, or say where the request came from.
func passes(name string) bool {
	switch name {
	case "Accept", "Accept-Language", "Content-Type", "User-Agent", "Idempotency-Key", "X-Client-Request-Id",
		"Anthropic-Version", "Anthropic-Beta", "Anthropic-Dangerous-Direct-Browser-Access", "X-App",
		"Openai-Beta", "X-Goog-Api-Client",
		"Http-Referer", "X-Title": // OpenRouter's, for statistics
		return true
	}
	return strings.HasPrefix(name, "X-Stainless-") // what the vendors' clients say of themselves
}

// passedQuery returns the members of a query that reach the endpoint.
func passedQuery(query url.Values) url.Values {
	passed := url.Values{}
	for _, name := range []string{
		"alt",
		"beta",
		preset.QueryVersion,
		"limit",
		"after_id",
		"before_id",
		"pageSize",
		"pageToken",
	} {
		if values, sent := query[name]; sent {
			passed[name] = values
		}
	}
	return passed
}

// dropHeaders drops the headers of an answer that mean this API's address, not the endpoint's, and
// those that have the owner's key.
func (q *request) dropHeaders(h http.Header) {
	for name, values := range h {
		if isDropped(name) || q.hasKey(values) {
			delete(h, name)
		}
	}
}

func isDropped(name string) bool {
	switch name {
	case "Set-Cookie",
		"Strict-Transport-Security",
		"Alt-Svc",
		"Nel",
		"Report-To",
		"Reporting-Endpoints",
		"Public-Key-Pins",
		"Clear-Site-Data",
		"Content-Security-Policy",
		"Www-Authenticate",
		"Location",
		"Refresh":
		return true
	}
	return strings.HasPrefix(name, "X-Bivouac-") || strings.HasPrefix(name, "Access-Control-")
}

// minMasked is the shortest key that is looked for, in bytes. A shorter one is a part of ordinary
// words, and no secret.
const minMasked = 8

func (q *request) hasKey(values []string) bool {
	for _, value := range values {
		if len(q.key) >= minMasked && strings.Contains(value, q.key) {
			return true
		}
	}
	return false
}

// mask replaces the owner's key in a text, which a provider's error may quote, by as many stars.
func (q *request) mask(text []byte) {
	if len(q.key) < minMasked {
		return
	}
	for rest := text; ; {
		at := bytes.Index(rest, q.secret)
		if at < 0 {
			return
		}
		for i := range q.secret {
			rest[at+i] = '*'
		}
		rest = rest[at+len(q.secret):]
	}
}
