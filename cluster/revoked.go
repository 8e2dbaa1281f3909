package cluster

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

// revokedEvery is how often open connections are held against the revoked
// certificates.
const revokedEvery = time.Second

// Fingerprint is the SHA-256 of a certificate's DER in lower-case hex, as
// "openssl x509 -fingerprint -sha256" gives it in its own spelling.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// passport is what a Network may know besides: the certificates that peers have
// shown, and which of them it must refuse.
type passport interface {
	// Shown gives the fingerprint of the certificate that a node of that name has
	// shown last, "" for none.
	Shown(name string) string
	// Refuse has every connection with such a certificate refused from now on, and
	// DropRefused closes those that are open.
	Refuse(func(*x509.Certificate) bool)
	DropRefused()
}

// papers is what credentials know of other nodes' certificates.
type papers struct {
	shown   sync.Map // fingerprint by name
	refused atomic.Pointer[func(*x509.Certificate) bool]
}

// refuses reports whether a certificate is revoked.
func (p *papers) refuses(c *x509.Certificate) bool {
	refused := p.refused.Load()
	return refused != nil && (*refused)(c)
}

// verify is verifyNode, and refuses revoked certificates.
func (c *credentials) verify(state tls.ConnectionState) error {
	if err := verifyNode(state); err != nil {
		return err
	}
	leaf := state.PeerCertificates[0]
	name, err := nodeOf(leaf)
	if err != nil {
		return err
	}
	if c.papers.refuses(leaf) {
		return fmt.Errorf("the certificate of node %q is revoked; make it another with \"bivouac tls issue\"", name)
	}
	c.papers.shown.Store(name, Fingerprint(leaf))
	return nil
}

// Shown implements passport.
func (p *peerPort) Shown(name string) string {
	shown, _ := p.credentials.papers.shown.Load(name)
	text, _ := shown.(string)
	return text
}

// Refuse implements passport.
func (p *peerPort) Refuse(refused func(*x509.Certificate) bool) {
	p.credentials.papers.refused.Store(&refused)
}

// DropRefused implements passport. Peer calls are refused one by one.
func (p *peerPort) DropRefused() {
	p.stream.mu.Lock()
	defer p.stream.mu.Unlock()
	for c := range p.stream.open {
		if peers := c.ConnectionState().PeerCertificates; len(peers) > 0 && p.credentials.papers.refuses(peers[0]) {
			_ = c.NetConn().Close()
		}
	}
}

// refuses reports whether the store has a certificate as revoked.
func (n *Node) refuses(c *x509.Certificate) bool {
	revoked := n.store.View().RevokedCertificates()
	if len(revoked) == 0 {
		return false
	}
	print := Fingerprint(c)
	return slices.ContainsFunc(revoked, func(r fsm.RevokedCertificate) bool { return r.Fingerprint == print })
}

// watchRevoked ends the connections of certificates that are revoked while the node
// runs.
func (n *Node) watchRevoked(tasks *sync.WaitGroup) {
	p, ok := n.network.(passport)
	if !ok {
		return
	}
	p.Refuse(n.refuses)
	tasks.Go(func() {
		every(n.stopping, revokedEvery, func() {
			if len(n.store.View().RevokedCertificates()) > 0 {
				p.DropRefused()
			}
		})
	})
}

// revoke records a member's certificate as revoked, before the member goes. It
// runs on the leader.
func (n *Node) revoke(ctx context.Context, target raft.Server, o RemoveOptions) error {
	if !o.Revoke {
		return nil
	}
	name, print := nodeName(target.ID), o.Fingerprint
	if p, ok := n.network.(passport); ok && print == "" {
		print = p.Shown(name)
	}
	if print == "" {
		return fsm.Errorf(fsm.CodeConflict,
			"the leader has not seen the certificate of node %q since it started; nothing was done: give the certificate's fingerprint too", name)
	}
	cmd := fsm.NewCommand(uuid.NewString(), n.clock(), "", &fsm.CertificateRevokeBody{Fingerprint: print, Node: name})
	if _, err := n.Propose(ctx, cmd); err != nil {
		return err
	}
	n.logger.Warn("cluster: a certificate is revoked", "peer", name, "fingerprint", print)
	return nil
}
