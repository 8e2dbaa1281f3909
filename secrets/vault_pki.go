package secrets

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"
)

// CertificateRequest is what Vault's PKI secrets engine is asked to sign. The key stays with the
// caller.
type CertificateRequest struct {
	// Mount and Role name the engine and its role.
	Mount, Role string
	// CSR is the signing request, as PEM.
	CSR []byte
	// CommonName, DNSNames and IPs repeat what it holds, for roles that don't read them there.
	CommonName    string
	DNSNames, IPs []string
	// TTL is how long the certificate is asked for. The role bounds it.
	TTL time.Duration
}

// SignCertificate returns a certificate, as PEM, followed by the intermediates that signed it.
// Errors are ErrUnavailable, with a *DeniedError where the policy lacks the path, and ErrInvalid
// where the role does not allow the request.
func (v *Vault) SignCertificate(ctx context.Context, r CertificateRequest) (chain []byte, err error) {
	path := strings.Trim(r.Mount, "/") + "/sign/" + r.Role
	err = v.do(ctx, "sign", func(ctx context.Context, s *session) error {
		answer, err := s.client.Logical().WriteWithContext(ctx, path, map[string]any{
			"csr": string(r.CSR), "format": "pem", "common_name": r.CommonName,
			"alt_names": strings.Join(r.DNSNames, ","), "ip_sans": strings.Join(r.IPs, ","),
			"ttl": fmt.Sprintf("%ds", int64(r.TTL/time.Second)), "exclude_cn_from_sans": true,
		})
		if err != nil {
			return explainSign(path, err)
		}
		if answer == nil {
			return unavailable("vault answered %s with nothing", path)
		}
		leaf, _ := answer.Data["certificate"].(string)
		if leaf == "" {
			return unavailable("vault answered %s without a certificate", path)
		}
		lines := append([]string{leaf}, words(answer.Data["ca_chain"])...)
		chain = []byte(strings.TrimSpace(strings.Join(lines, "\n")) + "\n")
		return nil
	})
	if denied := (*DeniedError)(nil); errors.As(err, &denied) {
		err = fmt.Errorf("%w; for this path it is deploy/vault/pki.hcl", err)
	}
	return chain, err
}

// explainSign keeps Vault's text: a signing request holds no secret.
func explainSign(path string, err error) error {
	var resp *api.ResponseError
	if !errors.As(err, &resp) {
		return err
	}
	said := strings.Join(resp.Errors, "; ")
	switch resp.StatusCode {
	case http.StatusBadRequest:
		return fmt.Errorf("%w: vault refuses to sign at %s: %.300s", ErrInvalid, path, said)
	case http.StatusNotFound:
		return unavailable("vault has nothing at %s: look at the mount and the role of peer { vault_pki {} }: %.300s", path,
			said)
	}
	return err
}
