package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/julienschmidt/httprouter"

	"bivouac.dev/bivouac/httpapi/response"
)

// access is the credential that a route requires.
type access int

const (
	// open routes need no key.
	open access = iota
	// user routes need any key that is not revoked.
	user
	// operator routes need an operator's key; other keys get 403.
	operator
	// sandboxKey routes need the key of the sandbox in the path. Their handlers check it.
	sandboxKey
	// signIn routes need no key. Their handlers judge a key, a code or a cookie, and the origin.
	signIn
)

// handler serves a request of a route.
type handler func(*Server, *call) (response.Response, error)

// route is one line of the route table.
type route struct {
	// name is the route's short name for tests: "sandbox.pause". It is unique.
	name   string
	method string
	// path is an exact path or an httprouter pattern. The access log and metrics name the route by it.
	path   string
	access access
	format response.Format
	// internal is the text of a 500, "" for "Internal Server Error".
	internal string
	handle   handler
	// members are all that the body of an operator's route may have; none is a route without a body.
	// A misspelt or unknown member is 422: an operator who asks for less must not get more.
	members []string
	// direct routes are for those who reach the node itself. Through a load balancer they are 404.
	direct bool
	// upload routes read the body themselves; MaxBodyBytes does not apply.
	upload bool
	// fallback routes have what no other route of their pattern has: "/x/:id" beside "/x/search".
	fallback bool
	// most is how many bytes a body may have at least, whatever MaxBodyBytes says.
	most int64
	// serve replaces handle for routes that do not return JSON.
	serve func(*Server, http.ResponseWriter, *http.Request)
}

// router finds the route of a request. It looks up exact paths first, because httprouter does not
// allow "/x/:id" next to "/x/search"; httprouter matches the patterns. Only a trailing slash is
// redirected.
type router struct {
	// exact has the routes without a pattern, by path and method.
	exact map[string]map[string]found
	// fallbacks are asked after patterns.
	patterns, fallbacks *httprouter.Router
	methods             []string
	// other serves what no route has, and reports false if it is not there either; nil for nothing.
	other func(http.ResponseWriter, *http.Request) bool
}

// found is a route that a request has found.
type found struct {
	serve httprouter.Handle
	// open is set for routes that need no key. Their paths are exact.
	open bool
}

// dispatchFunc serves a request of a route.
type dispatchFunc func(*route, httprouter.Params, http.ResponseWriter, *http.Request)

func newRouter(dispatch dispatchFunc, table []route) *router {
	rt := &router{exact: map[string]map[string]found{}, patterns: httprouter.New(), fallbacks: httprouter.New()}
	for i := range table {
		r := &table[i]
		serve := func(w http.ResponseWriter, req *http.Request, params httprouter.Params) { dispatch(r, params, w, req) }
		if !slices.Contains(rt.methods, r.method) {
			rt.methods = append(rt.methods, r.method)
		}
		if r.fallback {
			rt.fallbacks.Handle(r.method, r.path, serve)
			continue
		}
		if strings.ContainsAny(r.path, ":*") {
			rt.patterns.Handle(r.method, r.path, serve)
			continue
		}
		if rt.exact[r.path] == nil {
			rt.exact[r.path] = map[string]found{}
		}
		rt.exact[r.path][r.method] = found{serve: serve, open: r.access == open}
	}
	slices.Sort(rt.methods)
	return rt
}

// lookup returns the route for a method and path; its serve is nil if there is none.
func (rt *router) lookup(method, path string) (found, httprouter.Params) {
	if f, ok := rt.exact[path][method]; ok {
		return f, nil
	}
	if path == "" || path[0] != '/' {
		return found{}, nil
	}
	serve, params, _ := rt.patterns.Lookup(method, path)
	if serve == nil {
		serve, params, _ = rt.fallbacks.Lookup(method, path)
	}
	for _, p := range params {
		if p.Value == "" || p.Value == "/" {
			return found{}, nil
		}
	}
	return found{serve: serve}, params
}

// allowed returns the methods of a path, none for an unknown path.
func (rt *router) allowed(path string) []string {
	var out []string
	for _, m := range rt.methods {
		if f, _ := rt.lookup(m, path); f.serve != nil {
			out = append(out, m)
			if m == http.MethodGet && f.open {
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
		// Load balancers send HEAD to the health routes.
		method = http.MethodGet
	}
	f, params := rt.lookup(method, r.URL.Path)
	if f.serve != nil && (r.Method != http.MethodHead || f.open) {
		f.serve(w, r, params)
		return
	}
	allowed := rt.allowed(r.URL.Path)
	switch {
	case len(allowed) == 0 && rt.redirect(w, r):
	case len(allowed) == 0 && rt.other != nil && rt.other(w, r):
	case len(allowed) == 0:
		response.FailureOf(response.NotFound(), response.FormatDetail, "").Write(w)
	case r.Method == http.MethodOptions:
		w.Header().Set("Allow", strings.Join(append(allowed, http.MethodOptions), ", "))
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		response.FailureOf(response.Error(http.StatusMethodNotAllowed, "Method Not Allowed"), response.FormatDetail,
			"").Write(w)
	}
}

// redirect sends an unknown path with a trailing slash to the path without it, as FastAPI does:
// published clients rely on it. 307 keeps method and body. It reports false, and writes nothing, if
// that path is unknown too.
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
