package proxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
)

// newTransport connects to sandboxes directly, without a forward proxy.
func newTransport(cfg Config) *http.Transport {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		ResponseHeaderTimeout:  cfg.HeaderTimeout,
		MaxResponseHeaderBytes: 256 << 10,
		MaxIdleConnsPerHost:    16,
		MaxIdleConns:           1024,
		// A released port may soon belong to another sandbox, so connections are not kept for long.
		IdleConnTimeout:    10 * time.Second,
		DisableCompression: true,
	}
}

type requestKey struct{}

// requestOf returns the proxy request of a request to a sandbox.
func requestOf(ctx context.Context) *request {
	p, _ := ctx.Value(requestKey{}).(*request)
	return p
}

// forward proxies the request and returns when the response or stream has ended.
func (p *request) forward() error {
	if isUpgrade(p.r) && !p.proxy.sessions.upgrade(p.session) {
		return errStopping()
	}
	if p.isAgent() || p.grant.port == PortVSCode {
		key, err := p.sandboxKey()
		if err != nil {
			return err
		}
		p.grant.key = key
	}
	p.clearDeadlines()
	if isUpgrade(p.r) {
		open := p.proxy.metrics.streams.WithLabelValues(portLabel(p.grant.port))
		open.Inc()
		defer open.Dec()
	}
	r := p.r.WithContext(context.WithValue(p.session.ctx, requestKey{}, p))
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &countedBody{ReadCloser: r.Body, traffic: p.traffic}
	}
	p.proxy.proxy.ServeHTTP(p.w, r)
	if id, verb := conversationIn(p.to.rest); verb == "events" && p.r.Method == http.MethodPost && p.w.status/100 == 2 {
		p.talked(id)
	}
	p.w.trailers()
	return nil
}

// clearDeadlines removes the server's deadlines from this request: a stream may be idle for hours.
func (p *request) clearDeadlines() {
	rc := http.NewResponseController(p.w)
	_ = rc.SetReadDeadline(time.Time{})  // a writer without deadlines has none to clear
	_ = rc.SetWriteDeadline(time.Time{}) // likewise
}

// address is the host and port of the sandbox's port.
func (p *request) address() string {
	place := p.grant.row.Status.Placement
	return net.JoinHostPort(place.Address, strconv.Itoa(place.Ports[p.grant.port]))
}

// path returns the path for the sandbox, escaped exactly as the client sent it.
func (p *request) path() (path, raw string) {
	raw = cmp.Or(p.to.rest, "/")
	path, err := url.PathUnescape(raw)
	if err != nil {
		return raw, "" // unreachable: the whole path was parsed before
	}
	return path, raw
}

// query returns the query for the sandbox, without the proxy's key.
func (p *request) query() string {
	if p.grant.port == fsm.PortAgentServer {
		return withoutQuery(p.r.URL.RawQuery, querySocketKey)
	}
	return p.r.URL.RawQuery
}

// withoutQuery removes one parameter from a query and leaves the rest as it is.
func withoutQuery(raw, name string) string {
	kept := []string{}
	for part := range strings.SplitSeq(raw, "&") {
		key, _, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(key); err == nil && plain == name {
			continue
		}
		kept = append(kept, part)
	}
	return strings.Join(kept, "&")
}

// rewrite builds the request for the sandbox.
func (d *Proxy) rewrite(pr *httputil.ProxyRequest) {
	p := requestOf(pr.In.Context())
	path, raw := p.path()
	pr.Out.URL = &url.URL{Scheme: "http", Host: p.address(), Path: path, RawPath: raw, RawQuery: p.query()}
	// Keep the client's host: programs in a sandbox compare it with a WebSocket's Origin.
	pr.Out.Host = pr.In.Host
	p.outHeader(pr.Out.Header)
}

// outHeader replaces the client's credentials in a header and sets the forwarding headers.
func (p *request) outHeader(h http.Header) {
	p.outCredentials(h)
	if p.grant.pass && h.Get("Origin") == "null" {
		// Programs compare it with the host.
		seen := p.proxy.server.Seen(p.r)
		h.Set("Origin", seen.Scheme+"://"+seen.Host)
	}
	for _, name := range []string{
		"X-Forwarded-For",
		"X-Forwarded-Host",
		"X-Forwarded-Proto",
		"X-Forwarded-Prefix",
		"X-Real-Ip",
		"Forwarded",
	} {
		h.Del(name)
	}
	seen := p.proxy.server.Seen(p.r)
	h.Set("X-Forwarded-For", p.proxy.server.ClientAddress(p.r))
	h.Set("X-Forwarded-Host", seen.Host)
	h.Set("X-Forwarded-Proto", seen.Scheme)
	if p.to.prefix != "" {
		h.Set("X-Forwarded-Prefix", p.to.prefix)
	}
	h.Set(response.HeaderRequestID, p.proxy.server.Info(p.r.Context()).ID)
}

