package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// Addresses is a transport to several nodes: it asks the one that answered last, and the next one
// where that can't be reached, answers 503, or leaves a read without an answer. A request that a
// node may have carried out goes to another only if that does no harm: it reads, or has an
// Idempotency-Key. Requests name any of the addresses.
type Addresses struct {
	nodes []*url.URL
	base  http.RoundTripper
	last  atomic.Int64
	// patience is how long a read waits for the begin of an answer where another node can be asked.
	patience time.Duration
}

// NewAddresses returns a transport to the nodes at these URLs, of which there is at least one. A read
// goes to the next node when one has not begun its answer within patience.
func NewAddresses(addresses []string, base http.RoundTripper, patience time.Duration) (*Addresses, error) {
	a := &Addresses{base: base, patience: patience}
	for _, address := range addresses {
		u, err := url.Parse(address)
		if err != nil {
			return nil, fmt.Errorf("an address of a node: %w", err)
		}
		a.nodes = append(a.nodes, u)
	}
	return a, nil
}

// RoundTrip implements http.RoundTripper.
func (a *Addresses) RoundTrip(req *http.Request) (*http.Response, error) {
	first := int(a.last.Load())
	var failed error
	for i := range a.nodes {
		n := (first + i) % len(a.nodes)
		attempt, err := a.to(req, n, i > 0)
		if err != nil {
			return nil, err
		}
		resp, err := a.ask(attempt, i < len(a.nodes)-1)
		if err == nil && (resp.StatusCode != http.StatusServiceUnavailable || i == len(a.nodes)-1 || !repeats(req)) {
			a.last.Store(int64(n))
			return resp, nil
		}
		if err == nil {
			_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer) // so that the connection is used again
			resp.Body.Close()
			continue
		}
		failed = a.because(failed, n, err)
		a.last.Store(int64((n + 1) % len(a.nodes))) // the next request does not wait for it again
		if req.Context().Err() != nil || !repeats(req) && !(isDial(err) && replays(req)) {
			break
		}
	}
	return nil, failed
}

// ask sends a request to its node, and gives a read up that waits too long where there are others.
func (a *Addresses) ask(req *http.Request, others bool) (*http.Response, error) {
	if !others || !reads(req) {
		return a.base.RoundTrip(req)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	late := fmt.Errorf("no answer within %s", a.patience)
	timer := time.AfterFunc(a.patience, func() { cancel(late) })
	resp, err := a.base.RoundTrip(req.WithContext(ctx)) // the answer's body lives as long as req's context
	if timer.Stop() {
		return resp, err
	}
	if err == nil {
		resp.Body.Close()
	}
	return nil, context.Cause(ctx)
}

// to is the request for one node. again is set when its body has been sent before.
func (a *Addresses) to(req *http.Request, n int, again bool) (*http.Request, error) {
	attempt := req.Clone(req.Context())
	attempt.URL.Scheme, attempt.URL.Host, attempt.Host = a.nodes[n].Scheme, a.nodes[n].Host, a.nodes[n].Host
	if again && req.GetBody != nil {
		var err error
		if attempt.Body, err = req.GetBody(); err != nil {
			return nil, err
		}
	}
	return attempt, nil
}

// because adds what one node said to what those before it did.
func (a *Addresses) because(failed error, n int, err error) error {
	switch {
	case len(a.nodes) == 1:
		return err
	case failed == nil:
		return fmt.Errorf("%s: %w", a.nodes[n].Host, err)
	}
	return fmt.Errorf("%w; %s: %w", failed, a.nodes[n].Host, err)
}

// repeats reports whether a request may be carried out twice.
func repeats(req *http.Request) bool {
	return replays(req) && (reads(req) || req.Header.Get("Idempotency-Key") != "")
}

func reads(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead
}

// replays reports whether a request's body can be sent again.
func replays(req *http.Request) bool { return req.Body == nil || req.GetBody != nil }

// isDial reports whether nothing was sent: no connection was made.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
