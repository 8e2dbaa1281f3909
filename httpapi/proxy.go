package httpapi

import (
	"log"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// door is the one way to every sandbox: a reverse proxy on every node, at
// /sandboxes/<id>/<port>/… of the API's own address and, with a wildcard domain,
// at <port>-<id>.<domain>. Behind a host name ids are matched without case,
// since DNS has none; an id that would fit two sandboxes fits none.
//
// Who may pass: the sandbox's own key, or an API key of its owner, in
// X-Session-API-Key or (the owner's) as a bearer. API keys end here: the agent
// server gets its own sandbox's key in their place, the other ports get none. A
// WebSocket of the agent server may bring its key in its first frame. A browser
// that was let in to VSCODE or a worker port gets a cookie for that port alone.
// An unknown sandbox, another user's and a wrong key get the same 401, or the
// same close code. The agent server's health needs no key.
//
// A paused sandbox answers 409 (WebSockets: 4409, page views: a page with a
// button) until work for its agent, a resume or ?wake=true wakes it.
//
// What it can't do: pages that a sandbox serves under the API's own address
// share its origin with each other and with whatever else is served there. The
// API itself takes no cookies, so they can't call it, but scripts of one sandbox
// could reach another one that the same browser is let in to. DoorConfig.Domain
// gives each port an origin of its own; use it where browsers visit sandboxes.
type door struct {
	server  *Server
	cfg     DoorConfig
	metrics *doorMetrics
	streams *streams
	sockets *sockets
	health  *health
	proxy   *httputil.ReverseProxy
	wakes   wakes
}

func newDoor(s *Server) (*door, error) {
	m, err := newDoorMetrics(s.cfg.Registerer)
	if err != nil {
		return nil, err
	}
	d := &door{server: s, cfg: s.cfg.Door, metrics: m, streams: newStreams(s.cluster)}
	transport := newDoorTransport(d.cfg)
	d.sockets, d.health = newSockets(transport), newHealth(transport)
	d.proxy = &httputil.ReverseProxy{
		Rewrite:        d.rewrite,
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: d.cleanse,
		ErrorHandler:   d.unanswered,
		// What a sandbox does to its connections is no business of the operator.
		ErrorLog: quietLog(s.log),
	}
	return d, nil
}

func quietLog(l *slog.Logger) *log.Logger { return slog.NewLogLogger(l.Handler(), slog.LevelDebug) }

// front hands requests for sandboxes to the door and all others to next. CORS is
// the door's own for all sandboxes: a preflight brings no key, so it could not
// reach one that sleeps.
func (d *door) front(next http.Handler) http.Handler {
	behind := d.server.cors(d)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ours := targetOf(d.cfg.Domain, r.Host, r.URL.EscapedPath()); ours {
			behind.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// passage is one request on its way through the door.
type passage struct {
	d     *door
	w     *doorWriter
	r     *http.Request
	to    target
	grant grant
	visit *visit
	// woken is set when this request woke the sandbox.
	woken bool
	// traffic is nil until the sandbox is known to serve.
	traffic *traffic
}

// ServeHTTP implements http.Handler.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, _ := targetOf(d.cfg.Domain, r.Host, r.URL.EscapedPath())
	p := &passage{d: d, r: r, to: to, w: newDoorWriter(w)}
	ex := exchangeOf(r.Context())
	ex.route = pathDoor
	defer func() {
		d.metrics.request(p.grant.port, p.w.outcome())
	}()
	err := p.serve(ex)
	switch {
	case err == nil:
	case isPaused(err) && isPageView(r):
		ex.err = err
		p.showPaused()
	default:
		ex.err = err
		failureOf(err, shapeDetail, "").write(w)
		p.w.note(err)
	}
}

// serve does it all: who, which port, is it up, and the way there. An error is
// one that nothing was written for yet.
func (p *passage) serve(ex *exchange) error {
	if p.r.Method == http.MethodConnect || p.r.Method == http.MethodTrace {
		return refuse(http.StatusMethodNotAllowed, "Method Not Allowed")
	}
	given := p.d.credentialsOf(p.r, p.to)
	switch {
	case given.none() && p.to.isEventSocket(p.r):
		return p.d.sockets.knock(p, ex)
	case given.none() && p.to.isHealth(p.r):
		return p.d.health.serve(p)
	}
	if err := p.admit(given, ex); err != nil {
		if isUnauthorized(err) && p.to.isEventSocket(p.r) {
			return p.d.sockets.refuse(p, ex, err)
		}
		return err
	}
	if p.redirect() {
		return nil
	}
	end, err := p.enter()
	if isPaused(err) && isUpgrade(p.r) {
		return p.d.sockets.refuse(p, ex, err)
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
		return p.d.sockets.pass(p)
	}
	return p.forward()
}

// admit finds out what the credentials open.
func (p *passage) admit(given credentials, ex *exchange) error {
	g, err := p.d.authorise(p.r.Context(), p.to, given)
	if err != nil {
		return err
	}
	ex.user, ex.sandbox = g.row.UserID, g.row.ID
	p.d.server.lastRequest.Store(time.Now().UnixNano())
	if g.port == "" {
		return refuse(http.StatusNotFound, "The sandbox exposes no such port")
	}
	p.grant = g
	return nil
}

// enter waits for the sandbox to serve and registers the visit. The caller must
// call end.
func (p *passage) enter() (end func(), err error) {
	up, err := p.d.serving(p.r.Context(), p.grant, p.wakes())
	if err != nil {
		return nil, err
	}
	if up.row.Status.Placement.Ports[p.grant.port] == 0 {
		return nil, refuse(http.StatusNotFound, "The sandbox exposes no such port")
	}
	p.grant.row, p.woken = up.row, up.woken
	if p.visit, err = p.d.streams.open(p.r.Context(), p.grant, up.index); err != nil {
		return nil, err
	}
	p.traffic = p.d.newTraffic(up.row.ID, p.grant.port)
	p.w.traffic.Store(p.traffic)
	return p.visit.end, nil
}

// redirect answers what the sandbox must not see, or not like that: a path that
// ends with the port's name gets its slash, or relative links would lead
// elsewhere; a key in the query becomes a cookie. VSCODE checks its own token,
// so it gets to see it.
func (p *passage) redirect() bool {
	u := url.URL{Path: p.r.URL.Path, RawPath: p.r.URL.RawPath, RawQuery: p.r.URL.RawQuery}
	bare := p.to.prefix != "" && p.to.rest == ""
	token := p.grant.token && p.grant.port != portVSCode && !isUpgrade(p.r)
	if p.grant.port == fsm.PortAgentServer || p.r.Method != http.MethodGet && p.r.Method != http.MethodHead || !bare && !token {
		return false
	}
	if bare {
		u.Path, u.RawPath = p.to.prefix+"/", ""
	}
	if token {
		p.setCookie(p.w.Header())
		u.RawQuery = withoutQuery(u.RawQuery, queryToken)
	}
	p.seeOther(u)
	return true
}

// seeOther redirects to another path or query of the same host.
func (p *passage) seeOther(u url.URL) {
	h := p.w.Header()
	at := u.RequestURI()
	if strings.HasPrefix(u.EscapedPath(), "//") {
		at = "/." + strings.TrimPrefix(at, ":") // "//x" would be another host
	}
	h.Set("Location", at)
	h.Set("Referrer-Policy", "no-referrer")
	p.w.WriteHeader(http.StatusSeeOther)
}

// setCookie lets the browser back in. It needs the sandbox's key; when that
// can't be read there is no cookie this time.
func (p *passage) setCookie(h http.Header) {
	key, err := p.sandboxKey()
	if err != nil {
		return
	}
	value := newCookieValue(key, p.grant.row.ID, p.grant.port, time.Now().Add(p.d.cfg.CookieAge))
	secure := p.d.server.linksFor(p.r).base.Scheme == "https"
	h.Add("Set-Cookie", newDoorCookie(value, p.to.prefix, p.d.cfg.CookieAge, secure).String())
}

// sandboxKey gives the sandbox's own key: the one that came, else the stored
// one.
func (p *passage) sandboxKey() (string, error) {
	if p.grant.key != "" {
		return p.grant.key, nil
	}
	return p.d.server.readSecret(p.r.Context(), p.grant.row.KeyRef, "key")
}
