package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// checkHost answers 421 to a request for a name that is not this server's (Config.Hosts). A browser
// takes a page of another name that leads to this machine for the same origin.
func (s *Server) checkHost(next http.Handler) http.Handler {
	if s.cfg.Hosts == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := hostName(r.Host); !isLoopbackName(name) && !slices.Contains(s.cfg.Hosts, name) {
			request.InfoOf(r.Context()).Counted = true
			err := response.Error(http.StatusMisdirectedRequest,
				"This server has another name: use localhost, or let it answer this one (bivouac dev --allow-host)")
			response.FailureOf(err, response.FormatDetail, "").Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostName is the name in a Host header, in lower case and without the port.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// isLoopbackName reports whether a name always means the client's own machine.
func isLoopbackName(name string) bool {
	if addr, err := netip.ParseAddr(name); err == nil {
		return addr.Unmap().IsLoopback()
	}
	return name == proxy.DomainLocal || strings.HasSuffix(name, "."+proxy.DomainLocal)
}
