package limits

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

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/httpapi/places"
)

const (
	// reservedFiles are the file descriptors kept for peers, the disk and the rest of the process.
	reservedFiles = 256
	// HealthPlaces are the connections kept for health and metrics, healthShare those of one
	// address.
	HealthPlaces, healthShare = 64, 16
	// leastShare divides the limit that file descriptors leave: one address gets no more.
	leastShare = 4
	// maxClosers bounds the connections that are closed beside the accepting of new ones.
	maxClosers = 256
	// RefusalTime limits writing the 503 to a refused client, and what a client without a good
	// credential still sends after its request was refused.
	RefusalTime = time.Second
	// healthTime is what a connection above the limits has for its request's header.
	healthTime = time.Second
)

// TooManyConnections is the response to a client for which there is no place.
const TooManyConnections = "This node has too many open connections."

// refusalText is the response to a connection that is closed before any request arrives.
const refusalText = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: " +
	"1\r\nConnection: close\r\n" +
	"Content-Length: 53\r\n\r\n" + `{"detail":"` + TooManyConnections + `"}`

// Connections limits a server's open connections, all and those of one address. Connections without
// a good credential give way to new ones, whatever is under way over them, then those that wait for
// their client. When none does, a new one may ask for health and metrics only, on a few places of
// their own.
type Connections struct {
	// Room has the places, Health those for health and metrics.
	Room, Health *places.Room
	// exempt reports whether an address has no limit of its own.
	exempt  func(host string) bool
	metrics ConnMetrics
	// plain is set without TLS: the client can read what is written to the connection.
	plain   bool
	closing atomic.Bool
	// closers are the closes in progress of connections that gave way; ended waits for them.
	closers chan struct{}
	ended   sync.WaitGroup
}

// placesOf returns limits or, if lower, what the process's file descriptors allow. A proxied
// connection needs two.
func placesOf(limits places.Limits) places.Limits {
	const kept = reservedFiles + HealthPlaces
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur < uint64(2*limits.Total+kept) {
		limits.Total = max(1, (int(files.Cur)-kept)/2)
		limits.Each = min(limits.Each, max(1, limits.Total/leastShare))
	}
	return limits
}

// ConnMetrics count connections. Open are the open ones, Dropped gave way to a newcomer, and Refuse
// counts one that got no place.
type ConnMetrics struct {
	Open    prometheus.Gauge
	Dropped prometheus.Counter
	Refuse  func()
}

// NewConnections makes a server's connections. plain says that the server has no TLS.
func NewConnections(limits places.Limits, plain bool, exempt func(host string) bool, m ConnMetrics) *Connections {
	return &Connections{
		Room:   places.New(placesOf(limits)),
		Health: places.New(places.Limits{Total: HealthPlaces, Each: healthShare}),
		exempt: exempt, metrics: m, plain: plain, closers: make(chan struct{}, maxClosers),
	}
}

// SetLimits replaces the limits for connections that come from now on.
func (c *Connections) SetLimits(limits places.Limits) { c.Room.SetLimits(placesOf(limits)) }

// Wait waits for the closes in progress. It is called once nobody is accepted any more.
func (c *Connections) Wait() { c.ended.Wait() }

// Listen wraps l. It accepts every connection at once and closes those without a place, so that
// clients get a response instead of waiting in the kernel's queue.
func (c *Connections) Listen(l net.Listener) net.Listener { return &listener{l, c} }

