package httpapi

import (
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

const (
	// reservedFiles are the file descriptors kept for peers, the disk and the rest of the process.
	reservedFiles = 256
	// refusalTime limits writing the 503 to a refused client.
	refusalTime = time.Second
)

// refusalText is the response to a connection above the limit. It is sent before any request
// arrives.
const refusalText = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n" +
	"Content-Length: 53\r\n\r\n" + `{"detail":"This node has too many open connections."}`

// connections limits a server's open connections. It also tracks those that have sent no request
// yet, because http.Server.Shutdown would wait five seconds for each.
type connections struct {
	limit int
	// plain is set without TLS: the client can read what is written to the connection.
	plain bool

	mu      sync.Mutex
	open    int
	fresh   map[net.Conn]struct{}
	closing bool
}

// newConnections applies the configured limit or, if lower, what the process's file descriptors
// allow. A proxied connection needs two.
func newConnections(limit int, plain bool) *connections {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur < uint64(2*limit+reservedFiles) {
		limit = max(1, (int(files.Cur)-reservedFiles)/2)
	}
	return &connections{limit: limit, plain: plain, fresh: map[net.Conn]struct{}{}}
}

// listen wraps l. It accepts every connection at once and closes those above the limit, so that
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
		if l.conns.admit() {
			return l.conns.count(conn), nil
		}
		l.conns.refuse(conn)
	}
}

func (c *connections) admit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open >= c.limit {
		return false
	}
	c.open++
	return true
}

// refuse closes a connection, after a 503 if the client can read one. The text fits the kernel's
// send buffer.
func (c *connections) refuse(conn net.Conn) {
	if c.plain {
		_ = conn.SetWriteDeadline(time.Now().Add(refusalTime)) // closed all the same without one
		_, _ = conn.Write([]byte(refusalText))                 // the client may have left
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // or a reset could discard the response
		}
	}
	_ = conn.Close() // no request came over it
}

// count wraps conn, which counts as open until it is closed.
func (c *connections) count(conn net.Conn) net.Conn {
	done := sync.OnceFunc(func() {
		c.mu.Lock()
		c.open--
		c.mu.Unlock()
	})
	if tcp, ok := conn.(*net.TCPConn); ok {
		return &boundTCP{tcp, done}
	}
	return &boundConn{conn, done}
}

// boundTCP keeps the methods of a TCP connection, which net/http uses for sendfile and splice.
type boundTCP struct {
	*net.TCPConn
	done func()
}

// Close implements net.Conn.
func (b *boundTCP) Close() error { b.done(); return b.TCPConn.Close() }

type boundConn struct {
	net.Conn
	done func()
}

// Close implements net.Conn.
func (b *boundConn) Close() error { b.done(); return b.Conn.Close() }

// note is the server's ConnState hook.
func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	closing := c.closing && state == http.StateNew
	if state == http.StateNew {
		c.fresh[conn] = struct{}{}
	} else {
		delete(c.fresh, conn)
	}
	c.mu.Unlock()
	if closing {
		_ = conn.Close() // no request came over it
	}
}

// closeFresh closes the connections without a request, and new ones from then on.
func (c *connections) closeFresh() {
	c.mu.Lock()
	c.closing = true
	var idle []net.Conn
	for conn := range c.fresh {
		idle = append(idle, conn)
	}
	c.mu.Unlock()
	for _, conn := range idle {
		_ = conn.Close() // no request came over it
	}
}
