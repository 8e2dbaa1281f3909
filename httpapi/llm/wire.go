package llm

import (
	"net/http"
	"net/url"
	"strings"

	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// Path is the gateway's path on the API's address.
const Path = "/llm/"

// pathToken is where an agent server gets a token with its sandbox's key.
const pathToken = Path + "token"

// wire is the API that a request speaks.
type wire int

const (
	wireOpenAI wire = iota
	wireAnthropic
	wireGemini
)

// operation is what a request asks for.
type operation struct {
	wire wire
	// path is the operation's path below the endpoint's base URL, escaped.
	path string
	// model is the model in the path, "" where the body has it.
	model string
	// generates is set where the answer costs tokens, chat for chat completions.
	generates, chat bool
}

// The beginnings of the paths of each API, with what follows the endpoint's base URL.
const (
	prefixOpenAI    = Path + "v1"
	prefixAnthropic = Path + "anthropic/v1"
	prefixGemini    = Path + "gemini/v1beta"
)

// operationOf returns the operation of a request, false if the gateway has none at its path. Clients
// that add an API's whole path to a base URL of another one are understood: the last words decide.
func operationOf(r *http.Request) (operation, bool) {
	path := r.URL.EscapedPath()
	if path == strings.TrimSuffix(Path, "/")+preset.PathRunning {
		return operation{wire: wireOpenAI, path: preset.PathRunning}, r.Method == http.MethodGet
	}
	for _, api := range []struct {
		prefix string
		wire   wire
	}{{prefixAnthropic, wireAnthropic}, {prefixGemini, wireGemini}, {prefixOpenAI, wireOpenAI}} {
		rest, below := strings.CutPrefix(path, api.prefix)
		if !below || rest == "" || rest[0] != '/' || strings.Contains(r.URL.Path, "..") {
			continue
		}
		rest = strings.TrimPrefix(rest, "/v1")
		if strings.HasPrefix(rest, "/messages") {
			api.wire = wireAnthropic
		}
		return api.wire.operation(r.Method, rest)
	}
	return operation{}, false
}

// operation returns the operation at a path below the API's version.
func (w wire) operation(method, path string) (operation, bool) {
	o := operation{wire: w, path: path}
	if method == http.MethodGet {
		rest, models := strings.CutPrefix(path, "/models")
		return o, models && (rest == "" || rest[0] == '/')
	}
	if method != http.MethodPost {
		return o, false
	}
	switch w {
	case wireAnthropic:
		o.generates = path == "/messages"
		return o, o.generates || path == "/messages/count_tokens"
	case wireGemini:
		return o.gemini()
	case wireOpenAI:
		o.chat = path == "/chat/completions"
		o.generates = o.chat || path == "/responses"
	}
	return o, o.generates
}

// gemini reads "/models/<model>:<method>".
func (o operation) gemini() (operation, bool) {
	rest, below := strings.CutPrefix(o.path, "/models/")
	model, method, found := strings.Cut(rest, ":")
	name, err := url.PathUnescape(model)
	if !below || !found || err != nil || name == "" {
		return o, false
	}
	o.model, o.generates = name, method == "generateContent" || method == "streamGenerateContent"
	return o, o.generates || method == "countTokens"
}

// The headers in which the APIs carry a key. A token comes in any of them.
const (
	headerBearer    = "Authorization"
	headerAnthropic = "X-Api-Key"
	headerGemini    = "X-Goog-Api-Key"
	headerAzure     = "Api-Key"
	queryGemini     = "key"
)

// tokenOf returns the token of a request, "" for none.
func tokenOf(r *http.Request) string {
	if scheme, token, found := strings.Cut(r.Header.Get(headerBearer), " "); found && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	for _, name := range []string{headerAnthropic, headerGemini} {
		if token := r.Header.Get(name); token != "" {
			return token
		}
	}
	return r.URL.Query().Get(queryGemini)
}

// setKey sets the owner's key in the API's own header, and in Azure's where the endpoint is there.
func (q *request) setKey(h http.Header) {
	switch {
	case q.key == "":
	case q.wire == wireAnthropic:
		h.Set(headerAnthropic, q.key)
	case q.wire == wireGemini:
		h.Set(headerGemini, q.key)
	default:
		h.Set(headerBearer, "Bearer "+q.key)
		if q.target.azure {
			h.Set(headerAzure, q.key)
		}
	}
}
