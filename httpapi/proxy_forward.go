package httpapi

import (
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
)

// newDoorTransport connects to sandboxes: never through a proxy, never following
// anything.
func newDoorTransport(cfg DoorConfig) *http.Transport {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		ResponseHeaderTimeout:  cfg.HeaderTimeout,
		MaxResponseHeaderBytes: 256 << 10,
		MaxIdleConnsPerHost:    16,
		MaxIdleConns:           1024,
		// A port that is free may soon be another sandbox's, so nothing is kept long.
		IdleConnTimeout:    10 * time.Second,
		DisableCompression: true,
	}
}

type passageKey struct{}

// passageOf gives the passage a proxied request belongs to.
func passageOf(ctx context.Context) *passage {
	p, _ := ctx.Value(passageKey{}).(*passage)
	return p
}

// forward proxies the request and returns when it is over, however long that
// takes.
func (p *passage) forward() error {
	if isUpgrade(p.r) && !p.d.streams.stream(p.visit) {
		return errStopping()
	}
	if p.grant.port == fsm.PortAgentServer {
		key, err := p.sandboxKey()
		if err != nil {
			return err
		}
		p.grant.key = key
	}
	p.clearDeadlines()
	if isUpgrade(p.r) {
		open := p.d.metrics.streams.WithLabelValues(portLabel(p.grant.port))
		open.Inc()
		defer open.Dec()
	}
	r := p.r.WithContext(context.WithValue(p.visit.ctx, passageKey{}, p))
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &countedBody{ReadCloser: r.Body, traffic: p.traffic}
	}
	p.d.proxy.ServeHTTP(p.w, r)
	if id, verb := conversationIn(p.to.rest); verb == "events" && p.r.Method == http.MethodPost && p.w.status/100 == 2 {
		p.talked(id)
	}
	p.w.trailers()
	return nil
}

// clearDeadlines takes the server's deadlines off this request: a stream may be
// quiet for hours.
func (p *passage) clearDeadlines() {
	rc := http.NewResponseController(p.w)
	_ = rc.SetReadDeadline(time.Time{})  // a writer without deadlines has none to clear
	_ = rc.SetWriteDeadline(time.Time{}) // likewise
}

// address is where the sandbox's port is.
func (p *passage) address() string {
	place := p.grant.row.Status.Placement
	return net.JoinHostPort(place.Address, strconv.Itoa(place.Ports[p.grant.port]))
}

// path is the path for the sandbox, exactly as the client wrote it.
func (p *passage) path() (path, raw string) {
	raw = p.to.rest
	if raw == "" {
		raw = "/"
	}
	path, err := url.PathUnescape(raw)
	if err != nil {
		return raw, "" // the whole was parsed before, so this can't be
	}
	return path, raw
}

// query is the query for the sandbox: as it came, but for a key the agent
// server gets in the header.
func (p *passage) query() string {
	if p.grant.port == fsm.PortAgentServer {
		return withoutQuery(p.r.URL.RawQuery, querySocketKey)
	}
	if p.grant.port != portVSCode && p.grant.token {
		return withoutQuery(p.r.URL.RawQuery, queryToken)
	}
	return p.r.URL.RawQuery
}

// withoutQuery leaves one parameter out of a query and the rest as it is.
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

// rewrite makes the request for the sandbox.
func (d *door) rewrite(pr *httputil.ProxyRequest) {
	p := passageOf(pr.In.Context())
	path, raw := p.path()
	pr.Out.URL = &url.URL{Scheme: "http", Host: p.address(), Path: path, RawPath: raw, RawQuery: p.query()}
	// The host the client knows: what runs in a sandbox compares it with the
	// Origin of WebSockets.
	pr.Out.Host = pr.In.Host
	p.outHeader(pr.Out.Header)
}

// outHeader takes the door's credentials out of a header and puts in what the
// sandbox should know.
func (p *passage) outHeader(h http.Header) {
	h.Del(headerSessionKey)
	if token, bearer := bearerOf(p.r); p.grant.port == fsm.PortAgentServer || bearer && strings.HasPrefix(token, keyPrefix) {
		h.Del("Authorization")
	}
	if p.grant.port == fsm.PortAgentServer {
		h.Set(headerSessionKey, p.grant.key)
	}
	dropCookie(h, p.r.Cookies())
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix", "X-Real-Ip", "Forwarded"} {
		h.Del(name)
	}
	seen := p.d.server.seenAs(p.r)
	h.Set("X-Forwarded-For", p.d.server.clientAddress(p.r))
	h.Set("X-Forwarded-Host", seen.Host)
	h.Set("X-Forwarded-Proto", seen.Scheme)
	if p.to.prefix != "" {
		h.Set("X-Forwarded-Prefix", p.to.prefix)
	}
	h.Set(headerRequestID, exchangeOf(p.r.Context()).id)
}

