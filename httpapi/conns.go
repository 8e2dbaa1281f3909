package httpapi

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"bivouac.dev/bivouac/httpapi/places"
	"bivouac.dev/bivouac/httpapi/response"
)

const (
	// reservedFiles are the file descriptors kept for peers, the disk and the rest of the process.
	reservedFiles = 256
	// healthPlaces are the connections kept for health and metrics, healthShare those of one
	// address.
	healthPlaces, healthShare = 64, 16
	// leastShare divides the limit that file descriptors leave: one address gets no more.
	leastShare = 4
	// maxClosers bounds the connections that are closed beside the accepting of new ones.
	maxClosers = 256
	// refusalTime limits writing the 503 to a refused client, and what a client without a good
	// credential still sends after its request was refused.
	refusalTime = time.Second
	// healthTime is what a connection above the limits has for its request's header.
	healthTime = time.Second
)

// tooManyConnections is the response to a client for which there is no place.
const tooManyConnections = "This node has too many open connections."

// refusalText is the response to a connection that is closed before any request arrives.
const refusalText = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: " +
	"1\r\nConnection: close\r\n" +
	"Content-Length: 53\r\n\r\n" + `{"detail":"` + tooManyConnections + `"}`

// connections limits a server's open connections, all and those of one address. Connections without
// a good credential give way to new ones, whatever is under way over them, then those that wait for
// their client. When none does, a new one may ask for health and metrics only, on a few places of
// their own.
type connections struct {
	room, health *places.Room
	// exempt reports whether an address has no limit of its own.
	exempt  func(host string) bool
	metrics *metrics
	// plain is set without TLS: the client can read what is written to the connection.
	plain   bool
	closing atomic.Bool
	// closers are the closes in progress of connections that gave way; ended waits for them.
	closers chan struct{}
	ended   sync.WaitGroup
}

// placesOf returns the configured limits or, if lower, what the process's file descriptors allow. A
// proxied connection needs two.
func placesOf(cfg Config) places.Limits {
	limits := places.Limits{Total: cfg.MaxConnections, Each: cfg.MaxConnectionsPerAddress}
	const kept = reservedFiles + healthPlaces
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur < uint64(2*limits.Total+kept) {
		limits.Total = max(1, (int(files.Cur)-kept)/2)
		limits.Each = min(limits.Each, max(1, limits.Total/leastShare))
	}
	return limits
}

func newConnections(cfg Config, exempt func(host string) bool, m *metrics) *connections {
	return &connections{
		room: places.New(placesOf(cfg)), health: places.New(places.Limits{Total: healthPlaces, Each: healthShare}),
		exempt: exempt, metrics: m, plain: cfg.TLS == nil, closers: make(chan struct{}, maxClosers),
	}
}

// listen wraps l. It accepts every connection at once and closes those without a place, so that
// clients get a response instead of waiting in the kernel's queue.
func (c *connections) listen(l net.Listener) net.Listener { return &boundListener{l, c} }

type boundListener struct {
	net.Listener
	conns *connections
}

// Accept implements net.Listener.
func (l *boundListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if admitted := l.conns.admit(conn); admitted != nil {
			return admitted, nil
		}
		l.conns.refuse(conn)
	}
}

// admit gives conn a place; nil if there is none.
func (c *connections) admit(conn net.Conn) net.Conn {
	var from netip.Prefix
	address := conn.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(address); err != nil || !c.exempt(host) {
		from = places.Origin(address)
	}
	b := &bound{}
	evict := func() {
		if !c.closing.Load() || !b.asked.Load() { // a request in progress ends by itself
			c.drop(conn)
		}
	}
	if b.place = c.room.Take(from, evict); b.place == nil {
		b.onlyHealth, b.headerBy = true, time.Now().Add(healthTime)
		b.place = c.health.Take(from, evict)
	}
	if b.place == nil {
		return nil
	}
	c.metrics.connections.Inc()
	b.leave = sync.OnceFunc(func() {
		b.place.Leave()
		c.metrics.connections.Dec()
	})
	if tcp, ok := conn.(*net.TCPConn); ok {
		return &boundTCP{tcp, b}
	}
	return &boundConn{conn, b}
}

// drop closes a connection that waited for its client. Close waits until the connection's reader
// has run, for which nobody shall wait to be accepted.
func (c *connections) drop(conn net.Conn) {
	c.metrics.dropped.Inc()
	if c.closing.Load() {
		_ = conn.Close() // ended may be waited for already; nobody is accepted any more
		return
	}
	select {
	case c.closers <- struct{}{}:
		c.ended.Go(func() {
			_ = conn.Close() // nothing that a credential asked for is under way over it
			<-c.closers
		})
	default:
		_ = conn.Close() // likewise
	}
}

