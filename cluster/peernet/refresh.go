package peernet

import (
	"context"
	"crypto/x509"
	"net/http"
	"sync/atomic"
	"time"
)

// refreshInterval is how often connections are compared with the certificate in use.
const refreshInterval = time.Second

// renewedHeader tells a caller that the peer has another certificate than its connection shows.
const renewedHeader = "Bivouac-Renewed"

// refresh replaces the connections that were made with a former certificate, in both directions,
// until ctx ends. Of Raft's it closes one a second, so that a leader and its followers stay in
// contact; calls move to a new connection and none is cut off.
func (p *Port) refresh(ctx context.Context) {
	tick := time.NewTicker(refreshInterval)
	defer tick.Stop()
	for made := p.credentials.generation.Load(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.credentials.current() // a quiet cluster makes no handshakes, which would look at the files
		now := p.credentials.generation.Load()
		if made != now {
			p.out.reconnect(nil)
			made = now
		}
		p.out.closeFormer()
		p.stream.closeOutdated(now, &p.credentials.peers)
	}
}

// closeOutdated closes one connection of a former generation, and all whose peer has replaced its
// expired certificate.
func (s *raftStream) closeOutdated(generation uint64, peers *peerCertificates) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := true
	for c := range s.open {
		if c.replaced {
			continue
		}
		former := one && c.generation != generation
		if former {
			one = false
		}
		if shown := c.ConnectionState().PeerCertificates; former || len(shown) > 0 && peers.isOutdated(shown[0], time.Now()) {
			c.replaced = true
			_ = c.NetConn().Close()
		}
	}
}

// FormerConnections counts Raft's open connections that were made with a former certificate of
// this node, or with one of the peer that has expired.
func (p *Port) FormerConnections() (count int) {
	now := p.credentials.generation.Load()
	p.stream.mu.Lock()
	defer p.stream.mu.Unlock()
	for c := range p.stream.open {
		if c.replaced {
			continue
		}
		if shown := c.ConnectionState().PeerCertificates; c.generation != now ||
			len(shown) > 0 && time.Now().After(shown[0].NotAfter) {
			count++
		}
	}
	return count
}

// connections are a client's, and those of the certificate before, whose calls may not have ended.
type connections struct {
	current atomic.Pointer[http.Transport]
	former  atomic.Pointer[http.Transport]
	make    func() *http.Transport
}

// reconnect has the next calls make new connections. With a transport, only if that is still the
// current one.
func (c *Client) reconnect(of *http.Transport) {
	current := c.connections.current.Load()
	if of != nil && of != current {
		return
	}
	if c.connections.current.CompareAndSwap(current, c.connections.make()) {
		if older := c.connections.former.Swap(current); older != nil {
			older.CloseIdleConnections()
		}
		c.closeFormer()
	}
}

// closeFormer closes the former connections on which no call is left.
func (c *Client) closeFormer() {
	if former := c.connections.former.Load(); former != nil {
		former.CloseIdleConnections()
	}
}

// refused says why calls on a connection with the peer's certificate are refused, "" if they are
// not.
func (p *peerCertificates) refused(c *x509.Certificate) string {
	switch {
	case p.isRevoked(c):
		return "the certificate is revoked"
	case p.isOutdated(c, time.Now()):
		return "the certificate has expired"
	}
	return ""
}

// generationKey is the context key of a connection's generation.
type generationKey struct{}

// tellRenewed marks responses on connections that were made with a former certificate.
func tellRenewed(next http.Handler, creds *Credentials) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if made, _ := r.Context().Value(generationKey{}).(uint64); made != creds.generation.Load() {
			w.Header().Set(renewedHeader, "true")
		}
		next.ServeHTTP(w, r)
	})
}
