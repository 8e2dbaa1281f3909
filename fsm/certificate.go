package fsm

import (
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// maxRevoked bounds the revoked certificates that are kept.
const maxRevoked = 1024

// RevokedCertificate is a node's certificate that the peer port refuses.
type RevokedCertificate struct {
	// Fingerprint is the SHA-256 of the certificate's DER, in lower-case hex.
	Fingerprint string `json:"fingerprint"`
	// Node is the node's name in the certificate.
	Node string    `json:"node"`
	Time time.Time `json:"time"`
}

// RevokedCertificates lists the revoked certificates, oldest first. Callers must not change it.
func (v *View) RevokedCertificates() []RevokedCertificate { return v.meta.Revoked }

// CertificateRevokeBody makes every node refuse a certificate from now on. Revoking twice is not an
// error. An operator proposes it.
type CertificateRevokeBody struct {
	Fingerprint string `json:"fingerprint"`
	Node        string `json:"node"`
}

// CommandType implements Body.
func (*CertificateRevokeBody) CommandType() CommandType { return CertificateRevoke }

// check implements Body.
func (b *CertificateRevokeBody) check(r *rules) {
	raw, err := hex.DecodeString(b.Fingerprint)
	r.check(err == nil && len(raw) == 32 && b.Fingerprint == strings.ToLower(b.Fingerprint),
		"fingerprint must be a SHA-256 in 64 lower-case hex characters")
	r.check(b.Node != "" && len(b.Node) <= 63, "node must be a node's name")
}

func (t *transaction) applyCertificateRevoke(b *CertificateRevokeBody) (Result, *Error) {
	known := func(c RevokedCertificate) bool { return c.Fingerprint == b.Fingerprint }
	switch {
	case slices.ContainsFunc(t.meta.Revoked, known):
		return Result{}, nil
	case len(t.meta.Revoked) >= maxRevoked:
		return Result{}, Errorf(CodeConflict, "%d certificates are revoked already: make a new CA, and new certificates for all nodes", maxRevoked)
	}
	t.meta.Revoked = append(slices.Clip(t.meta.Revoked), RevokedCertificate{b.Fingerprint, b.Node, t.now})
	return Result{}, nil
}
