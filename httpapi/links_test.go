package httpapi

import (
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

func TestLinks(t *testing.T) {
	h, _ := newProxyHarness(t)
	row := h.row()
	for name, c := range map[string]struct {
		change  func(*Config)
		peer    string
		headers []string
		want    string
	}{
		"as it came": {want: "http://example.org/sandboxes/" + h.id + "/WORKER_1"},
		"untrusted peer": {
			headers: []string{"X-Forwarded-Host", "evil.org", "X-Forwarded-Proto", "https"},
			want:    "http://example.org/sandboxes/" + h.id + "/WORKER_1",
		},
		"trusted peer": {change: func(c *Config) {
			c.TrustedProxies = []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/8"),
			}
		}, peer: "10.1.1.1:1",
			headers: []string{
				"X-Forwarded-Host",
				"evil.org, api.example.org",
				"X-Forwarded-Proto",
				"https",
			}, want: "https://api.example.org/sandboxes/" + h.id + "/WORKER_1"},
		"trusted, odd": {change: func(c *Config) {
			c.TrustedProxies = []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/8"),
			}
		}, peer: "10.1.1.1:1",
			headers: []string{
				"X-Forwarded-Host",
				"a/b@c",
				"X-Forwarded-Proto",
				"gopher",
			}, want: "http://localhost/sandboxes/" + h.id + "/WORKER_1"},
		"configured": {
			change: func(c *Config) { c.Proxy.PublicURL = "https://api.example.org:8443/" },
			want:   "https://api.example.org:8443/sandboxes/" + h.id + "/WORKER_1",
		},
		"domain": {
			change: func(c *Config) {
				c.Proxy.PublicURL, c.Proxy.Domain = "https://api.example.org:8443", "box.example.org"
			},
			want: "https://worker-1-" + strings.ToLower(h.id) + ".box.example.org:8443"},
		"direct": {
			change: func(c *Config) { c.SandboxURL = "http://{address}:{port}/" },
			want:   "http://127.0.0.1:" + itoa(h.ports["WORKER_1"]),
		},
	} {
		t.Run(name, func(t *testing.T) {
			change := c.change
			if change == nil {
				change = func(*Config) {}
			}
			s := newHarness(t, change).server
			r := httptest.NewRequest("GET", "http://example.org/", nil)
			if c.peer != "" {
				r.RemoteAddr = c.peer
			}
			for i := 0; i < len(c.headers); i += 2 {
				r.Header.Set(c.headers[i], c.headers[i+1])
			}
			if got := s.linksFor(r).port(row, "WORKER_1"); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
