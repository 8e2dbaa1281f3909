package testcluster

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// Destruction is one call of a node to Nomad or Vault that can't be undone, or not by itself.
type Destruction struct {
	At time.Time
	// What is "purge", "volume", "delete" (a version, which can be undeleted) or "destroy".
	What string
	// Thing is the job, the volume's name or the path below the mount.
	Thing string
	// Status is the response's status, 0 without a response.
	Status int
}

// String formats it for a failure's message.
func (d Destruction) String() string {
	return fmt.Sprintf("%s %s of %s (%d)", d.At.Format("15:04:05.000"), d.What, d.Thing, d.Status)
}

// Ledger proxies the nodes' requests to Nomad and Vault and records what they destroy.
type Ledger struct {
	mu   sync.Mutex
	list []Destruction
}

// Destroyed returns every destruction so far, unless its response says that it was not carried
// out.
func (l *Ledger) Destroyed() (list []Destruction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.list {
		if d.Status/100 != 4 {
			list = append(list, d)
		}
	}
	return list
}

// stand starts a proxy for the server at target and returns its URL. It ends with the test.
func (l *Ledger) stand(t testing.TB, target string) string {
	t.Helper()
	to, err := url.Parse(target)
	must(t, err)
	address := freeAddress(t)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	// A stopped server sends no response; the default 502 would be one.
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	server := &http.Server{Addr: address, ErrorLog: proxy.ErrorLog,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			what, thing := destroys(r)
			if what == "" {
				proxy.ServeHTTP(w, r)
				return
			}
			d := Destruction{At: time.Now(), What: what, Thing: thing}
			if what == "volume" {
				d.Thing = volumeName(to, thing)
			}
			seen := &statusWriter{ResponseWriter: w}
			defer func() {
				d.Status = seen.status
				l.mu.Lock()
				defer l.mu.Unlock()
				l.list = append(l.list, d)
			}()
			proxy.ServeHTTP(seen, r)
		})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.ListenAndServe()
	}()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	return "http://" + address
}

// volumeName asks Nomad for a volume's name. Without one it returns the id.
func volumeName(nomad *url.URL, id string) string {
	var volume struct{ Name string }
	c := Client{Base: nomad.String()}
	if c.Get("/v1/volume/host/"+id, &volume) == nil && volume.Name != "" {
		return volume.Name
	}
	return id
}

// statusWriter records a response's status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

var (
	jobPath    = regexp.MustCompile(`^/v1/job/([^/]+)$`)
	volumePath = regexp.MustCompile(`^/v1/volume/host/([^/]+)(/delete)?$`)
	kvPath     = regexp.MustCompile(`^/v1/[^/]+/(data|metadata|delete|destroy)/(.+)$`)
)

// destroys says what a request would destroy, "" for nothing.
func destroys(r *http.Request) (what, thing string) {
	if m := jobPath.FindStringSubmatch(r.URL.Path); m != nil && r.Method == http.MethodDelete &&
		r.URL.Query().Get("purge") == "true" {
		return "purge", m[1]
	}
	if m := volumePath.FindStringSubmatch(r.URL.Path); m != nil && r.Method == http.MethodDelete {
		return "volume", m[1]
	}
	m := kvPath.FindStringSubmatch(r.URL.Path)
	if m == nil || strings.HasPrefix(r.URL.Path, "/v1/sys/") || strings.HasPrefix(r.URL.Path, "/v1/auth/") {
		return "", ""
	}
	switch {
	case m[1] == "destroy", m[1] == "metadata" && r.Method == http.MethodDelete:
		return "destroy", m[2]
	case m[1] == "delete", m[1] == "data" && r.Method == http.MethodDelete:
		return "delete", m[2]
	}
	return "", ""
}
