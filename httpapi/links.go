package httpapi

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
)

// SandboxURLProxy is the Config.SandboxURL for reaching sandboxes through the nodes' sandbox proxy.
const SandboxURLProxy = "proxy"

// links builds the sandbox URLs in the response to one request.
type links struct {
	server *Server
	// base is the API's address as the client uses it: scheme and host only.
	base url.URL
	// read is set for the response to a read. The response to a write is repeated byte for byte, so
	// that it has no one-time codes.
	read bool
}

// linksFor returns the links for the response to r.
func (s *Server) linksFor(r *http.Request) links {
	return links{s, s.cfg.Proxy.Base(s.seenAs(r)), r.Method == http.MethodGet}
}

// seenAs returns the scheme and host that the client used: those that a trusted proxy reports,
// otherwise those of the request. An invalid host becomes localhost.
func (s *Server) seenAs(r *http.Request) url.URL {
	base := url.URL{Scheme: "http", Host: r.Host}
	if r.TLS != nil {
		base.Scheme = "https"
	}
	if s.fromTrusted(r) {
		if p := lastOf(r.Header, "X-Forwarded-Proto"); p == "http" || p == "https" {
			base.Scheme = p
		}
		if h := lastOf(r.Header, "X-Forwarded-Host"); h != "" {
			base.Host = h
		}
	}
	if u, err := url.Parse(base.String()); err != nil || u.Hostname() == "" || u.Host != base.Host {
		base.Host = "localhost"
	}
	return base
}

// lastOf returns the last element of a list header, which the nearest proxy added.
func lastOf(h http.Header, name string) string {
	all := strings.Split(strings.Join(h.Values(name), ","), ",")
	return strings.TrimSpace(all[len(all)-1])
}

// port is the client's URL of a sandbox's port, without a trailing slash. A direct URL needs a
// sandbox with a placement.
func (l links) port(row *fsm.Sandbox, name string) string {
	if l.server.cfg.SandboxURL != SandboxURLProxy {
		return l.direct(row, name)
	}
	return l.proxied(row.ID, name)
}

// page is the URL of a port that serves pages, with a one-time code while key is known. The editor's
// has its folder. A direct URL leads past the proxy, so that the editor's needs the key.
func (l links) page(row *fsm.Sandbox, name, key string) string {
	at, editor := l.port(row, name), name == proxy.PortVSCode
	folder := "folder=" + strings.ReplaceAll(url.QueryEscape(workingDir(row)), "%2F", "/")
	direct, code := l.server.cfg.SandboxURL != SandboxURLProxy, l.code(row, name, key)
	switch {
	case direct && editor:
		return at + "/?tkn=" + url.QueryEscape(key) + "&" + folder
	case direct:
		return at
	case editor:
		at += "/?" + folder
	case code != "":
		at += "/"
	}
	if code != "" {
		at += "#" + proxy.FragmentCode + "=" + code
	}
	return at
}

// code returns a one-time code for a port, "" where there is none: below protocol version 5 codes
// can't be used up.
func (l links) code(row *fsm.Sandbox, name, key string) string {
	v, err := l.server.cluster.View(context.Background(), cluster.Stale)
	if !l.read || key == "" || err != nil || !v.Active(fsm.VersionAccess) {
		return ""
	}
	return proxy.NewCode(key, row, name, time.Now())
}

// proxied is the URL of a sandbox's port at the sandbox proxy.
func (l links) proxied(id, name string) string { return l.server.cfg.Proxy.URL(l.base, id, name) }

func (l links) direct(row *fsm.Sandbox, name string) string {
	place := row.Status.Placement
	address := place.Address
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
	}
	return strings.TrimRight(strings.NewReplacer(
		"{address}", address,
		"{port}", strconv.Itoa(place.Ports[name]),
		"{sandbox}", strings.ToLower(row.ID),
		"{name}", proxy.HostName(name),
	).Replace(l.server.cfg.SandboxURL), "/")
}

// agent is the URL of an agent server as a start task shows it. stored is the address that the
// nodes use.
func (l links) agent(sandbox, stored string) string {
	if stored == "" || sandbox == "" || l.server.cfg.SandboxURL != SandboxURLProxy {
		return stored
	}
	return l.proxied(sandbox, fsm.PortAgentServer)
}
