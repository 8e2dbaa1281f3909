package proxy

import (
	"log"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/places"
	"bivouac.dev/bivouac/httpapi/response"
)

// Proxy is the reverse proxy to every sandbox, on every node: at /sandboxes/<id>/<port>/… of the
// API's address and, with a wildcard domain, at <port>-<id>.<domain>. Host names ignore case, so
// ids in them do too; an id that matches two sandboxes is unknown.
//
// A request needs the sandbox's own key or an API key of its owner in X-Session-API-Key, or the
// owner's API key as a bearer token. API keys are not forwarded: the agent server gets its
// sandbox's key instead, other ports get none. A WebSocket of the agent server may send its key in
// the first frame. A browser with access to VSCODE or a worker port gets a cookie for that port. An
// unknown sandbox, another user's and a wrong key get the same 401 or close code. The agent
// server's health needs no key.
//
// A paused sandbox responds 409 (WebSockets: 4409, page views: a page with a button) until work for
// its agent, a resume or ?wake=true wakes it.
//
// Without Config.Domain, sandboxes' pages share the API's address. A browser gives such a page an
// origin of its own, without storage, cookies and service workers, and the path has its pass. With
// Config.Domain each port has a host, and a page has all that a page has elsewhere.
type Proxy struct {
	cfg      Config
	server   Server
	metrics  *metrics
	sessions *sessions
	sockets  *sockets
	health   *health
	proxy    *httputil.ReverseProxy
	wakes    wakes
}

// New creates the proxy and starts nothing. It panics if s.Registerer already has the metrics of
// another proxy.
func New(cfg Config, s Server) *Proxy {
	d := &Proxy{server: s, cfg: cfg, metrics: newMetrics(s.Registerer), sessions: newSessions(s.Cluster, cfg)}
	transport := cfg.Transport
	if transport == nil {
		transport = newTransport(cfg)
	}
	d.sockets, d.health = newSockets(transport,
		places.Limits{Total: cfg.MaxUnauthenticated, Each: cfg.MaxUnauthenticatedPerAddress}), newHealth(transport)
	d.proxy = &httputil.ReverseProxy{
		Rewrite:        d.rewrite,
		Transport:      transport,
		FlushInterval:  -1,
		BufferPool:     &CopyBuffers{},
		ModifyResponse: d.modifyResponse,
		ErrorHandler:   d.errorHandler,
		// Connection errors caused by a sandbox are logged at debug.
		ErrorLog: quietLog(s.Logger),
	}
	return d
}

func quietLog(l *slog.Logger) *log.Logger { return slog.NewLogLogger(l.Handler(), slog.LevelDebug) }

// Handles reports whether a request is for the proxy.
func (d *Proxy) Handles(r *http.Request) bool {
	_, ours := targetOf(d.cfg.Domain, r.Host, r.URL.EscapedPath())
	return ours
}

// request is one request to a sandbox.
type request struct {
	proxy   *Proxy
	w       *writer
	r       *http.Request
	to      target
	grant   grant
	session *Session
	// woken is set if this request woke the sandbox.
	woken bool
	// traffic is nil until the sandbox serves.
	traffic *traffic
}

// ServeHTTP implements http.Handler.
func (d *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, _ := targetOf(d.cfg.Domain, r.Host, r.URL.EscapedPath())
	p := &request{proxy: d, r: r, to: to, w: newWriter(w)}
	p.protect(w.Header())
	ex := d.server.Info(r.Context())
	ex.Route = Path
	defer func() {
		d.metrics.request(p.grant.port, p.w.outcome())
	}()
	err := p.serve(ex)
	switch {
	case err == nil:
	case isUnauthorized(err) && isPageView(r) && !to.isAgent():
		ex.Err = err
		p.showOpen()
	case isPaused(err) && isPageView(r):
		ex.Err = err
		p.showPaused()
	default:
		ex.Err = err
		response.FailureOf(err, response.FormatDetail, "").Write(w)
		p.w.note(err)
	}
}

