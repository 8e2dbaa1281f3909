package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/fsm"
)

// The agent server's close codes (api-contract.md C.4).
const (
	closeUnauthorized websocket.StatusCode = 4001
	closeUnknown      websocket.StatusCode = 4004
)

// maxKnocking is how many WebSockets may wait on one node for their first frame,
// or to be closed without having been let in.
const maxKnocking = 1024

// closeTime bounds saying goodbye to one side of a WebSocket.
const closeTime = 2 * time.Second

// sockets are the agent server's WebSockets. Other upgrades are the reverse
// proxy's; these are taken apart into messages, because the key may come in the
// first one, which no sandbox should see before it was checked, and because a
// client should be told with a close frame that its sandbox is gone.
type sockets struct {
	client   *http.Client
	knocking atomic.Int64
}

func newSockets(transport http.RoundTripper) *sockets {
	return &sockets{client: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// pass connects a client whose request was authorised.
func (s *sockets) pass(p *passage) error {
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
		return nil // accept has answered
	}
	s.bridge(p, client, backend)
	return nil
}

// knock takes a client in without a key, for as long as it may take to send
// one, and treats it the same whatever it asked for. It is not let near the
// sandbox before.
func (s *sockets) knock(p *passage, ex *exchange) error {
	if s.knocking.Add(1) > maxKnocking {
		s.knocking.Add(-1)
		return errTooManyRequests()
	}
	waiting := true
	arrived := func() {
		if waiting {
			waiting = false
			s.knocking.Add(-1)
		}
	}
	defer arrived()
	p.visit = p.d.streams.enroll(p.r.Context())
	defer p.visit.end()
	if !p.d.streams.stream(p.visit) {
		return errStopping()
	}
	p.clearDeadlines()
	client, err := s.accept(p, nil)
	if err != nil {
		return nil // accept has answered
	}
	defer func() { _ = client.CloseNow() }()
	if err := p.introduce(client, ex); err != nil {
		ex.err = err
		p.w.status = failureOf(err, shapeDetail, "").status
		s.turnAway(client, err)
		return nil
	}
	arrived()
	s.connect(p, client, ex)
	return nil
}

// connect brings a client that has shown its key to the sandbox.
func (s *sockets) connect(p *passage, client *websocket.Conn, ex *exchange) {
	end, err := p.enter()
	if err != nil {
		ex.err = err
		s.turnAway(client, err)
		return
	}
	defer end()
	backend, res, err := s.dial(p, nil)
	if err != nil {
		ex.err = err
		if res != nil && res.StatusCode == http.StatusNotFound {
			s.close(client, closeUnknown, "Not Found")
			return
		}
		s.turnAway(client, err)
		return
	}
	defer func() { _ = backend.CloseNow() }()
	s.bridge(p, client, backend)
}

// introduce reads the first frame and admits its sender.
func (p *passage) introduce(client *websocket.Conn, ex *exchange) error {
	// A read that its context ends breaks the connection off without a code.
	late := time.AfterFunc(p.d.cfg.AuthTimeout, func() { p.d.sockets.turnAway(client, errUnauthorized()) })
	_, frame, err := client.Read(p.visit.ctx)
	if !late.Stop() && err == nil {
		return errUnauthorized()
	}
	if err != nil {
		if cut := cutOf(p.visit.ctx); cut != nil {
			return errStopping()
		}
		return errUnauthorized()
	}
	var auth struct {
		Type string `json:"type"`
		Key  string `json:"session_api_key"`
	}
	if json.Unmarshal(frame, &auth) != nil || auth.Type != "auth" || auth.Key == "" {
		return errUnauthorized()
	}
	return p.admit(credentials{header: auth.Key}, ex)
}

func errStopping() error {
	return &fsm.Error{Code: fsm.CodeShuttingDown, Message: "this node is stopping"}
}

// refuse takes a WebSocket in only to close it with the code that fits: a
// browser tells its page nothing of an answer without an upgrade but 1006. What
// is no WebSocket gets err.
func (s *sockets) refuse(p *passage, ex *exchange, err error) error {
	if !strings.EqualFold(p.r.Header.Get("Upgrade"), "websocket") {
		return err
	}
	if s.knocking.Add(1) > maxKnocking {
		s.knocking.Add(-1)
		return err
	}
	defer s.knocking.Add(-1)
	p.visit = p.d.streams.enroll(p.r.Context())
	defer p.visit.end()
	p.clearDeadlines()
	client, failed := s.accept(p, subprotocols(p.r))
	if failed != nil {
		return nil // accept has answered
	}
	defer func() { _ = client.CloseNow() }()
	ex.err = err
	p.w.status = failureOf(err, shapeDetail, "").status
	s.turnAway(client, err)
	return nil
}

// turnAway closes with the code that fits.
func (s *sockets) turnAway(client *websocket.Conn, err error) {
	code, text := websocket.StatusTryAgainLater, "The sandbox does not answer."
	switch f := failureOf(err, shapeDetail, ""); {
	case isPaused(err):
		code, text = closePaused, "The sandbox is paused."
	case f.status == http.StatusUnauthorized || f.status == http.StatusNotFound:
		code, text = closeUnauthorized, "Authentication failed"
	}
	s.close(client, code, text)
}

func (s *sockets) accept(p *passage, chosen []string) (*websocket.Conn, error) {
	// Any origin may: a key is shown, and nothing a browser adds by itself counts.
	client, err := websocket.Accept(p.w, p.r, &websocket.AcceptOptions{InsecureSkipVerify: true, Subprotocols: chosen})
	if err != nil {
		return nil, fmt.Errorf("accepting a WebSocket: %w", err)
	}
	return client, nil
}

// dial opens the agent server's end. A response that is no upgrade is given
// with the error.
func (s *sockets) dial(p *passage, offered []string) (*websocket.Conn, *http.Response, error) {
	if !p.d.streams.stream(p.visit) {
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
	ctx, cancel := context.WithTimeout(p.visit.ctx, p.d.cfg.DialTimeout+p.d.cfg.AuthTimeout)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, to.String(), &websocket.DialOptions{
		HTTPClient: s.client, HTTPHeader: header, Host: p.r.Host, Subprotocols: offered,
	})
	if err == nil {
		return conn, res, nil
	}
	// The error's text holds the URL, whose query is not ours to show.
	var whole *url.Error
	if errors.As(err, &whole) {
		err = whole.Err
	}
	return nil, res, &refusal{status: http.StatusBadGateway, text: "The sandbox does not answer.", cause: err}
}

// relayRefusal hands on what the agent server said instead of upgrading.
func relayRefusal(p *passage, res *http.Response) error {
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		return refuse(http.StatusBadGateway, "The sandbox does not answer.")
	}
	if kind := res.Header.Get("Content-Type"); kind != "" {
		p.w.Header().Set("Content-Type", kind)
	}
	p.w.WriteHeader(res.StatusCode)
	_, _ = io.Copy(p.w, res.Body) // already read into memory; the client may be gone
	return nil
}