type listener struct {
	net.Listener
	conns *Connections
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
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
func (c *Connections) admit(conn net.Conn) net.Conn {
	var from netip.Prefix
	address := conn.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(address); err != nil || !c.exempt(host) {
		from = places.Origin(address)
	}
	b := &Conn{}
	evict := func() {
		if !c.closing.Load() || !b.asked.Load() { // a request in progress ends by itself
			c.drop(conn)
		}
	}
	if b.place = c.Room.Take(from, evict); b.place == nil {
		b.onlyHealth, b.headerBy = true, time.Now().Add(healthTime)
		b.place = c.Health.Take(from, evict)
	}
	if b.place == nil {
		return nil
	}
	c.metrics.Open.Inc()
	b.leave = sync.OnceFunc(func() {
		b.place.Leave()
		c.metrics.Open.Dec()
	})
	if tcp, ok := conn.(*net.TCPConn); ok {
		return &tcpConn{tcp, b}
	}
	return &otherConn{conn, b}
}

// drop closes a connection that waited for its client. Close waits until the connection's reader
// has run, for which nobody shall wait to be accepted.
func (c *Connections) drop(conn net.Conn) {
	c.metrics.Dropped.Inc()
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
func (c *Connections) refuse(conn net.Conn) {
	c.metrics.Refuse()
	if c.plain {
		_ = conn.SetWriteDeadline(time.Now().Add(RefusalTime)) // closed all the same without one
		_, _ = conn.Write([]byte(refusalText))                 // the client may have left
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // or a reset could discard the response
		}
	}
	_ = conn.Close() // no request came over it
}

// Conn is an open connection's place.
type Conn struct {
	place *places.Place
	// onlyHealth is set for a connection above the limits. headerBy is when its next header has to be
	// there, readBy the deadline that the server set meanwhile.
	onlyHealth       bool
	headerBy, readBy time.Time
	leave            func()
	// asked is set while a request is in progress, admitted while one with a good credential is.
	asked, admitted atomic.Bool
}

// OnlyHealth reports whether the connection is above the limits.
func (b *Conn) OnlyHealth() bool { return b != nil && b.onlyHealth }

// HasCredential reports whether the request in progress has a good credential.
func (b *Conn) HasCredential() bool { return b.admitted.Load() }

// Admit implements proxy.Client: the request in progress has a good credential.
func (b *Conn) Admit() {
	if b != nil && !b.admitted.Swap(true) {
		b.place.Set(places.Busy)
	}
}

// readDeadline returns the deadline to set for a server that asks for t.
func (b *Conn) readDeadline(t time.Time) time.Time {
	if !b.onlyHealth || b.asked.Load() {
		return t
	}
	if b.readBy = t; t.IsZero() || t.After(b.headerBy) {
		return b.headerBy
	}
	return t
}

// tcpConn keeps the methods of a TCP connection, which net/http uses for sendfile and splice.
type tcpConn struct {
	*net.TCPConn
	bound *Conn
}

// Close implements net.Conn.
func (b *tcpConn) Close() error { b.bound.leave(); return b.TCPConn.Close() }

// SetReadDeadline implements net.Conn.
func (b *tcpConn) SetReadDeadline(t time.Time) error {
	return b.TCPConn.SetReadDeadline(b.bound.readDeadline(t))
}

type otherConn struct {
	net.Conn
	bound *Conn
}

// Close implements net.Conn.
func (b *otherConn) Close() error { b.bound.leave(); return b.Conn.Close() }

// SetReadDeadline implements net.Conn.
func (b *otherConn) SetReadDeadline(t time.Time) error {
	return b.Conn.SetReadDeadline(b.bound.readDeadline(t))
}

// connOf is the place of a server's connection, nil if it has none.
func connOf(conn net.Conn) *Conn {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	switch b := conn.(type) {
	case *tcpConn:
		return b.bound
	case *otherConn:
		return b.bound
	}
	return nil
}

// Note is the server's ConnState hook. A request is in progress from the end of its header on.
func (c *Connections) Note(conn net.Conn, state http.ConnState) {
	b := connOf(conn)
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

// CloseSilent closes the connections without a request, and new ones from then on:
// http.Server.Shutdown would wait five seconds for each.
func (c *Connections) CloseSilent() {
	c.closing.Store(true)
	for _, room := range []*places.Room{c.Room, c.Health} {
		for _, evict := range room.Unauthenticated() {
			evict()
		}
	}
}

type connKey struct{}

// ConnContext is the server's ConnContext hook.
func ConnContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, connOf(conn))
}

// ConnIn is the place of a request's connection, nil if it has none.
func ConnIn(ctx context.Context) *Conn {
	b, _ := ctx.Value(connKey{}).(*Conn)
	return b
}
