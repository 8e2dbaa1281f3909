package httpapi

import (
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/httpapi/places"
)

// Requests and connections after a Reload are bounded by its settings, those of a bad one by the old.
func TestServer_Reload_BoundsWhatComesNext(t *testing.T) {
	h := newHarness(t)
	address, _ := served(t, h)
	set := func(change func(*Reloadable)) {
		t.Helper()
		next := h.server.live.Load().Reloadable
		change(&next)
		if err := h.server.Reload(next); err != nil {
			t.Fatal(err)
		}
	}
	large := `{"language":"` + strings.Repeat("x", 3000) + `"}`
	status := func() int { return h.do(h.alice, http.MethodPost, "/api/settings", large).status }
	if got := status(); got == http.StatusRequestEntityTooLarge {
		t.Fatal(got)
	}
	set(func(r *Reloadable) { r.MaxBodyBytes = 2048 })
	if got := status(); got != http.StatusRequestEntityTooLarge {
		t.Errorf("a body above the new limit: %d", got)
	}

	forwarded := func() string {
		h.do(h.alice, http.MethodPost, "/api/settings", "{", "X-Forwarded-For", "198.51.100.9")
		lines := strings.Split(strings.TrimSpace(h.logs.String()), "\n")
		return lines[len(lines)-1]
	}
	if line := forwarded(); strings.Contains(line, "198.51.100.9") {
		t.Errorf("a proxy is trusted: %s", line)
	}
	set(func(r *Reloadable) { r.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} })
	if line := forwarded(); !strings.Contains(line, "198.51.100.9") {
		t.Errorf("the new proxy is not trusted: %s", line)
	}

	set(func(r *Reloadable) { r.MaxConnections, r.MaxConnectionsPerAddress = 2, 1 })
	h.busy("127.0.0.9", address)
	if got, _, err := exchangeOver(dialFrom(t, "127.0.0.9", address),
		"GET /server_info HTTP/1.1\r\nHost: x\r\n\r\n"); got != http.StatusServiceUnavailable || err != nil {
		t.Errorf("a second connection of an address: %d, %v", got, err)
	}
	set(func(r *Reloadable) { r.MaxConnectionsPerAddress = 0 })
	if got, _, err := exchangeOver(dialFrom(t, "127.0.0.9", address),
		"GET /alive HTTP/1.1\r\nHost: x\r\n\r\n"); got != http.StatusOK || err != nil {
		t.Errorf("a second connection without a limit: %d, %v", got, err)
	}

	before := h.server.live.Load()
	bad := before.Reloadable
	bad.MaxBodyBytes, bad.RatePerSecond = 1, 7
	if err := h.server.Reload(bad); err == nil || h.server.live.Load() != before {
		t.Errorf("a body limit of one byte: %v", err)
	}
}

// Reload beside requests and connections; the race detector looks on.
func TestServer_Reload_BesideRequests(t *testing.T) {
	h := newHarness(t)
	address, _ := served(t, h)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 25 {
				next := h.server.cfg.Reloadable()
				next.RatePerSecond, next.MaxConnections = float64(n*1000), 100+i
				if err := h.server.Reload(next); err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for range 25 {
				c := dialFrom(t, "127.0.0.1", address)
				if _, _, err := exchangeOver(c, "GET /server_info HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
					t.Error(err)
				}
				_ = c.Close()
			}
		})
	}
	all.Wait()
	if got, want := h.server.conns.Room.Limits(), (places.Limits{
		Total: h.server.live.Load().MaxConnections,
		Each:  512,
	}); got != want {
		t.Errorf("the connections have %+v, want %+v", got, want)
	}
}
