package httpapi

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"bivouac.dev/bivouac/fsm"
)

// pathDoor is where the door is on the API's own address. It is no route: what
// comes behind is the sandbox's.
const pathDoor = "/sandboxes/"

// links builds the URLs by which the sender of one request reaches sandboxes.
type links struct {
	server *Server
	// base is the API as the client reaches it: scheme and host only.
	base url.URL
}

// linksFor gives the links for the answer to r.
func (s *Server) linksFor(r *http.Request) links {
	if s.cfg.Door.PublicURL != "" {
		if u, err := url.Parse(s.cfg.Door.PublicURL); err == nil {
			return links{s, url.URL{Scheme: u.Scheme, Host: u.Host}}
		}
	}
	return links{s, s.seenAs(r)}
}

// seenAs is the scheme and host the client used, as far as it can be known:
// what trusted proxies say, else what arrived here.
func (s *Server) seenAs(r *http.Request) url.URL {
	base := url.URL{Scheme: "http", Host: r.Host}
	if r.TLS != nil {
		base.Scheme = "https"
	}
	if peer, _, err := net.SplitHostPort(r.RemoteAddr); err == nil && s.trusted(peer) {
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

// lastOf gives the last element of a list header: the one the nearest proxy
// added.
func lastOf(h http.Header, name string) string {
	all := strings.Split(strings.Join(h.Values(name), ","), ",")
	return strings.TrimSpace(all[len(all)-1])
}

// port is how clients reach a port of a sandbox, without a slash at the end. A
// direct URL (not through the door) needs the sandbox to be placed.
func (l links) port(row *fsm.Sandbox, name string) string {
	if l.server.cfg.SandboxURL != SandboxURLDoor {
		return l.direct(row, name)
	}
	return l.door(row.ID, name)
}

// door is the URL of a sandbox's port at the door.
func (l links) door(id, name string) string {
	if domain := l.server.cfg.Door.Domain; domain != "" {
		host := hostName(name) + "-" + strings.ToLower(id) + "." + domain
		if port := l.base.Port(); port != "" {
			host = net.JoinHostPort(host, port)
		}
		return (&url.URL{Scheme: l.base.Scheme, Host: host}).String()
	}
	return l.base.String() + pathDoor + id + "/" + name
}

// hostName is a port's name as a host name has it.
func hostName(name string) string {
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

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
		"{name}", hostName(name),
	).Replace(l.server.cfg.SandboxURL), "/")
}

// agent is what a start task shows of its sandbox's agent server; stored is the
// address our own nodes use.
func (l links) agent(sandbox, stored string) string {
	if stored == "" || sandbox == "" || l.server.cfg.SandboxURL != SandboxURLDoor {
		return stored
	}
	return l.door(sandbox, fsm.PortAgentServer)
}