// subprotocols are what a client offers to speak.
func subprotocols(r *http.Request) []string {
	var out []string
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ","), ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// bridge carries messages both ways until one side is done or the sandbox is
// gone, and tells the other side why.
func (s *sockets) bridge(p *passage, client, backend *websocket.Conn) {
	open := p.d.metrics.streams.WithLabelValues(portLabel(p.grant.port))
	open.Inc()
	defer open.Dec()
	client.SetReadLimit(-1)
	backend.SetReadLimit(-1)
	// Ending a read by its context would break the connection off without a
	// close frame, so the reads have a context that ends when all is said.
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
		code, reason := farewell(first.err)
		s.close(first.to, code, reason)
	case <-p.visit.ctx.Done():
		reason := ""
		if cut := cutOf(p.visit.ctx); cut != nil {
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

// close says goodbye, and does not wait long for the same.
func (s *sockets) close(conn *websocket.Conn, code websocket.StatusCode, reason string) {
	late := time.AfterFunc(closeTime, func() { _ = conn.CloseNow() })
	defer late.Stop()
	_ = conn.Close(code, reason) // the other side may be gone
}

// relay carries messages one way and calls carried after each.
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

// farewell gives the close code to hand on for what ended one side.
func farewell(err error) (websocket.StatusCode, string) {
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
