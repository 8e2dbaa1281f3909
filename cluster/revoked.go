package cluster

import (
	"context"
	"crypto/x509"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// revokedEvery is how often open connections are checked for revoked certificates.
const revokedEvery = time.Second

// certificateNetwork is a Network with certificates: peernet.Port.
type certificateNetwork interface {
	// Shown returns the fingerprint of the certificate that the named node showed last, "" for none.
	Shown(name string) string
	// Revoke makes the network refuse new connections with certificates for which revoked is true.
	// DropRevoked closes the open ones.
	Revoke(revoked func(*x509.Certificate) bool)
	DropRevoked()
}

// refuses reports whether the store lists a certificate as revoked.
func (n *Node) refuses(c *x509.Certificate) bool {
	revoked := n.store.View().RevokedCertificates()
	if len(revoked) == 0 {
		return false
	}
	print, names := peernet.Fingerprint(c), peernet.NodesOf(c)
	return slices.ContainsFunc(revoked, func(r fsm.RevokedCertificate) bool {
		return r.Covers(print, names)
	})
}

// watchRevoked closes connections with revoked certificates while the node runs.
func (n *Node) watchRevoked(tasks *sync.WaitGroup) {
	p, ok := n.network.(certificateNetwork)
	if !ok {
		return
	}
	p.Revoke(n.refuses)
	tasks.Go(func() {
		every(n.stopping, revokedEvery, func() {
			if len(n.store.View().RevokedCertificates()) > 0 {
				p.DropRevoked()
			}
		})
	})
}

// revoke records a member's certificates as revoked, before its removal. It runs on the leader.
// Without a fingerprint it is the name: a node that renews its certificate shows another one soon.
func (n *Node) revoke(ctx context.Context, target raft.Server, o RemoveOptions) error {
	if !o.Revoke {
		return nil
	}
	name, print := peernet.NodeName(target.ID), o.Fingerprint
	byName := n.store.View().Active(fsm.VersionRotate)
	if p, ok := n.network.(certificateNetwork); ok && print == "" && !byName {
		print = p.Shown(name)
	}
	if print == "" && !byName {
		return fsm.Errorf(fsm.CodeConflict,
			"the leader has not seen the certificate of node %q since it started; nothing was done: "+
				"give the certificate's fingerprint too", name)
	}
	cmd := fsm.NewCommand(
		uuid.NewString(), n.clock(), "", &fsm.CertificateRevokeBody{Fingerprint: print, Node: name},
	)
	n.attribute(ctx, &cmd)
	if _, err := n.Propose(ctx, cmd); err != nil {
		return err
	}
	n.logger.Warn("cluster: a certificate is revoked", "peer", name, "fingerprint", print)
	return nil
}
