package proxy

import (
	"net/http"
	"strings"
)

// vscodeCookie is the cookie in which VSCODE expects its connection token.
const vscodeCookie = "vscode-tkn"

// sandboxPrefix begins the names of sandboxes' own cookies in browsers, after hostPrefix under
// HTTPS. Cookies of a front end and of other hosts below the same domain have other names.
const sandboxPrefix = "sandbox-"

// maxSandboxCookies bounds the bytes of a sandbox's own cookies in one request. Servers refuse
// longer headers with 431, and over plain HTTP another sandbox's page can set cookies for all.
const maxSandboxCookies = 8 << 10

// HeaderAuthorization reaches a sandbox's ports as Authorization. Authorization itself may be a
// front end's and reaches none.
const HeaderAuthorization = "X-Sandbox-Authorization"

// sandboxCookieName returns the name in the browser of a sandbox's own cookie.
func sandboxCookieName(name string, secure bool) string {
	if secure {
		return hostPrefix + sandboxPrefix + name
	}
	return sandboxPrefix + name
}

// ownCookies returns the Cookie header for a sandbox: its own cookies, with their own names, in the
// client's order. Those beyond maxSandboxCookies are left out.
func ownCookies(sent []*http.Cookie, secure bool) string {
	own := []string{}
	left := maxSandboxCookies
	for _, c := range sent {
		name, is := strings.CutPrefix(c.Name, sandboxCookieName("", secure))
		if !is || name == "" {
			continue
		}
		value := c.Value
		if c.Quoted {
			value = `"` + value + `"`
		}
		pair := name + "=" + value
		if left -= len(pair) + len("; "); left < 0 {
			break
		}
		own = append(own, pair)
	}
	return strings.Join(own, "; ")
}

// setOwnCookie rewrites a sandbox's Set-Cookie for its port's host: its name gets the prefix, and
// Domain and Path go. It returns "" for what is no cookie.
func setOwnCookie(line string, secure bool) string {
	parts := strings.Split(line, ";")
	name, value, is := strings.Cut(parts[0], "=")
	if name = strings.TrimSpace(name); !is || name == "" {
		return ""
	}
	kept := []string{sandboxCookieName(name, secure) + "=" + strings.TrimSpace(value)}
	for _, attribute := range parts[1:] {
		key, _, _ := strings.Cut(attribute, "=")
		switch key = strings.TrimSpace(key); {
		case strings.EqualFold(key, "Domain"), strings.EqualFold(key, "Path"), strings.EqualFold(key, "Secure"):
		default:
			kept = append(kept, strings.TrimSpace(attribute))
		}
	}
	kept = append(kept, "Path=/")
	if secure {
		kept = append(kept, "Secure")
	}
	return strings.Join(kept, "; ")
}

// setOwnCookies rewrites the cookies of a sandbox's response. On the API's origin a sandbox sets
// none, and the agent server has none.
func (p *request) setOwnCookies(h http.Header) {
	lines := h.Values("Set-Cookie")
	h.Del("Set-Cookie")
	if !p.isHostsPage() {
		return
	}
	for _, line := range lines {
		if own := setOwnCookie(line, p.isSecure()); own != "" {
			h.Add("Set-Cookie", own)
		}
	}
}

// outCredentials replaces the client's credentials by what the sandbox's port gets: the agent
// server the sandbox's key, other ports their own cookies and their own authorisation.
func (p *request) outCredentials(h http.Header) {
	own := p.r.Header.Get(HeaderAuthorization)
	for _, name := range []string{HeaderKey, "Authorization", "Proxy-Authorization", HeaderAuthorization, "Cookie"} {
		h.Del(name)
	}
	if p.isAgent() {
		h.Set(HeaderKey, p.grant.key)
		return
	}
	if own != "" {
		h.Set("Authorization", own)
	}
	cookies := ""
	if p.isHostsPage() {
		cookies = ownCookies(p.r.Cookies(), p.isSecure())
	}
	if p.grant.port == PortVSCode {
		if cookies != "" {
			cookies = "; " + cookies
		}
		cookies = vscodeCookie + "=" + p.grant.key + cookies
	}
	if cookies != "" {
		h.Set("Cookie", cookies)
	}
}
