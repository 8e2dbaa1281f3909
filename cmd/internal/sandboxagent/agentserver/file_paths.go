package agentserver

import (
	"net/http"
	"net/url"
	"strings"
)

// pathStyle turns the older form of a request, with the path in the URL, into the present one, with
// it in the query: /api/file/upload//a/b is /api/file/upload?path=/a/b. The mux would redirect the
// two slashes.
func pathStyle(r *http.Request) *http.Request {
	for _, prefix := range []string{"/api/file/upload/", "/api/file/download/", "/api/git/changes/", "/api/git/diff/"} {
		rest, ok := strings.CutPrefix(r.URL.Path, prefix)
		if !ok {
			continue
		}
		q := r.URL.Query()
		q.Set("path", "/"+strings.TrimLeft(rest, "/"))
		out := r.Clone(r.Context())
		out.URL = &url.URL{Path: strings.TrimSuffix(prefix, "/"), RawQuery: q.Encode()}
		return out
	}
	return r
}

// ownPath is Config.InWorkspace for the path in a request's query.
func (s *Server) ownPath(r *http.Request) *http.Request {
	if !strings.HasPrefix(r.URL.Path, "/api/file/") && !strings.HasPrefix(r.URL.Path, "/api/git/") {
		return r
	}
	q := r.URL.Query()
	own := s.cfg.InWorkspace(q.Get("path"))
	if own == q.Get("path") {
		return r
	}
	q.Set("path", own)
	out := r.Clone(r.Context())
	out.URL.RawQuery = q.Encode()
	return out
}
