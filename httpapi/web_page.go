package httpapi

import (
	"net/http"
	"net/url"

	"bivouac.dev/bivouac/httpapi/request"
)

// servePage serves the web page: its files, and index.html for the paths that the page itself knows.
// It reports false, and writes nothing, for all others.
func (s *Server) servePage(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	name, found := s.cfg.Page.Find(r.URL.Path)
	if !found {
		return false
	}
	hosts := url.URL{}
	if s.cfg.SandboxURL == SandboxURLProxy {
		hosts = s.cfg.Proxy.Hosts(s.cfg.Proxy.Base(s.seenAs(r)))
	}
	info := request.InfoOf(r.Context())
	info.Route = routePage
	info.Err = s.cfg.Page.Serve(w, r, name, hosts)
	return true
}
