package fsm

import (
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// maxRevoked bounds the revoked certificates that are kept.
const maxRevoked = 1024

// RevokedCertificate is a node's certificate that the peer port refuses, or all of a node.
type RevokedCertificate struct {
	// Fingerprint is the SHA-256 of the certificate's DER, in lower-case hex. "" stands for every
	// certificate of the node, those that it makes later included.
	Fingerprint string `json:"fingerprint"`
	// Node is the node's name in the certificate.
	Node string    `json:"node"`
	Time time.Time `json:"time"`
}

// RevokedCertificates lists the revoked certificates, oldest first. Callers must not change it.
func (v *View) RevokedCertificates() []RevokedCertificate { return v.meta.Revoked }

// Covers reports whether it revokes a certificate with that fingerprint, which is good for nodes of
// these names.
func (r RevokedCertificate) Covers(fingerprint string, nodes []string) bool {
	if r.Fingerprint == "" {
		return slices.Contains(nodes, r.Node)
	}
	return r.Fingerprint == fingerprint
}

// CertificateRevokeBody makes every node refuse a certificate from now on. Without a fingerprint it
// is every certificate of the node, from VersionRotate on. Revoking twice is not an error. An
// operator proposes it.
type CertificateRevokeBody struct {
	Fingerprint string `json:"fingerprint"`
	Node        string `json:"node"`
}

// CommandType implements Body.
func (*CertificateRevokeBody) CommandType() CommandType { return CertificateRevoke }

// check implements Body.
func (b *CertificateRevokeBody) check(r *rules) {
	raw, err := hex.DecodeString(b.Fingerprint)
	r.check(b.Fingerprint == "" || err == nil && len(raw) == 32 && b.Fingerprint == strings.ToLower(b.Fingerprint),
		"fingerprint must be a SHA-256 in 64 lower-case hex characters")
	r.check(b.Node != "" && len(b.Node) <= 63, "node must be a node's name")
}

func (t *transaction) applyCertificateRevoke(b *CertificateRevokeBody) (Result, *Error) {
	known := func(c RevokedCertificate) bool {
		return c.same(RevokedCertificate{Fingerprint: b.Fingerprint, Node: b.Node})
	}
	switch {
	case b.Fingerprint == "" && !t.meta.active(VersionRotate):
		return Result{}, Errorf(CodeProtocol, "revoking all certificates of a node needs protocol version %d and the "+
			"cluster is at %d: upgrade every node, or give a fingerprint",
			VersionRotate, t.meta.ProtocolVersion)
	case slices.ContainsFunc(t.meta.Revoked, known):
		return Result{}, nil
	case len(t.meta.Revoked) >= maxRevoked:
		return Result{}, Errorf(CodeConflict,
			"%d certificates are revoked already: make a new CA, and new certificates for all nodes", maxRevoked)
	}
	t.meta.Revoked = append(slices.Clip(t.meta.Revoked), RevokedCertificate{b.Fingerprint, b.Node, t.now})
	return Result{}, nil
}

// same reports whether two entries revoke the same.
func (r RevokedCertificate) same(other RevokedCertificate) bool {
	return r.Fingerprint == other.Fingerprint && (r.Fingerprint != "" || r.Node == other.Node)
}

// CertificateAllowBody ends the revocation of all certificates of a node: a machine of that name
// may join again. Certificates that were revoked by their fingerprint stay so. A name that is not
// revoked is CodeNotFound. An operator proposes it.
type CertificateAllowBody struct {
	Node string `json:"node"`
}

// CommandType implements Body.
func (*CertificateAllowBody) CommandType() CommandType { return CertificateAllow }

// check implements Body.
func (b *CertificateAllowBody) check(r *rules) {
	r.check(b.Node != "" && len(b.Node) <= 63, "node must be a node's name")
}

func (t *transaction) applyCertificateAllow(b *CertificateAllowBody) (Result, *Error) {
	all := func(c RevokedCertificate) bool { return c.Fingerprint == "" && c.Node == b.Node }
	if !slices.ContainsFunc(t.meta.Revoked, all) {
		return Result{}, Errorf(CodeNotFound, "the name of node %q is not revoked", b.Node)
	}
	t.meta.Revoked = slices.DeleteFunc(slices.Clone(t.meta.Revoked), all)
	if len(t.meta.Revoked) == 0 {
		t.meta.Revoked = nil
	}
	return Result{}, nil
}
