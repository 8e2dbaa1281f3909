package httpapi

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestMetrics_ListenerOfItsOwn: the metrics' listener serves them and nothing else, the API's does
// not have them any more, and silent connections keep no scraper out.
func TestMetrics_ListenerOfItsOwn(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.OwnMetrics = true })
	h.do("", "GET", "/metrics", "").want(t, 404)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.server.RunMetrics(ctx, l) }()
	ask := func(method, path string) (int, string) {
		t.Helper()
		r, err := http.NewRequest(method, "http://"+l.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	for range 3 * metricsConnections {
		silent, err := net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
	}
	if status, text := ask("GET", "/metrics"); status != 200 || !strings.Contains(text, "bivouac_http_connections ") {
		t.Errorf("%d %s", status, text)
	}
	for _, path := range []string{"/", "/alive", "/ready", "/api/settings", "/server_info", "/metrics/x"} {
		if status, _ := ask("GET", path); status != 404 {
			t.Errorf("%s: %d", path, status)
		}
	}
	if status, _ := ask("POST", "/metrics"); status != 405 {
		t.Errorf("POST: %d", status)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
