package proxy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
)

// Policies of what comes from a sandbox on the API's origin. Neither has allow-same-origin: a page
// gets an origin of its own, without storage, cookies and service workers.
const (
	// pathPolicy is for the ports that serve pages.
	pathPolicy = "sandbox allow-downloads allow-forms allow-modals allow-pointer-lock allow-popups allow-scripts"
	// agentPolicy is for the agent server, whose responses are no pages.
	agentPolicy = "sandbox; default-src 'none'"
)

const headerPolicy = "Content-Security-Policy"

// reserved begins the proxy's own paths below a port. "<port>/.bivouac/<pass>/…" is the port for a
// page on the API's origin, whose relative links repeat the pass.
const reserved = "/.bivouac/"

// cutPass moves the pass in a path from the rest to the prefix.
func (t *target) cutPass() {
	after, is := strings.CutPrefix(t.rest, reserved)
	pass, rest, slash := strings.Cut(after, "/")
	words := strings.Split(pass, ".")
	if !is || len(words) < 2 || len(words) > 3 || t.isAgent() {
		return
	}
	if slices.ContainsFunc(words, func(word string) bool { return !isWord(word) }) {
		return
	}
	t.pass, t.prefix, t.rest = pass, t.prefix+reserved+pass, ""
	if slash {
		t.rest = "/" + rest
	}
}

// framersOf returns the policy of who may show a sandbox's page in a frame: itself, the API's
// origin and the front ends', as for CORS.
func framersOf(cfg Config, origins []string) string {
	who := []string{"frame-ancestors 'self'"}
	if cfg.PublicURL != "" {
		base := cfg.Base(url.URL{})
		who = append(who, base.String())
	}
	if len(origins) == 0 {
		who = append(who, "http://localhost:*", "http://127.0.0.1:*", "https://localhost:*", "https://127.0.0.1:*")
	}
	return strings.Join(append(who, origins...), " ")
}

// isAgent reports whether the request has permission to use the agent server.
func (p *request) isAgent() bool { return p.grant.port == fsm.PortAgentServer }

// isHostsPage reports whether the request is for a port with a host, and so an origin, of its own.
func (p *request) isHostsPage() bool { return p.to.host && !p.isAgent() }

// isSecure reports whether the client uses HTTPS.
func (p *request) isSecure() bool { return p.proxy.isSecure(p.r) }

func (d *Proxy) isSecure(r *http.Request) bool { return d.cfg.Base(d.server.Seen(r)).Scheme == "https" }

// AnswersCORS reports whether the proxy answers a request's CORS questions itself: those of a page
// on the API's origin, whose own origin is "null".
func (d *Proxy) AnswersCORS(r *http.Request) bool {
	to, _ := targetOf(d.cfg.Domain, r.Host, r.URL.EscapedPath())
	return to.pass != "" || to.opens() && !to.host
}

// protect sets the headers that keep a page from the pages of others, on every response, the
// proxy's own included.
func (p *request) protect(h http.Header) {
	if p.to.host {
		// The other hosts below the domain may be the same site: they get no window and no frame.
		h.Set("Cross-Origin-Opener-Policy", "same-origin-allow-popups")
		h.Set(headerPolicy, framersOf(p.proxy.cfg, p.proxy.server.Origins()))
		return
	}
	h.Set("Referrer-Policy", "no-referrer")
	if p.to.isAgent() {
		h.Set(headerPolicy, agentPolicy)
		return
	}
	h.Set(headerPolicy, pathPolicy)
	if p.to.pass == "" && !p.to.opens() {
		return
	}
	// The pass in the path is the whole authorisation, so that any "null" origin may read.
	h.Add("Vary", "Origin")
	if p.r.Header.Get("Origin") == "null" {
		h.Set("Access-Control-Allow-Origin", "null")
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Set("Access-Control-Expose-Headers", "*")
	}
}

// preflight answers the preflight of a page on the API's origin.
func (p *request) preflight() bool {
	method := p.r.Header.Get("Access-Control-Request-Method")
	if p.to.pass == "" || p.r.Method != http.MethodOptions || method == "" || p.r.Header.Get("Origin") != "null" {
		return false
	}
	h := p.w.inner.Header()
	h.Set("Access-Control-Allow-Methods", method)
	if names := p.r.Header.Get("Access-Control-Request-Headers"); names != "" {
		h.Set("Access-Control-Allow-Headers", names)
	}
	h.Set("Access-Control-Max-Age", "600")
	p.w.WriteHeader(http.StatusNoContent)
	return true
}

// refuseScript refuses what would run on the API's origin: a service worker, which would stay in the
// browser and see what other pages load, and a script that a page of that origin asks for. The web
// page's policy takes scripts from its origin. A sandbox's page has none there: its own are cross-site.
func (p *request) refuseScript() error {
	h := p.r.Header
	switch {
	case p.to.host:
	case h.Get("Service-Worker") != "":
		return response.Error(http.StatusForbidden, "A page on the API's origin has no service worker. "+
			"Configure a domain for sandboxes.")
	case h.Get("Sec-Fetch-Site") == "same-origin":
		switch h.Get("Sec-Fetch-Dest") {
		case "script", "worker", "sharedworker", "audioworklet", "paintworklet", "xslt":
			return response.Error(http.StatusForbidden, "A sandbox's script does not run on the API's origin.")
		}
	}
	return nil
}

// passUntil returns when a new pass expires: not after its share.
func (p *request) passUntil() time.Time {
	until := time.Now().Add(p.proxy.cfg.CookieAge)
	if share := p.grant.shared(); share != nil && share.Until.Before(until) {
		return share.Until
	}
	return until
}
