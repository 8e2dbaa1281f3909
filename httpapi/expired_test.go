package httpapi

import (
	"testing"
	"time"
)

// An expired certificate shows in /ready, and does not make the node unready: what it serves, it
// serves.
func TestReady_NamesExpiredCertificates(t *testing.T) {
	for names, want := range map[string][]string{"": nil, "peer": {"peer"}, "peer, http": {"peer", "http"}} {
		h := newHarness(t, func(c *Config) { c.Expired = func(time.Time) []string { return want } })
		if got := h.do("", "GET", "/ready", "").want(t, 200).header.Get("X-Bivouac-Expired"); got != names {
			t.Errorf("X-Bivouac-Expired: %q, want %q", got, names)
		}
	}
}
