package httpapi

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/httpapi/proxy"
)

// TestServer_DrainClosesConnectionsWithTheirAnswers: a draining node serves on, is not ready, and
// ends each connection with its next answer, by a header or GOAWAY.
func TestServer_DrainClosesConnectionsWithTheirAnswers(t *testing.T) {
	for name, set := range map[string]func(*http.Protocols){
		"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"HTTP/2":   func(p *http.Protocols) { p.SetHTTP2(true) },
	} {
		t.Run(name, func(t *testing.T) {
			pair := httptest.NewUnstartedServer(nil)
			pair.StartTLS()
			defer pair.Close()
			h := newHarness(t, func(c *Config) {
				c.TLS = &tls.Config{Certificates: pair.TLS.Certificates, MinVersion: tls.VersionTLS12}
			})
			address, stop := served(t, h)
			protocols := new(http.Protocols)
			set(protocols)
			trusted := pair.Client().Transport.(*http.Transport).TLSClientConfig
			client := &http.Client{Transport: &http.Transport{
				Protocols:       protocols,
				TLSClientConfig: &tls.Config{RootCAs: trusted.RootCAs, ServerName: "example.com"},
			}}
			ask := func(path string, want int) (reused bool) {
				t.Helper()
				trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }}
				r, _ := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet,
					"https://"+address+path, nil)
				res, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode != want {
					t.Errorf("%s answers %d", path, res.StatusCode)
				}
				return reused
			}
			ask("/alive", http.StatusOK)
			if !ask("/ready", http.StatusOK) {
				t.Error("a node that does not drain closes its connections")
			}
			h.server.Drain()
			ask("/ready", http.StatusServiceUnavailable)
			for _, path := range []string{"/alive", "/health"} {
				if ask(path, http.StatusOK) {
					t.Errorf("%s came over a connection that should have been closed", path)
				}
			}
			ask("/ready?refuse=404", http.StatusNotFound)
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestServer_ReadyForWhat: each mode asks for what its requests need.
func TestServer_ReadyForWhat(t *testing.T) {
	h := newHarness(t)
	noLeader, behind := errors.New("no leader is known"), errors.New("the store is still catching up")
	for name, c := range map[string]struct {
		ready, stale        error
		silence             time.Duration
		write, reads, proxy int
	}{
		"all is well":              {nil, nil, 0, 200, 200, 200},
		"an election":              {nil, nil, time.Second, 200, 200, 200},
		"no leader":                {noLeader, nil, 3 * time.Second, 503, 200, 200},
		"no leader for long":       {noLeader, nil, 6 * time.Second, 503, 200, 503},
		"the store is behind":      {behind, behind, 0, 503, 503, 503},
		"the disk does not answer": {errors.New("disk"), nil, 0, 503, 200, 200},
	} {
		h.cluster.set(func(f *fakeCluster) {
			f.readyErr, f.staleErr, f.contact = c.ready, c.stale, time.Now().Add(-c.silence)
		})
		for mode, want := range map[string]int{
			"":            c.write,
			"?mode=write": c.write,
			"?mode=stale": c.reads,
			"?mode=proxy": c.proxy,
		} {
			if got := h.do("", "GET", "/ready"+mode, "").status; got != want {
				t.Errorf("%s: /ready%s answers %d, want %d", name, mode, got, want)
			}
		}
		if got := h.do("", "GET", "/ready?mode=write&refuse=404", "").status; (got == 404) != (c.write == 503) {
			t.Errorf("%s: with refuse=404 it answers %d", name, got)
		}
	}
	h.do("", "GET", "/ready?mode=all", "").want(t, 422)
	h.do("", "GET", "/ready?refuse=200", "").want(t, 422)
}

// TestServer_DrainingNodeOpensStreams: until the listener closes, a load balancer may still send
// new streams.
func TestServer_DrainingNodeOpensStreams(t *testing.T) {
	h, behind := newProxyHarness(t)
	behind.serve(echoes)
	h.server.Drain()
	for port, path := range map[string]string{"AGENT_SERVER": eventSocket, "WORKER_1": "/"} {
		conn := h.mustDial(port, path, proxy.HeaderKey, h.key)
		if got := say(t, conn, "x"); got != "echo x" {
			t.Errorf("%s says %q", port, got)
		}
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}
}
