package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/singleflight"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
)

// Limits of a health check, which needs no key.
const (
	healthTimeout = 5 * time.Second
	maxHealthBody = 4 << 10
)

// health queries agent servers for clients without a key; the agent server's health needs none
// either. Concurrent checks of a sandbox share one query.
type health struct {
	client *http.Client
	asked  singleflight.Group
}

func newHealth(transport http.RoundTripper) *health {
	return &health{client: &http.Client{
		Transport: transport, Timeout: healthTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// isHealth reports whether a request is for the agent server's health, which needs no key
// (PROTOCOL.md, "Health").
func (t target) isHealth(r *http.Request) bool {
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	return t.isAgent() && read && (t.rest == "/health" || t.rest == "/alive")
}

// serve answers a health check without a key. It neither wakes a sandbox, nor waits for its start,
// nor counts as activity. An unknown sandbox looks like a stopped one.
func (h *health) serve(p *request) error {
	v, err := p.proxy.View(p.r.Context())
	if err != nil {
		return err
	}
	row, port := p.to.find(v)
	if row == nil || port == "" || row.Desired != fsm.DesiredRunning || !IsServing(row) {
		return errNotWell(nil)
	}
	place := row.Status.Placement
	to := "http://" + net.JoinHostPort(place.Address, strconv.Itoa(place.Ports[port])) + p.to.rest
	said := h.asked.DoChan(to, func() (any, error) { return h.ask(to) })
	select {
	case res := <-said:
		if res.Err != nil {
			return errNotWell(res.Err)
		}
		p.grant.port = port
		p.w.Header().Set("Content-Type", "application/json")
		_, _ = p.w.Write(res.Val.([]byte)) // the client may have left
		return nil
	case <-p.r.Context().Done():
		return errNotWell(p.r.Context().Err())
	}
}

// ask returns the body of a 200.
func (h *health) ask(to string) ([]byte, error) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, to, nil)
	if err != nil {
		return nil, err
	}
	res, err := h.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent server answers %d", res.StatusCode)
	}
	return io.ReadAll(io.LimitReader(res.Body, maxHealthBody))
}

func errNotWell(cause error) *response.HTTPError {
	return &response.HTTPError{
		Status:     http.StatusServiceUnavailable,
		Text:       "The sandbox does not answer.",
		RetryAfter: healthTimeout,
		Cause:      cause,
	}
}