// modifyResponse removes headers from a sandbox's response that would affect more than the sandbox.
func (d *Proxy) modifyResponse(res *http.Response) error {
	p := requestOf(res.Request.Context())
	h := res.Header
	names := []string{
		"Strict-Transport-Security",
		"Alt-Svc",
		"Nel",
		"Report-To",
		"Public-Key-Pins",
		response.HeaderRequestID,
		response.HeaderIndex,
	}
	if !p.to.host {
		names = append(names, "Clear-Site-Data", "Service-Worker-Allowed", "Referrer-Policy", "Reporting-Endpoints",
			"Accept-Ch", "Use-As-Dictionary", "Set-Login")
	}
	for _, name := range names {
		h.Del(name)
	}
	p.setOwnCookies(h)
	if at := h.Get("Location"); at != "" && p.to.prefix != "" {
		h.Set("Location", p.location(at))
	}
	if p.isHostsPage() && !p.grant.cookie && p.r.Method == http.MethodGet {
		p.setCookie(h)
	}
	if kind, _, _ := mime.ParseMediaType(h.Get("Content-Type")); kind == "text/event-stream" {
		if !d.sessions.last(p.session) {
			return errDraining()
		}
		open := d.metrics.streams.WithLabelValues(portLabel(p.grant.port))
		open.Inc()
		res.Body = &eventStream{ReadCloser: res.Body, ctx: p.session.ctx, closed: open.Dec}
	}
	return nil
}

// location rewrites a sandbox's redirect to stay below its prefix.
func (p *request) location(at string) string {
	u, err := url.Parse(at)
	switch {
	case err != nil || u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https":
		return at
	case u.Host != "" && u.Host != p.address() && !strings.EqualFold(u.Host, p.r.Host):
		return at
	case u.Host == "" && !strings.HasPrefix(at, "/"):
		return at
	}
	own := url.URL{
		Path:        u.Path,
		RawPath:     u.RawPath,
		RawQuery:    u.RawQuery,
		Fragment:    u.Fragment,
		RawFragment: u.RawFragment,
	}
	if path := own.EscapedPath(); path != p.to.prefix && !strings.HasPrefix(path, p.to.prefix+"/") {
		own.Path, own.RawPath = p.to.prefix+"/"+strings.TrimLeft(own.Path, "/"), p.to.prefix+"/"+strings.TrimLeft(path, "/")
	}
	return own.String()
}

// eventStream ends with EOF instead of an error when the proxy ends the session.
type eventStream struct {
	io.ReadCloser
	ctx    context.Context
	closed func()
}

// Read implements io.Reader.
func (e *eventStream) Read(b []byte) (int, error) {
	n, err := e.ReadCloser.Read(b)
	if err != nil && endOf(e.ctx) != nil {
		err = io.EOF
	}
	return n, err
}

// Close implements io.Closer.
func (e *eventStream) Close() error {
	if e.closed != nil {
		e.closed()
		e.closed = nil
	}
	return e.ReadCloser.Close()
}

// errorHandler responds when the sandbox did not.
func (d *Proxy) errorHandler(w http.ResponseWriter, r *http.Request, err error) {
	d.server.Info(r.Context()).Err = err
	e := &response.HTTPError{Status: http.StatusBadGateway, Text: "The sandbox does not answer."}
	var timeout net.Error
	switch cut := endOf(r.Context()); {
	case cut != nil:
		e = &response.HTTPError{
			Status:     http.StatusServiceUnavailable,
			Text:       "The connection was ended: " + cut.reason + ".",
			RetryAfter: time.Second,
		}
	case errors.As(err, &timeout) && timeout.Timeout():
		e.Status, e.Text = http.StatusGatewayTimeout, "The sandbox does not answer in time."
	}
	response.FailureOf(e, response.FormatDetail, "").Write(w)
}
