package peernet

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

const (
	callPath = "/v1/"
	// timeoutHeader carries how many milliseconds the caller still waits.
	timeoutHeader = "Bivouac-Timeout"
	// messageHeader carries the request or the answer of a short call in the place
	// of the body, which would cost each end a write and a read of its own. Empty in
	// a request, it only asks for such an answer: the caller does not know yet whether
	// the peer's program is new enough to look there.
	messageHeader = "Bivouac-Message"
	// maxHeaderMessage bounds what messageHeader carries.
	maxHeaderMessage = 1 << 10

	// toHeader names the member that a call is for, fromHeader the one that makes it.
	toHeader   = "Bivouac-To"
	fromHeader = "Bivouac-From"

	// maxPreallocated bounds what a peer's Content-Length allocates, in bytes.
	maxPreallocated = 512 << 10

	callIdle        = 2 * time.Minute
	callPing        = 5 * time.Second
	callStreams     = 1024
	callHeaderBytes = 16 << 10
)

// Client makes peer calls over pooled HTTP/2 connections, for a node or for a program beside
// one.
type Client struct {
	connections connections
	// Self is the calling member's id, empty for a program beside a node.
	Self string
	// headers are the addresses whose peers are known to read messageHeader.
	headers sync.Map
}

// NewClient makes a client that connects at its first call.
func NewClient(creds *Credentials) *Client {
	c := &Client{}
	c.connections.make = func() *http.Transport { return newTransport(creds) }
	c.connections.current.Store(newTransport(creds))
	return c
}

func newTransport(creds *Credentials) *http.Transport {
	t := &http.Transport{
		Protocols: new(http.Protocols),
		HTTP2:     &http.HTTP2Config{SendPingTimeout: callPing, PingTimeout: callPing},
		DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return dialPeer(ctx, creds, address, protoCalls)
		},
		IdleConnTimeout:        callIdle,
		MaxResponseHeaderBytes: callHeaderBytes,
		DisableCompression:     true,
	}
	t.Protocols.SetHTTP2(true)
	return t
}

// isShort reports whether a message of a call may travel in messageHeader.
func isShort(name string, message []byte) bool {
	return (name == CallIndex || name == CallTerm) && len(message) > 0 && len(message) <= maxHeaderMessage
}

// Call posts request to the peer and reads its response, within ctx and MaxCallTimeout. An
// address that names a member (see SplitAddress) is for that member alone. An error that is
// ErrNotSent promises that the peer never saw the call.
func (c *Client) Call(ctx context.Context, address, name string, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, MaxCallTimeout)
	defer cancel()
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:      func(httptrace.GotConnInfo) { connected.Store(true) },
		WroteHeaders: func() { connected.Store(true) },
	})
	answer, err := c.post(ctx, address, name, request)
	if err != nil {
		err = fmt.Errorf("calling %s of peer %s: %w", name, address, err)
		if !connected.Load() {
			err = NotSent(err)
		}
	}
	return answer, err
}

func (c *Client) post(ctx context.Context, address, name string, request []byte) (answer []byte, err error) {
	to, address := SplitAddress(address)
	short := isShort(name, request)
	inHeader := ""
	if _, reads := c.headers.Load(address); reads && short {
		inHeader, request = string(request), nil
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+callPath+name, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	if short {
		r.Header.Set(messageHeader, inHeader)
		defer func() {
			if err != nil { // the next program at the address may be older
				c.headers.Delete(address)
			}
		}()
	}
	if to != "" {
		r.Header.Set(toHeader, to)
	}
	if c.Self != "" {
		r.Header.Set(fromHeader, c.Self)
	}
	if ids := Requests(ctx); ids != "" {
		r.Header.Set(requestsHeader, ids)
	}
	// net/http must not send the call twice: ErrNotSent would then be wrong.
	r.GetBody = nil
	if deadline, ok := ctx.Deadline(); ok {
		r.Header.Set(timeoutHeader, strconv.FormatInt(max(1, time.Until(deadline).Milliseconds()), 10))
	}
	transport := c.connections.current.Load()
	response, err := transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	node, err := nodeOf(response.TLS.PeerCertificates[0])
	if err == nil && to != "" && node != NodeName(raft.ServerID(to)) {
		err = fmt.Errorf("node %q answers where %s was called", node, to)
	}
	if err != nil {
		return nil, err
	}
	Answered(ctx, node)
	if response.Header.Get(renewedHeader) != "" {
		c.reconnect(transport)
	}
	if sent := response.Header[messageHeader]; short && len(sent) == 1 && response.StatusCode == http.StatusOK {
		c.headers.LoadOrStore(address, true)
		return []byte(sent[0]), nil
	}
	body, err := readBody(io.LimitReader(response.Body, MaxCallBytes+1), response.ContentLength)
	if err != nil {
		return nil, fmt.Errorf("reading answer: %w", err)
	}
	if len(body) > MaxCallBytes {
		return nil, fmt.Errorf("the answer is larger than %d bytes", MaxCallBytes)
	}
	if response.StatusCode == http.StatusMisdirectedRequest {
		return nil, NotSent(fmt.Errorf("the peer refused: %s", strings.TrimSpace(string(body[:min(len(body), 200)]))))
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the peer answered %d: %s", response.StatusCode,
			strings.TrimSpace(string(body[:min(len(body), 200)])))
	}
	return body, nil
}

