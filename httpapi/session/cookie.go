package session

import (
	"net/http"
	"net/url"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/response"
)

// The names of the cookie. Under TLS a browser refuses one of that name that another host has set,
// or that came in plain.
const (
	Cookie       = "__Host-" + CookiePlain
	CookiePlain  = "bivouac_session"
	tokenLen     = 43 // 256 bits in base62
	codeLen      = 22 // 128 bits
	headerOrigin = "Origin"
	headerSite   = "Sec-Fetch-Site"
)

// Path is the path of the page.
const Path = "/login"

// Link returns an address of a node that opens a session with a code. A browser sends the code to
// nobody.
func Link(node, code string) string { return node + Path + "#code=" + code }

// NewToken returns the token of a new session, NewCode a new code that opens one.
func NewToken() string { return apikey.Random(tokenLen) }

// NewCode returns a new one-time code.
func NewCode() string { return apikey.Random(codeLen) }

// Place is where a browser reaches the node, as far as that decides about a cookie.
type Place struct {
	// Origin is the node's origin as the browser has it: "https://bivouac.example.org".
	Origin string
	// Secure: the browser speaks TLS, to the node or to a trusted proxy that says so.
	Secure bool
	// Loopback: over plain HTTP, the browser runs on this machine and names it so.
	Loopback bool
}

// Refusal is why a browser gets no cookie here, nil where it does.
func (p Place) Refusal() error {
	if p.Secure || p.Loopback {
		return nil
	}
	return response.Error(http.StatusForbidden, "Signing in needs HTTPS: over plain HTTP everybody on the way could read "+
		"the session. Open this page with https://, or on the node's own machine as http://127.0.0.1. Behind a load "+
		"balancer with TLS the node must trust it (limits { trusted_proxies }).")
}

// name is the name of the cookie, "" where there is none.
func (p Place) name() string {
	switch {
	case p.Secure:
		return Cookie
	case p.Loopback:
		return CookiePlain
	}
	return ""
}

// Carries reports whether a request has a session's cookie, wherever it comes from.
func Carries(r *http.Request) bool {
	for _, line := range r.Header["Cookie"] {
		if strings.Contains(line, CookiePlain+"=") {
			return true
		}
	}
	return false
}

// Token returns the token that a request has, "" for none. Of two cookies of the name one is not
// ours.
func (p Place) Token(r *http.Request) string {
	name := p.name()
	if name == "" {
		return ""
	}
	sent := r.CookiesNamed(name)
	if len(sent) != 1 || len(sent[0].Value) != tokenLen {
		return ""
	}
	return sent[0].Value
}

// New returns the cookie of a new session, with no token the one that removes it.
func (p Place) New(token string) *http.Cookie {
	c := &http.Cookie{
		Name: p.name(), Value: token, Path: "/", MaxAge: int(fsm.SessionAge.Seconds()), HttpOnly: true,
		Secure: p.Secure, SameSite: http.SameSiteStrictMode,
	}
	if token == "" {
		c.MaxAge = -1
	}
	return c
}

// errForeign refuses what a page of another origin asks with the cookie.
func errForeign() error {
	return response.Error(http.StatusForbidden, "A page of another origin can't use this session")
}

// Judge refuses a request that a page of another origin has made. SameSite is not enough: to a
// browser all ports of a host, and all hosts below a domain, are one site. What changes nothing
// must say that it is of the same origin or of the browser itself; a WebSocket names its origin.
func (p Place) Judge(r *http.Request) error {
	if err := p.JudgeChange(r); err != nil {
		return err
	}
	switch r.Header.Get(headerSite) {
	case "same-origin", "none":
	case "":
		if isSafe(r.Method) && !isUpgrade(r) {
			return errForeign()
		}
	default:
		return errForeign()
	}
	if isUpgrade(r) && r.Header.Get(headerOrigin) != p.Origin {
		return errForeign()
	}
	return nil
}

// JudgeChange is Judge for a request that has no session yet: signing in must not be another page's
// act either.
func (p Place) JudgeChange(r *http.Request) error {
	var rules http.CrossOriginProtection
	if rules.Check(r) != nil {
		return errForeign()
	}
	return nil
}

func isSafe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// isUpgrade reports whether a request asks for another protocol.
func isUpgrade(r *http.Request) bool { return r.Header.Get("Upgrade") != "" }

// Home is where a browser goes that has signed in and names no path.
const Home = "/"

// ReturnTo returns the path of the node's own origin that a text names, Home for any other text.
// What is below /sandboxes/ and /llm/ is not the node's own.
func ReturnTo(text string) string {
	path, _, _ := strings.Cut(text, "?")
	path, _, _ = strings.Cut(path, "#")
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "":
	case !strings.HasPrefix(text, "/") || strings.Contains(path, "//") || strings.Contains(text, `\`):
	case strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c == 0x7f }):
	case leads(u.Path, "/sandboxes") || leads(u.Path, "/llm") || leads(u.Path, Path):
	default:
		return text
	}
	return Home
}

// leads reports whether a path is another one or below it, however its dots are resolved.
func leads(path, to string) bool {
	clean := (&url.URL{Path: "/"}).JoinPath(path).Path
	return clean == to || strings.HasPrefix(clean, to+"/")
}
