package agentserver

import (
	"net/http"
	"slices"
	"strings"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
)

// router finds the route of a request. It tells methods apart itself, so that a wrong method gets a JSON
// error with Allow.
type router struct {
	mux *http.ServeMux
	// routes are the routes by path and method.
	routes map[string]map[string]route
}

// newRouter registers the rows of a table.
func newRouter(table []route) *router {
	rt := &router{mux: http.NewServeMux(), routes: map[string]map[string]route{}}
	for _, r := range table {
		if rt.routes[r.path] == nil {
			rt.routes[r.path] = map[string]route{}
		}
		rt.routes[r.path][r.method] = r
	}
	for path, methods := range rt.routes {
		allow := make([]string, 0, len(methods)+1)
		for m := range methods {
			allow = append(allow, m)
		}
		slices.Sort(allow)
		rt.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if h := methods[r.Method].handle; h != nil {
				h(w, r)
				return
			}
			w.Header().Set("Allow", strings.Join(allow, ", "))
			wire.WriteDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
		})
	}
	rt.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		wire.WriteDetail(w, http.StatusNotFound, "Not Found")
	})
	return rt
}

// find returns what a request needs: its route's row, or that of a request without a route.
func (rt *router) find(r *http.Request) route {
	_, path := rt.mux.Handler(r)
	if found, ok := rt.routes[path][r.Method]; ok {
		return found
	}
	below := strings.HasPrefix(r.URL.Path, "/api/")
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	return route{
		open: !below,
		idle: !below && !strings.HasPrefix(r.URL.Path, "/sockets/") ||
			safe && strings.HasPrefix(r.URL.Path+"/", "/api/conversations/"),
	}
}

// ServeHTTP implements http.Handler.
func (rt *router) ServeHTTP(w http.ResponseWriter, r *http.Request) { rt.mux.ServeHTTP(w, r) }