// serve authorises the request, waits for the sandbox and forwards. When it returns an error,
// nothing was written yet.
func (p *request) serve(ex *RequestInfo) error {
	if p.r.Method == http.MethodConnect || p.r.Method == http.MethodTrace {
		return response.Error(http.StatusMethodNotAllowed, "Method Not Allowed")
	}
	if err := p.refuseScript(); err != nil {
		return err
	}
	if p.preflight() {
		return nil
	}
	if p.to.opens() {
		return p.open(ex)
	}
	given := p.proxy.credentialsOf(p.r, p.to)
	switch {
	case given.none() && p.to.isEventSocket(p.r):
		return p.proxy.sockets.acceptUnauthenticated(p, ex)
	case given.none() && p.to.isHealth(p.r):
		return p.proxy.health.serve(p)
	}
	if err := p.admit(given, ex); err != nil {
		if isUnauthorized(err) && p.to.isEventSocket(p.r) {
			return p.proxy.sockets.refuse(p, ex, err)
		}
		return err
	}
	if p.redirect() {
		return nil
	}
	end, err := p.enter()
	if isPaused(err) && isUpgrade(p.r) {
		return p.proxy.sockets.refuse(p, ex, err)
	}
	if err != nil {
		return err
	}
	defer end()
	if p.woken && isPageView(p.r) {
		p.leavePaused()
		return nil
	}
	if p.grant.port == fsm.PortAgentServer && p.to.isEventSocket(p.r) {
		return p.proxy.sockets.pass(p)
	}
	return p.forward()
}

// admit authorises the request by its credentials.
func (p *request) admit(given credentials, ex *RequestInfo) error {
	g, err := p.proxy.authorise(p.r.Context(), p.to, given)
	if isUnauthorized(err) && !given.none() {
		ex.Refused = "unknown, revoked or expired, or its user is disabled"
	}
	if err != nil {
		return err
	}
	ex.User, ex.Sandbox = g.row.UserID, g.row.ID
	if err := p.proxy.server.Admitted(p.r.Context(), g.credential); err != nil {
		return err
	}
	if g.port == "" {
		return response.Error(http.StatusNotFound, "The sandbox exposes no such port")
	}
	p.grant = g
	return nil
}

// enter waits for the sandbox to serve and starts a session. The caller must call end.
func (p *request) enter() (end func(), err error) {
	up, err := p.proxy.serving(p.r.Context(), p.grant, p.wakes())
	if err != nil {
		return nil, err
	}
	if up.row.Status.Placement.Ports[p.grant.port] == 0 {
		return nil, response.Error(http.StatusNotFound, "The sandbox exposes no such port")
	}
	p.grant.row, p.woken = up.row, up.woken
	if p.session, err = p.proxy.sessions.begin(p.r.Context(), p.grant, up.index); err != nil {
		return nil, err
	}
	p.traffic = p.proxy.newTraffic(up.row.ID, p.grant.port)
	p.w.traffic.Store(p.traffic)
	return p.session.end, nil
}

// redirect adds the slash to a path that ends with the port's name, for relative links.
func (p *request) redirect() bool {
	bare := p.to.prefix != "" && p.to.rest == ""
	if p.isAgent() || p.r.Method != http.MethodGet && p.r.Method != http.MethodHead || !bare {
		return false
	}
	p.seeOther(url.URL{Path: p.to.prefix + "/", RawQuery: p.r.URL.RawQuery})
	return true
}

// seeOther redirects to another path or query on the same host.
func (p *request) seeOther(u url.URL) {
	h := p.w.Header()
	at := u.RequestURI()
	if strings.HasPrefix(u.EscapedPath(), "//") {
		at = "/." + strings.TrimPrefix(at, ":") // "//x" would be another host
	}
	h.Set("Location", at)
	h.Set("Referrer-Policy", "no-referrer")
	p.w.WriteHeader(http.StatusSeeOther)
}

// setCookie sets the browser's cookies. If the sandbox's key can't be read, it sets none.
func (p *request) setCookie(h http.Header) {
	key, err := p.sandboxKey()
	if err != nil {
		return
	}
	until := p.passUntil()
	age := time.Until(until).Round(time.Second)
	value := newPass(passCookie, key, p.grant.row.ID, p.grant.port, p.grant.share, until)
	h.Add("Set-Cookie", newCookie(value, age, p.isSecure()).String())
	// The holder of a share does not get the sandbox's key.
	if p.grant.port == PortVSCode && p.grant.share == "" {
		h.Add("Set-Cookie", newVSCodeCookie(key, age, p.isSecure()).String())
	}
}

// sandboxKey returns the sandbox's own key: the request's, otherwise the stored one.
func (p *request) sandboxKey() (string, error) {
	if p.grant.key != "" {
		return p.grant.key, nil
	}
	return p.proxy.server.SandboxKey(p.r.Context(), p.grant.row.KeyRef)
}
