package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestHealth(t *testing.T) {
	h := newHarness(t)
	h.do("", "GET", "/alive", "").want(t, 200).is(t, `{"status":"ok"}`)
	if got := h.do("", "GET", "/health", "").want(t, 200); string(got.body) != `"OK"` {
		t.Errorf("health %s", got.body)
	}
	if got := h.do("", "GET", "/ready", "").want(t, 200); string(got.body) != `"OK"` {
		t.Errorf("ready %s", got.body)
	}
	h.cluster.set(func(c *fakeCluster) { c.readyErr = errors.New("no leader known") })
	h.do("", "GET", "/ready", "").want(t, 503).is(t, `{"detail":"no leader known"}`)
	h.do("", "GET", "/alive", "").want(t, 200)
	var info map[string]any
	h.do("", "GET", "/server_info", "").want(t, 200).json(t, &info)
	res, _ := info["resources"].(map[string]any)
	mem, _ := res["memory"].(map[string]any)
	disk, _ := res["disk"].(map[string]any)
	if rss, _ := mem["rss"].(float64); rss <= 0 {
		t.Errorf("memory %v", mem)
	}
	if total, _ := disk["total"].(float64); total <= 0 || res["io"] == nil || info["uptime"] == nil ||
		info["idle_time"] == nil {
		t.Errorf("server_info %v", info)
	}
}

func TestServer_RunServesAndDrains(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	h := newHarness(t)
	entered, release := make(chan struct{}), make(chan struct{})
	h.server.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(entered)
			<-release
		}
		_, _ = io.WriteString(w, "done")
	})
	a, b := listen(t), listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.server.Run(ctx, a, b) }()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for _, l := range []net.Listener{a, b} {
		res, err := client.Get("http://" + l.Addr().String() + "/x")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	slow := make(chan string, 1)
	go func() {
		res, err := client.Get("http://" + a.Addr().String() + "/slow")
		if err != nil {
			slow <- err.Error()
			return
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		slow <- string(body)
	}()
	<-entered
	cancel()
	// The listener closes while the slow request is in progress.
	for {
		c, err := net.Dial("tcp", a.Addr().String())
		if err != nil {
			break
		}
		c.Close()
	}
	if !h.server.draining.Load() {
		t.Error("/ready does not know of the end")
	}
	close(release)
	if got := <-slow; got != "done" {
		t.Fatalf("the request in progress got %q", got)
	}
	if err := <-done; err != nil {
		t.Fatalf("Run: %v", err)
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestServer_RunFailsWithItsListener(t *testing.T) {
	h := newHarness(t)
	l := listen(t)
	l.Close()
	if err := h.server.Run(t.Context(), l); err == nil {
		t.Fatal("Run on a closed listener gave no error")
	}
}

func TestServer_TLSAndHeaderLimit(t *testing.T) {
	pair := httptest.NewUnstartedServer(nil)
	pair.StartTLS()
	defer pair.Close()
	h := newHarness(t, func(c *Config) {
		c.TLS = &tls.Config{Certificates: pair.TLS.Certificates, MinVersion: tls.VersionTLS12}
		c.MaxHeaderBytes = 4096
	})
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.server.Run(ctx, l) }()
	client := pair.Client()
	// httptest's certificate is for example.com.
	client.Transport.(*http.Transport).TLSClientConfig.ServerName = "example.com"
	res, err := client.Get("https://" + l.Addr().String() + "/health")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 200 {
		t.Fatalf("status %d", res.StatusCode)
	}
	req, _ := http.NewRequest("GET", "https://"+l.Addr().String()+"/health", nil)
	req.Header.Set("X-Long", strings.Repeat("x", 64<<10))
	if res, err := client.Do(req); err == nil {
		res.Body.Close()
		if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Fatalf("status %d", res.StatusCode)
		}
	}
	client.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestConfig_Validate(t *testing.T) {
	good := DefaultConfig()
	registry := prometheus.NewRegistry()
	good.Logger, good.Registerer, good.Gatherer = slog.New(slog.DiscardHandler), registry, registry
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"RequestTimeout": func(c *Config) { c.RequestTimeout = 0 }, "MaxBodyBytes": func(c *Config) { c.MaxBodyBytes = 1 },
		"MaxHeaderBytes": func(c *Config) { c.MaxHeaderBytes = 1 },
		"WriteTimeout":   func(c *Config) { c.WriteTimeout = c.RequestTimeout },
		"RatePerSecond":  func(c *Config) { c.RatePerSecond = -1 }, "SandboxURL": func(c *Config) { c.SandboxURL = "x" },
		"Logger": func(c *Config) { c.Logger = nil }, "Registerer": func(c *Config) { c.Registerer = nil },
		"Git.Schemes": func(c *Config) { c.Git.Schemes = []string{"ftp"} },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if _, err := New(c, nil, nil, nil); err == nil {
			t.Errorf("New took a bad %s", want)
		}
	}
}
