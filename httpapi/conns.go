package httpapi

import (
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

const (
	// reservedFiles are the file descriptors a node keeps for its peers, its disk
	// and its other neighbours.
	reservedFiles = 256
	// refusalTime bounds how long telling a client that it was refused may take.
	refusalTime = time.Second
)

// refusalText is what a connection above the limit gets: the answer comes before
// any request and closes the connection.
const refusalText = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n" +
	"Content-Length: 53\r\n\r\n" + `{"detail":"This node has too many open connections."}`

// connections bounds how many connections a server has open, and knows those
// over which no request has come yet: http.Server.Shutdown would wait five
// seconds for each.
type connections struct {
	limit int
	// plain: what is written to a connection is what the client reads.
	plain bool

	mu      sync.Mutex
	open    int
	fresh   map[net.Conn]struct{}
	closing bool
}

// newConnections bounds them by what is configured and by half of the file
// descriptors this process may have: behind the door each connection has another.
func newConnections(limit int, plain bool) *connections {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur < uint64(2*limit+reservedFiles) {
		limit = max(1, (int(files.Cur)-reservedFiles)/2)
	}
	return &connections{limit: limit, plain: plain, fresh: map[net.Conn]struct{}{}}
}

// listen gives l with the bound: it accepts every connection at once, so that
// nobody waits unanswered in the kernel's queue, and closes those above it.
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

// refuse closes a connection, with an answer if it can be read. The kernel takes
// so few bytes at once.
func (c *connections) refuse(conn net.Conn) {
	if c.plain {
		_ = conn.SetWriteDeadline(time.Now().Add(refusalTime)) // without one it is closed all the same
		_, _ = conn.Write([]byte(refusalText))                 // the client may be gone
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // or the answer could be lost to a reset
		}
	}
	_ = conn.Close() // nothing was asked over it
}

// count gives conn so that it is counted until it is closed, by whoever has it
// then.
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

// boundTCP keeps what a TCP connection can do more than others: net/http and the
// kernel know shorter ways for it.
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
		_ = conn.Close() // nothing was asked over it
	}
}

// closeFresh closes the connections nothing was asked over, and what comes after.
func (c *connections) closeFresh() {
	c.mu.Lock()
	c.closing = true
	var idle []net.Conn
	for conn := range c.fresh {
		idle = append(idle, conn)
	}
	c.mu.Unlock()
	for _, conn := range idle {
		_ = conn.Close() // nothing was asked over it
	}
}
