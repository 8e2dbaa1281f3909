package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// passage is one request on its way through the relay.
type passage struct {
	lease *lease
	body  []byte
	// release gives the body's place back, once.
	release func()
}

type passageKey struct{}

func passageOf(ctx context.Context) *passage {
	p, _ := ctx.Value(passageKey{}).(*passage)
	return p
}

// ErrClosed means that the server stops.
var ErrClosed = errors.New("the server stops")

var (
	errNoToken = errors.New("the gateway gives this conversation no token: it is gone, or its sandbox is paused")
	errNoNode  = errors.New("no node answers")
	errSilent  = errors.New("the node no longer answers")
)

// ServeHTTP implements http.Handler.
func (r *Relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	l := r.leaseOf(req)
	switch {
	case l == nil:
		writeModelError(w, http.StatusUnauthorized, "authentication_error", "the key is no conversation's of this sandbox")
		return
	case !strings.HasPrefix(req.URL.Path, gatewayPath) || req.URL.Path == gatewayPath+"token" ||
		req.Header.Get("Upgrade") != "":
		writeModelError(w, http.StatusNotFound, "not_found_error",
			"the relay passes requests to models on, below "+gatewayPath)
		return
	}
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	p := &passage{lease: l}
	if !r.keep(ctx, w, req, p) {
		return
	}
	defer p.release()
	r.proxy.ServeHTTP(w, req.WithContext(context.WithValue(ctx, passageKey{}, p)))
}

// refuseLarge answers a request whose body is too large.
func refuseLarge(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Connection", "close")
	writeModelError(w, http.StatusRequestEntityTooLarge, "request_too_large", "the request is larger than 32 MiB")
	decode.Linger(w, req.Body)
}

// keep reads a request's body. If it returns false it has answered.
func (r *Relay) keep(ctx context.Context, w http.ResponseWriter, req *http.Request, p *passage) bool {
	p.release = func() {}
	if req.ContentLength == 0 {
		return true
	}
	size := req.ContentLength
	if size > MaxBody {
		refuseLarge(w, req)
		return false
	}
	if size < 0 {
		size = MaxBody
	}
	if r.bodies.Acquire(ctx, size) != nil {
		return false // the client is gone
	}
	p.release = sync.OnceFunc(func() { r.bodies.Release(size) })
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(relayBodyTime)) // a writer without deadlines has none to set
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, MaxBody))
	_ = control.SetReadDeadline(time.Time{})
	if p.body = body; err == nil {
		return true
	}
	p.release()
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		refuseLarge(w, req)
	} else {
		writeModelError(w, http.StatusBadRequest, "invalid_request_error", "the request's body could not be read")
	}
	return false
}

// rewriteRelayed takes what is the client's own out of a request.
func rewriteRelayed(pr *httputil.ProxyRequest) {
	for _, name := range []string{
		"Authorization",
		"X-Api-Key",
		"X-Goog-Api-Key",
		"Api-Key",
		"X-Session-Api-Key",
		"Cookie",
		"Proxy-Authorization",
		"Expect",
	} {
		pr.Out.Header.Del(name)
	}
	query := pr.Out.URL.Query()
	if query.Has("key") {
		query.Del("key")
		pr.Out.URL.RawQuery = query.Encode()
	}
	pr.Out.Body, pr.Out.ContentLength, pr.Out.TransferEncoding = http.NoBody, 0, nil
}

// relayTransport sends a request to the first node that answers, with a token that is good.
type relayTransport struct{ *Relay }

// RoundTrip implements http.RoundTripper.
func (r relayTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	p := passageOf(req.Context())
	for stale := ""; ; {
		token, err := r.token(req.Context(), p.lease, stale)
		if err != nil {
			return nil, err
		}
		resp, err := r.turn(req, p, token)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode == http.StatusUnauthorized && stale == "" && says(resp, preset.ReasonToken) {
			resp.Body.Close()
			stale = token
			continue
		}
		p.release()
		return resp, nil
	}
}

// order is the order in which a request asks the nodes: in turn from any of them on, so that their
// load is even, and those last that failed a short time ago.
func (r *Relay) order() []int {
	first, now := r.begin(len(r.apis)), time.Now().UnixNano()
	var well, rest []int
	for i := range r.apis {
		n := (first + i) % len(r.apis)
		if now-r.failed[n].Load() < int64(unwell) {
			rest = append(rest, n)
		} else {
			well = append(well, n)
		}
	}
	return append(well, rest...)
}

// note keeps whether a node answered.
func (r *Relay) note(n int, answered bool) {
	if answered {
		r.failed[n].Store(0)
	} else {
		r.failed[n].Store(time.Now().UnixNano())
	}
}

// turn asks one node after the other until one answers. Where none does, the answer of one that is busy
// says more than that of one that can't serve.
func (r *Relay) turn(req *http.Request, p *passage, token string) (*http.Response, error) {
	var passed *http.Response
	for _, n := range r.order() {
		resp, err := r.attempt(req, p, r.apis[n], token)
		if req.Context().Err() != nil && err != nil {
			return nil, req.Context().Err()
		}
		if err != nil {
			r.logger.Debug("a node did not answer a model request", "address", r.apis[n], "error", err)
			r.note(n, false)
			continue
		}
		isBusy := busy(resp)
		if !isBusy && !isElsewhere(resp) {
			r.note(n, true)
			discard(passed)
			return resp, nil
		}
		r.note(n, isBusy)
		if passed != nil && passed.StatusCode == http.StatusTooManyRequests && !isBusy {
			discard(resp)
			continue
		}
		discard(passed)
		passed = resp
	}
	if passed != nil {
		return passed, nil
	}
	return nil, errNoNode
}

