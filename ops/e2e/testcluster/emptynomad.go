package testcluster

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// emptyNomad starts an HTTP server that responds like a Nomad without clients, jobs and
// volumes, and returns its address. It is for tests without sandboxes: rows of paused sandboxes
// stay paused.
func emptyNomad(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Nomad-Index", "1")
		switch {
		case r.Method != http.MethodGet:
			http.Error(w, "this Nomad starts nothing", http.StatusInternalServerError)
		case r.URL.Path == "/v1/event/stream":
			w.WriteHeader(http.StatusOK)
			if f, can := w.(http.Flusher); can {
				f.Flush()
			}
			<-r.Context().Done()
		case strings.HasPrefix(r.URL.Path, "/v1/job/"):
			http.Error(w, "job not found", http.StatusNotFound)
		default:
			_, _ = io.WriteString(w, "[]")
		}
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
}