// readBody reads a whole body. It allocates the announced length at once, within bounds.
func readBody(r io.Reader, announced int64) ([]byte, error) {
	body := bytes.NewBuffer(make([]byte, 0, min(max(announced, 0), maxPreallocated)+bytes.MinRead))
	_, err := body.ReadFrom(r)
	return body.Bytes(), err
}

// Close closes the idle connections.
func (c *Client) Close() {
	c.closeFormer()
	c.connections.current.Load().CloseIdleConnections()
}

// serveCalls runs the HTTP/2 server of the peer port until ctx ends or the
// listener closes, then waits for its handlers.
func serveCalls(ctx context.Context, l *connQueue, handle Handler, creds *Credentials, logger *slog.Logger) error {
	handlers, cancel := context.WithCancel(ctx)
	defer cancel()
	var running Gate
	s := &http.Server{
		Handler:     tellRenewed(callHandler(handle, &creds.peers, &running), creds),
		BaseContext: func(net.Listener) context.Context { return handlers },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, generationKey{}, l.made(c))
		},
		Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: callStreams,
			SendPingTimeout:      callPing,
			PingTimeout:          callPing,
		},
		TLSConfig:         &tls.Config{NextProtos: []string{protoCalls}, MinVersion: tls.VersionTLS13},
		ReadHeaderTimeout: handshakeTimeout,
		ReadTimeout:       MaxCallTimeout,
		WriteTimeout:      MaxCallTimeout + handshakeTimeout,
		IdleTimeout:       2 * callIdle, // the client closes first
		MaxHeaderBytes:    callHeaderBytes,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
	s.Protocols.SetHTTP2(true)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		_ = l.Close()
		running.Close() // their contexts have ended too
		_ = s.Close()
	})
	err := s.Serve(l)
	if !stop() {
		<-stopped
		return nil
	}
	cancel()
	running.Close()
	if errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, s.Close())
}

// callHandler is the peer port's only route. running counts the calls. The certificate is
// checked again with each: it may have been revoked since the connection was made.
func callHandler(handle Handler, peers *peerCertificates, running *Gate) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !running.Enter() {
			http.Error(w, "this node is stopping", http.StatusServiceUnavailable)
			return
		}
		defer running.Leave()
		name, ok := strings.CutPrefix(r.URL.Path, callPath)
		if !ok || r.Method != http.MethodPost || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			http.Error(w, "no such call", http.StatusNotFound)
			return
		}
		from, err := nodeOf(r.TLS.PeerCertificates[0])
		if err == nil {
			if reason := peers.refused(r.TLS.PeerCertificates[0]); reason != "" {
				err = errors.New(reason)
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		timeout := MaxCallTimeout
		if ms, err := strconv.ParseInt(r.Header.Get(timeoutHeader), 10, 64); err == nil && ms > 0 {
			timeout = min(timeout, time.Duration(ms)*time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		request := []byte(r.Header.Get(messageHeader))
		if len(request) == 0 {
			if request, err = readBody(http.MaxBytesReader(w, r.Body, MaxCallBytes), r.ContentLength); err != nil {
				http.Error(w, "reading the call: "+err.Error(), http.StatusBadRequest)
				return
			}
		}
		ctx = WithRequests(ctx, r.Header.Get(requestsHeader))
		answer, err := handle(WithParties(ctx, r.Header.Get(fromHeader), r.Header.Get(toHeader)), from, name, request)
		if errors.Is(err, ErrMisdirected) || errors.Is(err, ErrUnwelcome) {
			http.Error(w, err.Error(), http.StatusMisdirectedRequest)
			return
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if _, asked := r.Header[messageHeader]; asked && isShort(name, answer) {
			w.Header().Set(messageHeader, string(answer))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		_, _ = w.Write(answer) // the caller notices a lost response
	})
}
