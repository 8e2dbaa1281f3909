package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/places"
)

// served runs the server on its own port and returns its address. stop ends it and returns Run's
// error.
func served(t *testing.T, h *harness) (address string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.server.Run(ctx, l) }()
	ended := false
	stop = func() error { cancel(); ended = true; return <-done }
	t.Cleanup(func() {
		if !ended {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
	return l.Addr().String(), stop
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// exchangeOver sends one request over a connection and reads the response.
func exchangeOver(c net.Conn, request string) (status int, body string, err error) {
	if _, err := io.WriteString(c, request); err != nil {
		return 0, "", err
	}
	reply, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	return reply.StatusCode, string(text), err
}

const aliveRequest = "GET /alive HTTP/1.1\r\nHost: x\r\n\r\n"

// settingsRequest is a request with a body, up to where the body begins.
func settingsRequest(key string) string {
	return "POST /api/settings HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key +
		"\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
}

// dialFrom connects from an address of this machine.
func dialFrom(t *testing.T, from, address string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// busy opens a connection whose request is in progress: the body is missing. Call finish on it.
func (h *harness) busy(from, address string) net.Conn {
	h.t.Helper()
	before := h.inUse()
	c := dialFrom(h.t, from, address)
	if _, err := io.WriteString(c, settingsRequest(h.alice)); err != nil {
		h.t.Fatal(err)
	}
	until(h.t, "the request is in progress", func() bool { return h.inUse() > before })
	return c
}

// inUse counts the connections with a request in progress, or served, that had a good key.
func (h *harness) inUse() int {
	h.server.reloading.Lock()
	defer h.server.reloading.Unlock()
	if h.server.conns == nil {
		return 0 // Run has not begun
	}
	return h.server.conns.Room.Open() - len(h.server.conns.Room.Unauthenticated())
}

func (h *harness) metricValue(name string) float64 {
	h.t.Helper()
	families, err := h.server.cfg.Gatherer.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return 0
}

// Silent connections of one address, however many, and of all addresses, give way to new ones.
func TestServer_SilentConnectionsGiveWay(t *testing.T) {
	const total, each = 12, 4
	h := newHarness(t, func(c *Config) { c.MaxConnections, c.MaxConnectionsPerAddress = total, each })
	address, _ := served(t, h)
	reads := "GET /api/v1/sandboxes/search HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + h.alice + "\r\n\r\n"
	kept := dialFrom(t, "127.0.0.9", address)
	if status, _, err := exchangeOver(kept, reads); status != http.StatusOK || err != nil {
		t.Fatal(status, err)
	}
	asked := func(from string) {
		t.Helper()
		if status, body, err := exchangeOver(dialFrom(t, from, address), reads); status != http.StatusOK || err != nil {
			t.Fatalf("from %s: %d %s, %v", from, status, body, err)
		}
	}
	first := dialFrom(t, "127.0.0.1", address)
	for range 5 * each {
		dialFrom(t, "127.0.0.1", address)
	}
	asked("127.0.0.2")
	asked("127.0.0.1")
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest silent connection: %v", err)
	}
	until(t, "the address has its share, beside the two others",
		func() bool { return h.metricValue("bivouac_http_connections") <= each+2 })
	for i := range 2 * total {
		dialFrom(t, fmt.Sprintf("127.0.1.%d", i+1), address)
	}
	until(t, "all addresses have the total", func() bool { return h.metricValue("bivouac_http_connections") <= total })
	asked("127.0.0.3")
	// What was used gives way after what was silent.
	if status, _, err := exchangeOver(kept, reads); status != http.StatusOK || err != nil {
		t.Errorf("a connection that was used: %d, %v", status, err)
	}
	if dropped := h.metricValue("bivouac_http_connections_dropped_total"); dropped < total {
		t.Errorf("%g are counted as dropped", dropped)
	}
}

// Requests in progress are never cut off for new ones. Above the limit, only health and metrics
// are served.
func TestServer_HealthHasPlacesOfItsOwn(t *testing.T) {
	for name, limit := range map[string]func(*Config){
		"all addresses": func(c *Config) { c.MaxConnections = 2 },
		"one address":   func(c *Config) { c.MaxConnectionsPerAddress = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, limit)
			address, _ := served(t, h)
			working := []net.Conn{h.busy("127.0.0.1", address), h.busy("127.0.0.1", address)}
			for _, path := range []string{"/alive", "/ready", "/metrics"} {
				c := dialFrom(t, "127.0.0.1", address)
				for range 2 {
					if status, _, err := exchangeOver(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); status != http.StatusOK ||
						err != nil {
						t.Errorf("%s: %d, %v", path, status, err)
					}
				}
			}
			for range 2 * limits.HealthPlaces {
				dialFrom(t, "127.0.0.1", address) // they push out one another, not health
			}
			if status, _, err := exchangeOver(dialFrom(t, "127.0.0.1", address), aliveRequest); status != http.StatusOK ||
				err != nil {
				t.Errorf("/alive: %d, %v", status, err)
			}
			c := dialFrom(t, "127.0.0.1", address)
			status, body, err := exchangeOver(c, settingsRequest(h.alice)+"{}")
			if status != http.StatusServiceUnavailable || !strings.Contains(body, limits.TooManyConnections) || err != nil {
				t.Errorf("above the limit: %d %q, %v", status, body, err)
			}
			if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the refused connection stays open: %d, %v", n, err)
			}
			for i, c := range working {
				if status, body, err := exchangeOver(c, "{}"); status != http.StatusOK || err != nil {
					t.Errorf("request %d in progress: %d %q, %v", i, status, body, err)
				}
			}
			until(t, "afterwards it is as before", func() bool {
				status, _, err := exchangeOver(dialFrom(t, "127.0.0.1", address), settingsRequest(h.alice)+"{}")
				return status == http.StatusOK && err == nil
			})
		})
	}
}

