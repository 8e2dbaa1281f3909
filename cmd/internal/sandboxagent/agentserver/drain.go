package agentserver

import (
	"net"
	"net/http"
	"sync"
)

// freshConns tracks the connections without a request. Clients open some in advance, and
// http.Server.Shutdown waits five seconds for each, which would delay a pause.
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
		_ = c.Close() // no request came over it
		return
	}
	if f.conns == nil {
		f.conns = map[net.Conn]struct{}{}
	}
	f.conns[c] = struct{}{}
}

// close closes them, and new ones from then on.
func (f *freshConns) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closing = true
	for c := range f.conns {
		_ = c.Close() // no request came over it
	}
}