// refuse closes a connection, after a 503 if the client can read one. The text fits the kernel's
// send buffer.
func (c *connections) refuse(conn net.Conn) {
	c.metrics.refuse()
	if c.plain {
		_ = conn.SetWriteDeadline(time.Now().Add(refusalTime)) // closed all the same without one
		_, _ = conn.Write([]byte(refusalText))                 // the client may have left
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // or a reset could discard the response
		}
	}
	_ = conn.Close() // no request came over it
}

// bound is an open connection's place.
type bound struct {
	place *places.Place
	// onlyHealth is set for a connection above the limits. headerBy is when its next header has to be
	// there, readBy the deadline that the server set meanwhile.
	onlyHealth       bool
	headerBy, readBy time.Time
	leave            func()
	// asked is set while a request is in progress, admitted while one with a good credential is.
	asked, admitted atomic.Bool
}

// Admit implements proxy.Client: the request in progress has a good credential.
func (b *bound) Admit() {
	if b != nil && !b.admitted.Swap(true) {
		b.place.Set(places.Busy)
	}
}

// readDeadline returns the deadline to set for a server that asks for t.
func (b *bound) readDeadline(t time.Time) time.Time {
	if !b.onlyHealth || b.asked.Load() {
		return t
	}
	if b.readBy = t; t.IsZero() || t.After(b.headerBy) {
		return b.headerBy
	}
	return t
}

// boundTCP keeps the methods of a TCP connection, which net/http uses for sendfile and splice.
type boundTCP struct {
	*net.TCPConn
	bound *bound
}

// Close implements net.Conn.
func (b *boundTCP) Close() error { b.bound.leave(); return b.TCPConn.Close() }

// SetReadDeadline implements net.Conn.
func (b *boundTCP) SetReadDeadline(t time.Time) error {
	return b.TCPConn.SetReadDeadline(b.bound.readDeadline(t))
}

type boundConn struct {
	net.Conn
	bound *bound
}

// Close implements net.Conn.
func (b *boundConn) Close() error { b.bound.leave(); return b.Conn.Close() }

// SetReadDeadline implements net.Conn.
func (b *boundConn) SetReadDeadline(t time.Time) error {
	return b.Conn.SetReadDeadline(b.bound.readDeadline(t))
}

// boundOf is the place of a server's connection, nil if it has none.
func boundOf(conn net.Conn) *bound {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	switch b := conn.(type) {
	case *boundTCP:
		return b.bound
	case *boundConn:
		return b.bound
	}
	return nil
}

// note is the server's ConnState hook. A request is in progress from the end of its header on.
func (c *connections) note(conn net.Conn, state http.ConnState) {
	b := boundOf(conn)
	switch {
	case b == nil:
	case state == http.StateNew && c.closing.Load():
		_ = conn.Close() // no request came over it
	case state == http.StateActive:
		if b.asked.Store(true); b.onlyHealth {
			_ = conn.SetReadDeadline(b.readBy) // at worst the header's own stays
		}
	case state == http.StateIdle:
		b.headerBy = time.Now().Add(healthTime)
		if b.asked.Store(false); b.admitted.Swap(false) {
			b.place.Set(places.Idle)
		}
	}
}

// closeSilent closes the connections without a request, and new ones from then on:
// http.Server.Shutdown would wait five seconds for each.
func (c *connections) closeSilent() {
	c.closing.Store(true)
	for _, room := range []*places.Room{c.room, c.health} {
		for _, evict := range room.Unauthenticated() {
			evict()
		}
	}
}

type boundKey struct{}

// connContext is the server's ConnContext hook.
func connContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, boundKey{}, boundOf(conn))
}

// boundIn is the place of a request's connection, nil if it has none.
func boundIn(ctx context.Context) *bound {
	b, _ := ctx.Value(boundKey{}).(*bound)
	return b
}

// keepHealth answers 503 on connections above the limits, except for health and metrics.
func (s *Server) keepHealth(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := boundIn(r.Context())
		if b == nil || !b.onlyHealth {
			next.ServeHTTP(w, r)
			return
		}
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close") // nobody waits for the body
		}
		if isQuiet(r.URL.Path) && !s.proxy.Handles(r) {
			next.ServeHTTP(w, r)
			return
		}
		s.metrics.refuse()
		w.Header().Set("Connection", "close")
		refusal := &response.HTTPError{
			Status:     http.StatusServiceUnavailable,
			Text:       tooManyConnections,
			RetryAfter: time.Second,
		}
		response.FailureOf(refusal, response.FormatDetail, "").Write(w)
	})
}
