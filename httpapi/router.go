package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/julienschmidt/httprouter"
)

// access is who may call a route.
type access int

const (
	// open routes need no key.
	open access = iota
	// user routes need any key that is not revoked.
	user
	// operator routes need an operator's key; others get 403.
	operator
	// sandboxKey routes need the key of the sandbox in the path, which their
	// handlers check.
	sandboxKey
)

// route is one line of the route table.
type route struct {
	// name is for people and metrics: "sandbox.pause".
	name   string
	method string
	// path is exact, or a pattern of httprouter's.
	path   string
	access access
	shape  shape
	// internal is what a 500 says, "" for "Internal Server Error".
	internal string
	handle   func(*Server, *call) (answer, error)
	// upload: the handler reads the body itself, which MaxBodyBytes does not
	// bound.
	upload bool
	// serve is used instead of handle by the few routes that answer no JSON.
	serve func(*Server, http.ResponseWriter, *http.Request)
}

// label is how access log and metrics name the route's path.
func (r *route) label() string { return r.path }

// router finds the route of a request. Exact paths are looked up first,
// because httprouter can't hold "/x/:id" beside "/x/search"; the patterned ones
// are httprouter's. It redirects one thing only: a path that is one but for a
// slash at its end.
type router struct {
	server   *Server
	exact    map[string]map[string]*route
	patterns *httprouter.Router
	methods  []string
}

// patternHit carries the route out of httprouter's Lookup.
type patternHit struct{ route *route }

func newRouter(s *Server, table []route) *router {
	rt := &router{server: s, exact: map[string]map[string]*route{}, patterns: httprouter.New()}
	rt.patterns.RedirectTrailingSlash = false
	rt.patterns.RedirectFixedPath = false
	for i := range table {
		r := &table[i]
		if !slices.Contains(rt.methods, r.method) {
			rt.methods = append(rt.methods, r.method)
		}
		if strings.ContainsAny(r.path, ":*") {
			rt.patterns.Handle(r.method, r.path, r.hit)
			continue
		}
		if rt.exact[r.path] == nil {
			rt.exact[r.path] = map[string]*route{}
		}
		rt.exact[r.path][r.method] = r
	}
	slices.Sort(rt.methods)
	return rt
}

// hit is the handle under which a patterned route is registered. lookup calls
// it with a *patternHit for a writer, which is how it learns the route.
func (r *route) hit(w http.ResponseWriter, _ *http.Request, _ httprouter.Params) {
	if h, ok := w.(*patternHit); ok {
		h.route = r
	}
}

// Header, Write and WriteHeader make patternHit a ResponseWriter; nothing calls
// them.
func (*patternHit) Header() http.Header         { return nil }
func (*patternHit) Write(b []byte) (int, error) { return len(b), nil }
func (*patternHit) WriteHeader(int)             {}

// lookup gives the route for method and path, nil when there is none.
func (rt *router) lookup(method, path string) (*route, httprouter.Params) {
	if r := rt.exact[path][method]; r != nil {
		return r, nil
	}
	if path == "" || path[0] != '/' {
		return nil, nil
	}
	handle, params, _ := rt.patterns.Lookup(method, path)
	if handle == nil {
		return nil, nil
	}
	var hit patternHit
	handle(&hit, nil, nil)
	for _, p := range params {
		if p.Value == "" || p.Value == "/" {
			return nil, nil
		}
	}
	return hit.route, params
}

// allowed gives the methods a path can be called with, none for an unknown
// path.
func (rt *router) allowed(path string) []string {
	var out []string
	for _, m := range rt.methods {
		if r, _ := rt.lookup(m, path); r != nil {
			out = append(out, m)
			if m == http.MethodGet && r.access == open {
				out = append(out, http.MethodHead)
			}
		}
	}
	return out
}

// ServeHTTP implements http.Handler.
func (rt *router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		// Load balancers ask the health routes this way.
		method = http.MethodGet
	}
	found, params := rt.lookup(method, r.URL.Path)
	if found != nil && (r.Method != http.MethodHead || found.access == open) {
		rt.server.dispatch(found, params, w, r)
		return
	}
	allowed := rt.allowed(r.URL.Path)
	switch {
	case len(allowed) == 0 && rt.redirect(w, r):
	case len(allowed) == 0:
		failureOf(errNotFound(), shapeDetail, "").write(w)
	case r.Method == http.MethodOptions:
		w.Header().Set("Allow", strings.Join(append(allowed, http.MethodOptions), ", "))
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		failureOf(refuse(http.StatusMethodNotAllowed, "Method Not Allowed"), shapeDetail, "").write(w)
	}
}

// redirect sends a path that is none to the one without the slash at its end,
// as FastAPI does for published clients that write it. Method, body and query
// stay (307). It reports false, and writes nothing, when there is no such path.
func (rt *router) redirect(w http.ResponseWriter, r *http.Request) bool {
	path, slash := strings.CutSuffix(r.URL.EscapedPath(), "/")
	if !slash || len(rt.allowed(strings.TrimSuffix(r.URL.Path, "/"))) == 0 {
		return false
	}
	if r.URL.RawQuery != "" {
		path += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", path)
	w.WriteHeader(http.StatusTemporaryRedirect)
	return true
}
