package httpapi

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"

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
				r, _ := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, "https://"+address+path, nil)
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