// dropCookie takes the door's own cookie out and leaves the others as they are.
func dropCookie(h http.Header, sent []*http.Cookie) {
	ours := false
	rest := []string{}
	for _, c := range sent {
		if c.Name == doorCookie {
			ours = true
			continue
		}
		value := c.Value
		if c.Quoted {
			value = `"` + value + `"`
		}
		rest = append(rest, c.Name+"="+value)
	}
	switch {
	case !ours:
	case len(rest) == 0:
		h.Del("Cookie")
	default:
		h.Set("Cookie", strings.Join(rest, "; "))
	}
}

// cleanse takes out of a sandbox's answer what would reach beyond the sandbox.
func (d *door) cleanse(res *http.Response) error {
	p := passageOf(res.Request.Context())
	h := res.Header
	names := []string{"Strict-Transport-Security", "Alt-Svc", "Nel", "Report-To", "Public-Key-Pins", headerRequestID, headerIndex}
	if p.to.prefix != "" {
		names = append(names, "Clear-Site-Data", "Service-Worker-Allowed")
	}
	for _, name := range names {
		h.Del(name)
	}
	if cookies := h.Values("Set-Cookie"); len(cookies) > 0 {
		h.Del("Set-Cookie")
		for _, line := range cookies {
			if scoped := scopeCookie(line, p.to.prefix); scoped != "" {
				h.Add("Set-Cookie", scoped)
			}
		}
	}
	if at := h.Get("Location"); at != "" && p.to.prefix != "" {
		h.Set("Location", p.location(at))
	}
	if p.grant.port != fsm.PortAgentServer && !p.grant.cookie && p.r.Method == http.MethodGet {
		p.setCookie(h)
	}
	if kind, _, _ := mime.ParseMediaType(h.Get("Content-Type")); kind == "text/event-stream" {
		if !d.streams.stream(p.visit) {
			return errDraining()
		}
		open := d.metrics.streams.WithLabelValues(portLabel(p.grant.port))
		open.Inc()
		res.Body = &eventStream{ReadCloser: res.Body, ctx: p.visit.ctx, closed: open.Dec}
	}
	return nil
}

// location keeps a redirect of a sandbox behind its prefix.
func (p *passage) location(at string) string {
	u, err := url.Parse(at)
	switch {
	case err != nil || u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https":
		return at
	case u.Host != "" && u.Host != p.address() && !strings.EqualFold(u.Host, p.r.Host):
		return at
	case u.Host == "" && !strings.HasPrefix(at, "/"):
		return at
	}
	own := url.URL{Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery, Fragment: u.Fragment, RawFragment: u.RawFragment}
	if path := own.EscapedPath(); path != p.to.prefix && !strings.HasPrefix(path, p.to.prefix+"/") {
		own.Path, own.RawPath = p.to.prefix+"/"+strings.TrimLeft(own.Path, "/"), p.to.prefix+"/"+strings.TrimLeft(path, "/")
	}
	return own.String()
}

// scopeCookie keeps a sandbox's cookie to the sandbox: no Domain, a Path behind
// the prefix, and not the door's own name ("" then).
func scopeCookie(line, prefix string) string {
	parts := strings.Split(line, ";")
	name, _, _ := strings.Cut(parts[0], "=")
	if strings.TrimSpace(name) == doorCookie {
		return ""
	}
	kept, path := parts[:1], ""
	for _, attribute := range parts[1:] {
		key, value, _ := strings.Cut(attribute, "=")
		switch key = strings.TrimSpace(key); {
		case strings.EqualFold(key, "Domain"):
		case strings.EqualFold(key, "Path"):
			path = strings.TrimSpace(value)
		default:
			kept = append(kept, attribute)
		}
	}
	if prefix == "" && path == "" {
		return strings.Join(kept, ";")
	}
	if !strings.HasPrefix(path, "/") {
		path = "/"
	}
	if path != prefix && !strings.HasPrefix(path, prefix+"/") {
		path = prefix + path
	}
	return strings.Join(kept, ";") + "; Path=" + path
}

// eventStream ends like any stream when its sandbox goes, rather than breaking
// off.
type eventStream struct {
	io.ReadCloser
	ctx    context.Context
	closed func()
}

// Read implements io.Reader.
func (e *eventStream) Read(b []byte) (int, error) {
	n, err := e.ReadCloser.Read(b)
	if err != nil && cutOf(e.ctx) != nil {
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

// unanswered words what the sandbox did not answer to.
func (d *door) unanswered(w http.ResponseWriter, r *http.Request, err error) {
	exchangeOf(r.Context()).err = err
	e := &refusal{status: http.StatusBadGateway, text: "The sandbox does not answer."}
	var timeout net.Error
	switch cut := cutOf(r.Context()); {
	case cut != nil:
		e = &refusal{status: http.StatusServiceUnavailable, text: "The connection was ended: " + cut.reason + ".", retryAfter: time.Second}
	case errors.As(err, &timeout) && timeout.Timeout():
		e.status, e.text = http.StatusGatewayTimeout, "The sandbox does not answer in time."
	}
	failureOf(e, shapeDetail, "").write(w)
}
