package httpapi

import (
	"net/http"
	"net/url"

	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/page"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// serveDocs handles GET /docs: the page that shows the API's description, where the node has one.
func (s *Server) serveDocs(w http.ResponseWriter, r *http.Request) {
	there := false
	if s.cfg.Page != nil {
		_, there = s.cfg.Page.Find("/" + page.Docs)
	}
	if !there {
		err := response.Error(http.StatusNotFound,
			"This node serves no web page, which this belongs to (ui {}): GET /openapi.json is the description.")
		response.FailureOf(err, response.FormatDetail, "").Write(w)
		return
	}
	s.serveFile(w, r, page.Docs)
}

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
	s.serveFile(w, r, name)
	return true
}

// serveFile serves a file of the web page.
func (s *Server) serveFile(w http.ResponseWriter, r *http.Request, name string) {
	hosts := url.URL{}
	if s.cfg.SandboxURL == SandboxURLProxy {
		hosts = s.cfg.Proxy.Hosts(s.cfg.Proxy.Base(s.seenAs(r)))
	}
	info := request.InfoOf(r.Context())
	info.Route = routePage
	// Nobody judges a key or session that a file is asked for with: it would let a flood pass.
	if !info.Counted {
		info.Counted = true
		if err := s.count(r.Context(), limits.Client{Address: info.Address}); err != nil {
			response.FailureOf(err, response.FormatDetail, "").Write(w)
			return
		}
	}
	info.Err = s.cfg.Page.Serve(w, r, name, hosts)
}