func discard(resp *http.Response) {
	if resp != nil {
		resp.Body.Close()
	}
}

// attempt sends a request to one node. While the node owes an answer, and until the answer's end, it
// is asked now and then whether it lives.
func (r *Relay) attempt(req *http.Request, p *passage, api, token string) (*http.Response, error) {
	to, err := url.Parse(api)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	out := req.Clone(ctx)
	out.URL.Scheme, out.URL.Host, out.Host = to.Scheme, to.Host, ""
	out.Header.Set("Authorization", "Bearer "+token)
	if p.body != nil {
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p.body)), nil }
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(p.body)), int64(len(p.body))
	}
	go r.probe(ctx, cancel, api)
	resp, err := r.direct.RoundTrip(out)
	if err != nil {
		cause := context.Cause(ctx)
		cancel(nil)
		if errors.Is(cause, errSilent) {
			err = cause
		}
		return nil, err
	}
	resp.Body = &answering{ReadCloser: resp.Body, done: func() { cancel(nil) }}
	return resp, nil
}

// answering is an answer's body, with what ends with it.
type answering struct {
	io.ReadCloser
	done func()
}

// Close implements io.Closer.
func (a *answering) Close() error {
	err := a.ReadCloser.Close()
	a.done()
	return err
}

// probe cancels a request whose node does not say twice in a row that it lives: it is frozen, or cut
// off, and TCP may not notice for long.
func (r *Relay) probe(ctx context.Context, cancel context.CancelCauseFunc, api string) {
	tick := time.NewTicker(r.probeEvery)
	defer tick.Stop()
	for silent := 0; silent < 2; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if r.alive(ctx, api) {
			silent = 0
		} else {
			silent++
		}
	}
	cancel(errSilent)
}

// alive asks over a connection of its own: a kept one may be as silent as the request's.
func (r *Relay) alive(ctx context.Context, api string) bool {
	ctx, cancel := context.WithTimeout(ctx, r.probeEvery/2)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, api+"/alive", nil)
	if err != nil {
		return false
	}
	resp, err := r.probes.RoundTrip(req)
	discard(resp)
	return err == nil
}

// isElsewhere reports whether another node may serve what this answer refuses: it is a load
// balancer's, or a node's that can't serve now. What an endpoint says is passed on as it is.
func isElsewhere(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return resp.Header.Get(headerNode) == ""
	case http.StatusServiceUnavailable:
		return resp.Header.Get(headerNode) == "" || says(resp, preset.ReasonFailed)
	}
	return false
}

// busy reports whether a node has no room for a request that another one may have room for. A limit of
// the endpoint's is the same on every node.
func busy(resp *http.Response) bool {
	return resp.StatusCode == http.StatusTooManyRequests && says(resp, preset.ReasonBusy)
}

// headerNode is in every answer of a node.
const headerNode = "X-Bivouac-Index"

// says reports whether an answer is the gateway's own, for a reason. What it reads can be read again.
func says(resp *http.Response, reason string) bool {
	start, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	rest := io.Reader(resp.Body)
	if err != nil {
		rest = failing{err}
	}
	resp.Body = &reread{Reader: io.MultiReader(bytes.NewReader(start), rest), Closer: resp.Body}
	return resp.Header.Get(headerNode) != "" && bytes.Contains(start, []byte(`"`+preset.CodePrefix+reason+`"`))
}

type reread struct {
	io.Reader
	io.Closer
}

type failing struct{ err error }

// Read implements io.Reader.
func (f failing) Read([]byte) (int, error) { return 0, f.err }

// unanswered answers where no node did.
func (r *Relay) unanswered(w http.ResponseWriter, req *http.Request, err error) {
	switch {
	case errors.Is(err, errNoToken):
		writeModelError(w, http.StatusUnauthorized, "authentication_error", err.Error())
	case passageOf(req.Context()).lease.ctx.Err() != nil:
		writeModelError(w, http.StatusUnauthorized, "authentication_error", "the conversation is gone")
	case req.Context().Err() != nil: // the client is gone
		writeModelError(w, http.StatusServiceUnavailable, "api_error", "the request was given up")
	default:
		r.logger.Warn("no node took a model request", "error", err)
		w.Header().Set("Retry-After", "1")
		writeModelError(w, http.StatusServiceUnavailable, "api_error",
			"the model gateway can't be reached: "+errNoNode.Error())
	}
}

// writeModelError answers in the words that clients of the APIs read.
func writeModelError(w http.ResponseWriter, status int, kind, text string) {
	wire.WriteJSON(w, status, map[string]any{
		"type": "error", "detail": text,
		"error": map[string]any{"type": kind, "message": text, "code": preset.CodePrefix + "relay"},
	})
}
