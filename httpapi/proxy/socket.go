package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/places"
	"bivouac.dev/bivouac/httpapi/response"
)

// The agent server's close codes (PROTOCOL.md, "Close codes").
const (
	CloseUnauthorized websocket.StatusCode = 4001
	CloseUnknown      websocket.StatusCode = 4004
)

// CloseTime limits the close handshake with one side of a WebSocket.
const CloseTime = 2 * time.Second

// sockets proxies the agent server's WebSockets; the reverse proxy handles other upgrades. It works
// on messages, because the first one may hold the key, which must be checked before the sandbox
// sees anything, and because clients need a close frame when the sandbox stops.
type sockets struct {
	client *http.Client
	// unauthenticated are the clients without a key. The oldest gives way to a new one.
	unauthenticated *places.Room
}

func newSockets(transport http.RoundTripper, limits places.Limits) *sockets {
	return &sockets{unauthenticated: places.New(limits), client: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// pass connects an authorised client.
func (s *sockets) pass(p *request) error {
	backend, res, err := s.dial(p, subprotocols(p.r))
	if err != nil && res != nil && res.StatusCode != http.StatusSwitchingProtocols {
		return relayRefusal(p, res)
	}
	if err != nil {
		return err
	}
	defer func() { _ = backend.CloseNow() }()
	p.clearDeadlines()
	var chosen []string
	if name := backend.Subprotocol(); name != "" {
		chosen = []string{name}
	}
	client, err := s.accept(p, chosen)
	if err != nil {
		return nil // accept has responded
	}
	s.bridge(p, client, backend)
	return nil
}

// acceptUnauthenticated upgrades a client without a key and waits for a frame with one. It does not
// contact the sandbox before, and an unknown sandbox looks the same.
func (s *sockets) acceptUnauthenticated(p *request, ex *RequestInfo) error {
	leave := s.wait(p)
	defer leave()
	defer p.session.end()
	if !p.proxy.sessions.last(p.session) {
		return errStopping()
	}
	p.clearDeadlines()
	client, err := s.accept(p, nil)
	if err != nil {
		return nil // accept has responded
	}
	defer func() { _ = client.CloseNow() }()
	if err := p.authenticate(client, ex); err != nil {
		ex.Err = err
		p.w.status = response.FailureOf(err, response.FormatDetail, "").Status
		s.closeFor(client, err)
		return nil
	}
	leave()
	s.connect(p, client, ex)
	return nil
}

// wait begins the session of a client without a key. The caller ends it and calls leave. The
// session ends early if the client gives way to a newer one.
func (s *sockets) wait(p *request) (leave func()) {
	session := p.proxy.sessions.enroll(p.r.Context())
	p.session = session
	place := s.unauthenticated.Take(places.Origin(p.proxy.server.ClientAddress(p.r)),
		func() { session.cancel(errGaveWay()) })
	if place == nil { // everyone in this room waits, so one gives way
		session.cancel(errGaveWay())
		return func() {}
	}
	return place.Leave
}

// connect connects an authenticated client to the sandbox.
func (s *sockets) connect(p *request, client *websocket.Conn, ex *RequestInfo) {
	end, err := p.enter()
	if err != nil {
		ex.Err = err
		s.closeFor(client, err)
		return
	}
	defer end()
	backend, res, err := s.dial(p, nil)
	if err != nil {
		ex.Err = err
		if res != nil && res.StatusCode == http.StatusNotFound {
			s.close(client, CloseUnknown, "Not Found")
			return
		}
		s.closeFor(client, err)
		return
	}
	defer func() { _ = backend.CloseNow() }()
	s.bridge(p, client, backend)
}

// authenticate reads the first frame and authorises the request.
func (p *request) authenticate(client *websocket.Conn, ex *RequestInfo) error {
	// Cancelling a read closes the connection without a close code, so others close it.
	late := time.AfterFunc(p.proxy.cfg.AuthTimeout, func() { p.proxy.sockets.closeFor(client, response.Unauthorized()) })
	ended := context.AfterFunc(p.session.ctx, func() {
		if cut := endOf(p.session.ctx); cut != nil && !cut.crowded {
			p.proxy.sockets.closeFor(client, errStopping())
		}
		_ = client.CloseNow()
	})
	defer ended()
	_, frame, err := client.Read(context.WithoutCancel(p.session.ctx))
	if !late.Stop() && err == nil {
		return response.Unauthorized()
	}
	if err != nil {
		switch cut := endOf(p.session.ctx); {
		case cut == nil:
		case cut.crowded:
			return response.TooManyRequests()
		default:
			return errStopping()
		}
		return response.Unauthorized()
	}
	var auth struct {
		Type string `json:"type"`
		Key  string `json:"session_api_key"`
	}
	if json.Unmarshal(frame, &auth) != nil || auth.Type != "auth" || auth.Key == "" {
		return response.Unauthorized()
	}
	return p.admit(credentials{header: auth.Key}, ex)
}

func errStopping() error {
	return &fsm.Error{Code: fsm.CodeShuttingDown, Message: "this node is stopping"}
}

// refuse accepts a WebSocket only to close it with a code: without an upgrade a browser reports
// only 1006. Other upgrades get err.
func (s *sockets) refuse(p *request, ex *RequestInfo, err error) error {
	if !strings.EqualFold(p.r.Header.Get("Upgrade"), "websocket") {
		return err
	}
	leave := s.wait(p)
	defer leave()
	defer p.session.end()
	p.clearDeadlines()
	client, failed := s.accept(p, subprotocols(p.r))
	if failed != nil {
		return nil // accept has responded
	}
	defer func() { _ = client.CloseNow() }()
	defer context.AfterFunc(p.session.ctx, func() { _ = client.CloseNow() })()
	ex.Err = err
	p.w.status = response.FailureOf(err, response.FormatDetail, "").Status
	s.closeFor(client, err)
	return nil
}

// closeFor closes with the code for an error.
func (s *sockets) closeFor(client *websocket.Conn, err error) {
	code, text := websocket.StatusTryAgainLater, "The sandbox does not answer."
	switch f := response.FailureOf(err, response.FormatDetail, ""); {
	case isPaused(err):
		code, text = closePaused, "The sandbox is paused."
	case fsm.CodeOf(err) == fsm.CodeShuttingDown:
		code, text = websocket.StatusServiceRestart, "this node is stopping"
	case f.Status == http.StatusUnauthorized || f.Status == http.StatusNotFound:
		code, text = CloseUnauthorized, "Authentication failed"
	}
	s.close(client, code, text)
}

func (s *sockets) accept(p *request, chosen []string) (*websocket.Conn, error) {
	// Any origin is allowed: access needs a key, and browsers add none by themselves.
	client, err := websocket.Accept(p.w, p.r, &websocket.AcceptOptions{InsecureSkipVerify: true, Subprotocols: chosen})
	if err != nil {
		return nil, fmt.Errorf("accepting a WebSocket: %w", err)
	}
	return client, nil
}

// dial connects to the agent server. It returns a response without an upgrade along with the error.
func (s *sockets) dial(p *request, offered []string) (*websocket.Conn, *http.Response, error) {
	if !p.proxy.sessions.last(p.session) {
		return nil, nil, errStopping()
	}
	key, err := p.sandboxKey()
	if err != nil {
		return nil, nil, err
	}
	p.grant.key = key
	header := http.Header{}
	if agent := p.r.UserAgent(); agent != "" {
		header.Set("User-Agent", agent)
	}
	p.outHeader(header)
	path, raw := p.path()
	to := url.URL{Scheme: "ws", Host: p.address(), Path: path, RawPath: raw, RawQuery: p.query()}
	ctx, cancel := context.WithTimeout(p.session.ctx, p.proxy.cfg.DialTimeout+p.proxy.cfg.AuthTimeout)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, to.String(), &websocket.DialOptions{
		HTTPClient: s.client, HTTPHeader: header, Host: p.r.Host, Subprotocols: offered,
	})
	if err == nil {
		return conn, res, nil
	}
	// The error's text holds the URL, whose query may be secret.
	var whole *url.Error
	if errors.As(err, &whole) {
		err = whole.Err
	}
	return nil, res, &response.HTTPError{Status: http.StatusBadGateway, Text: "The sandbox does not answer.", Cause: err}
}

// relayRefusal forwards the agent server's response to the upgrade.
func relayRefusal(p *request, res *http.Response) error {
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		return response.Error(http.StatusBadGateway, "The sandbox does not answer.")
	}
	if kind := res.Header.Get("Content-Type"); kind != "" {
		p.w.Header().Set("Content-Type", kind)
	}
	p.w.WriteHeader(res.StatusCode)
	_, _ = io.Copy(p.w, res.Body) // the body is in memory; the client may have left
	return nil
}

