package peernet

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Fingerprint is the SHA-256 of a certificate's DER in lower-case hex. "openssl x509
// -fingerprint -sha256" prints the same digits with colons, in upper case.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// peerCertificates are the certificates that peers have shown, and the revoked ones.
type peerCertificates struct {
	shown   sync.Map // the last *x509.Certificate by node name
	revoked atomic.Pointer[func(*x509.Certificate) bool]
}

// isRevoked reports whether a certificate is revoked.
func (p *peerCertificates) isRevoked(c *x509.Certificate) bool {
	revoked := p.revoked.Load()
	return revoked != nil && (*revoked)(c)
}

// verify is verifyNode, and refuses revoked certificates.
func (c *Credentials) verify(state tls.ConnectionState) error {
	name, err := verifyNode(state)
	if err != nil {
		return err
	}
	leaf := state.PeerCertificates[0]
	if c.peers.isRevoked(leaf) {
		return fmt.Errorf("the certificate of node %q is revoked (bivouac runbook members)", name)
	}
	c.peers.shown.Store(name, leaf)
	return nil
}

// Shown gives the fingerprint of the certificate that the named node has shown last, "" for
// none.
func (p *Port) Shown(name string) string {
	if leaf := p.credentials.peers.last(name); leaf != nil {
		return Fingerprint(leaf)
	}
	return ""
}

// last is the certificate that the named node has shown last, nil for none.
func (p *peerCertificates) last(name string) *x509.Certificate {
	shown, _ := p.shown.Load(name)
	leaf, _ := shown.(*x509.Certificate)
	return leaf
}

// isOutdated reports whether a connection's certificate has expired and its node has shown a later
// one since. Without a later one the connection stays: ending it would stop clusters whose
// certificates nobody renewed.
func (p *peerCertificates) isOutdated(c *x509.Certificate, now time.Time) bool {
	if !now.After(c.NotAfter) {
		return false
	}
	name, err := nodeOf(c)
	if err != nil {
		return true
	}
	later := p.last(name)
	return later != nil && later.NotAfter.After(now)
}

// Revoke has the port refuse new connections with a certificate for which revoked returns
// true. DropRevoked closes the open ones.
func (p *Port) Revoke(revoked func(*x509.Certificate) bool) {
	p.credentials.peers.revoked.Store(&revoked)
}

// DropRevoked closes Raft's open connections with a revoked certificate. Peer calls are
// refused one by one.
func (p *Port) DropRevoked() {
	p.stream.mu.Lock()
	defer p.stream.mu.Unlock()
	for c := range p.stream.open {
		if peers := c.ConnectionState().PeerCertificates; len(peers) > 0 && p.credentials.peers.isRevoked(peers[0]) {
			_ = c.NetConn().Close()
		}
	}
}
