package agentserver

import (
	"net"
	"net/http"
	"sync"
)

// freshConns knows the connections over which no request has come yet. Clients
// open such ones in advance, and http.Server.Shutdown waits five seconds for
// each: a pause would take as long.
type freshConns struct {
	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	closing bool
}

// note is the server's ConnState hook.
func (f *freshConns) note(c net.Conn, state http.ConnState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if state != http.StateNew {
		delete(f.conns, c)
		return
	}
	if f.closing {
		_ = c.Close() // nothing was asked over it
		return
	}
	if f.conns == nil {
		f.conns = map[net.Conn]struct{}{}
	}
	f.conns[c] = struct{}{}
}

// close closes them, and whatever comes after.
func (f *freshConns) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closing = true
	for c := range f.conns {
		_ = c.Close() // nothing was asked over it
	}
}
