package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// Every response has a Content-Length, so that a keep-alive client needs no chunks.
func TestAnswers_TellTheirLength(t *testing.T) {
	h := newHarness(t)
	server := httptest.NewServer(h.handler)
	defer server.Close()
	for _, size := range []int{1, 500, 2048, 4096} {
		h.do(h.alice, "POST", "/api/settings", sprint(`{"agent":%q}`, strings.Repeat("a", size))).want(t, 200)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/api/settings", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Session-API-Key", h.alice)
		res, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK || res.ContentLength < int64(size) || len(res.TransferEncoding) > 0 {
			t.Errorf("%d: status %d, length %d, encoding %v", size, res.StatusCode, res.ContentLength, res.TransferEncoding)
		}
	}
}

// noLeader is a cluster whose linearizable reads wait until their limit.
type noLeader struct{ *fakeCluster }

// View implements Cluster.
func (c noLeader) View(ctx context.Context, consistency cluster.Consistency) (*fsm.View, error) {
	if consistency != cluster.Linearizable {
		return c.fakeCluster.View(ctx, consistency)
	}
	<-ctx.Done()
	return nil, fsm.Errorf(fsm.CodeNoLeader, "no leader answered the read in time")
}

// A RequestTimeout shorter than the read's own limit ends the read.
func TestReads_EndWithTheRequestsTime(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.RequestTimeout = 20 * time.Millisecond })
	h.server.calls.Cluster = noLeader{h.cluster}
	h.do(h.alice, "GET", "/api/settings", "").want(t, http.StatusServiceUnavailable)
	h.do(h.alice, "GET", "/api/settings?stale", "").want(t, http.StatusNotFound)
}