func TestServer_TrustedProxiesHaveNoShare(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.MaxConnectionsPerAddress = 1
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.8/32")}
	})
	address, _ := served(t, h)
	for i := range 3 {
		h.busy("127.0.0.8", address)
		if status, _, err := exchangeOver(dialFrom(t, "127.0.0.8", address),
			"GET /server_info HTTP/1.1\r\nHost: x\r\n\r\n"); status != http.StatusOK || err != nil {
			t.Errorf("connection %d: %d, %v", i, status, err)
		}
	}
}

// A trusted proxy has judged the form of a chunked request, so its connection goes on.
func TestServer_ChunksEndAConnectionUnlessTheProxyIsTrusted(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.8/32")} })
	address, _ := served(t, h)
	chunked := "POST /api/settings HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: " + h.alice +
		"\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
	for from, again := range map[string]int{"127.0.0.8": http.StatusOK, "127.0.0.9": 0} {
		conn := dialFrom(t, from, address)
		if status, body, err := exchangeOver(conn, chunked); status != http.StatusOK || err != nil {
			t.Fatalf("from %s: %d %s, %v", from, status, body, err)
		}
		if status, _, err := exchangeOver(conn, aliveRequest); status != again || (err == nil) != (again != 0) {
			t.Errorf("from %s the connection's next request: %d, %v", from, status, err)
		}
	}
}

// When the places for health are taken too, the connection itself is answered.
func TestServer_ConnectionsWithoutAPlaceAreRefused(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.MaxConnections = 1 })
	c := limits.NewConnections(h.server.cfg.places(), true, h.server.trusted, h.server.metrics.conns())
	for _, room := range []*places.Room{c.Room, c.Health} {
		for p := room.Take(netip.Prefix{}, func() {}); p != nil; p = room.Take(netip.Prefix{}, func() {}) {
			p.Set(places.Busy)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { _, _ = c.Listen(l).Accept() }()
	asked := dial(t, l.Addr().String())
	status, body, err := exchangeOver(asked, "")
	if status != http.StatusServiceUnavailable || !strings.Contains(body, limits.TooManyConnections) || err != nil {
		t.Fatalf("%d %q, %v", status, body, err)
	}
	if n, err := asked.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the refused connection stays open: %d, %v", n, err)
	}
}

// A connection without a request must not delay the shutdown: http.Server.Shutdown alone would wait
// five seconds for it.
func TestServer_StopsWithoutWaitingForConnectionsNothingWasAskedOver(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.DrainTimeout = 2 * time.Second })
	address, stop := served(t, h)
	silent := dial(t, address)
	// The silent connection was accepted before.
	if status, _, err := exchangeOver(dial(t, address), aliveRequest); status != http.StatusOK || err != nil {
		t.Fatal(status, err)
	}
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if n, err := silent.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the silent connection is open: %d, %v", n, err)
	}
}

// A client that sends its header or body too slowly, or does not read responses, loses its
// connection. The limit is one connection, so others can then connect.
func TestServer_SlowClientsAreCutOff(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.MaxConnections = 1
		c.ReadHeaderTimeout, c.ReadTimeout = 50*time.Millisecond, 100*time.Millisecond
		c.RequestTimeout, c.WriteTimeout = 100*time.Millisecond, 300*time.Millisecond
		c.IdleTimeout = 50 * time.Millisecond
	})
	address, _ := served(t, h)
	others := func(name string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; {
			c := dial(t, address)
			status, _, err := exchangeOver(c, "GET /server_info HTTP/1.1\r\nHost: x\r\n\r\n")
			_ = c.Close()
			if status == http.StatusOK && err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the connection is held: %d, %v", name, status, err)
			}
		}
	}
	put := "POST /api/settings HTTP/1.1\r\nHost: " +
		"x\r\nAuthorization: Bearer " + h.alice + "\r\nContent-Type: application/json\r\n"
	for name, begin := range map[string]string{
		"nothing": "", "half a header": put, "half a body": put + "Content-Length: 100\r\n\r\n{",
		"no end of a chunked body": put + "Transfer-Encoding: chunked\r\n\r\n5\r\n{",
	} {
		if _, err := io.WriteString(dial(t, address), begin); err != nil {
			t.Fatal(err)
		}
		others(name)
	}
	// Endless requests whose responses are never read.
	deaf := dial(t, address)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		request := strings.Repeat("GET /server_info HTTP/1.1\r\nHost: x\r\n\r\n", 1000)
		for {
			if _, err := io.WriteString(deaf, request); err != nil {
				return
			}
		}
	}()
	others("no answer read")
	_ = deaf.Close()
	<-asked
}

func TestFinish_ReadsThatWentWellAreOnlyDebug(t *testing.T) {
	for _, test := range []struct {
		method, route string
		status        int
		want          slog.Level
	}{
		{
			"GET",
			"/api/settings",
			200,
			slog.LevelDebug,
		}, {"HEAD", "/alive", 200, slog.LevelDebug}, {"GET", "/api/settings", 404, slog.LevelInfo},
		{
			"GET",
			"/api/settings",
			503,
			slog.LevelWarn,
		}, {"POST", "/api/settings", 200, slog.LevelInfo}, {"DELETE", "/x", 204, slog.LevelInfo},
		{
			"GET",
			"/ready",
			503,
			slog.LevelWarn,
		}, {"GET", "/sandboxes/:id", 101, slog.LevelInfo}, {"POST", "/api/settings", 500, slog.LevelWarn},
	} {
		if got := levelOf(test.method, test.route, test.status); got != test.want {
			t.Errorf("%s %s %d: %v, want %v", test.method, test.route, test.status, got, test.want)
		}
	}
}