// subprotocols are those that the client offers.
func subprotocols(r *http.Request) []string {
	var out []string
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ","), ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// bridge relays messages both ways until one side closes or the session ends. It closes the other
// side with the reason.
func (s *sockets) bridge(p *request, client, backend *websocket.Conn) {
	open := p.proxy.metrics.streams.WithLabelValues(portLabel(p.grant.port))
	open.Inc()
	defer open.Dec()
	client.SetReadLimit(-1)
	backend.SetReadLimit(-1)
	// Cancelling a read closes the connection without a close frame, so the reads get a context
	// that ends last.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type outcome struct {
		to  *websocket.Conn
		err error
	}
	over := make(chan outcome, 2)
	conversation := strings.TrimPrefix(p.to.rest, "/sockets/events/")
	go func() { over <- outcome{backend, relay(ctx, backend, client, func() { p.talked(conversation) })} }()
	go func() { over <- outcome{client, relay(ctx, client, backend, func() {})} }()
	ends := 2
	select {
	case first := <-over:
		ends--
		code, reason := closeStatus(first.err)
		s.close(first.to, code, reason)
	case <-p.session.ctx.Done():
		reason := ""
		if cut := endOf(p.session.ctx); cut != nil {
			reason = cut.reason
		}
		s.close(client, websocket.StatusServiceRestart, reason)
	}
	_ = client.CloseNow()
	_ = backend.CloseNow()
	for range ends {
		<-over
	}
}

// close sends a close frame and waits at most CloseTime for the reply.
func (s *sockets) close(conn *websocket.Conn, code websocket.StatusCode, reason string) {
	late := time.AfterFunc(CloseTime, func() { _ = conn.CloseNow() })
	defer late.Stop()
	_ = conn.Close(code, reason) // the other side may have left
}

// relay copies messages one way and calls carried after each.
func relay(ctx context.Context, to, from *websocket.Conn, carried func()) error {
	for {
		kind, r, err := from.Reader(ctx)
		if err != nil {
			return err
		}
		w, err := to.Writer(ctx, kind)
		if err != nil {
			return err
		}
		if _, err := io.Copy(w, r); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		carried()
	}
}

// closeStatus returns the close code to forward for the error that ended one side.
func closeStatus(err error) (websocket.StatusCode, string) {
	var said websocket.CloseError
	switch {
	case !errors.As(err, &said):
		return websocket.StatusGoingAway, ""
	case said.Code == websocket.StatusNoStatusRcvd:
		return websocket.StatusNormalClosure, ""
	case said.Code == websocket.StatusAbnormalClosure || said.Code == websocket.StatusTLSHandshake:
		return websocket.StatusGoingAway, ""
	}
	return said.Code, said.Reason
}
