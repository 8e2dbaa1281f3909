package peernet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	// renewalLook is how often, at least, a node looks whether its certificate is due: an operator
	// may have replaced it, and the clock may have been set.
	renewalLook = time.Hour
	// renewalRetryMin and renewalRetryMax bound the pause after a renewal that failed.
	renewalRetryMin = time.Minute
	renewalRetryMax = time.Hour
)

// Issuer makes the next certificate of the node that has the former one, for the same names and
// with another key. Its error says what to do.
type Issuer func(ctx context.Context, former *x509.Certificate) (PEM, error)

// CAIssuer issues with the key of a CA whose certificate is in caFile. Both files are read each
// time. A certificate ends with its CA at the latest.
func CAIssuer(caFile, caKeyFile string, lifetime time.Duration) Issuer {
	return func(_ context.Context, former *x509.Certificate) (PEM, error) {
		node, err := nodeOf(former)
		if err != nil {
			return PEM{}, err
		}
		authorities, err := readPEM(caFile)
		if err != nil {
			return PEM{}, err
		}
		key, err := readPEM(caKeyFile)
		if err != nil {
			return PEM{}, err
		}
		pair, err := Issue(PEM{Certificate: authorities, Key: key}, node, Hosts(former), time.Now(), lifetime)
		if err != nil {
			return PEM{}, fmt.Errorf("issuing with %s and %s: %w", caFile, caKeyFile, err)
		}
		return pair, nil
	}
}

// Signer has a CA sign a certificate request, as PEM, for the names that it holds. It returns the
// certificate, followed by the intermediates, as PEM.
type Signer func(ctx context.Context, request *x509.CertificateRequest, csr []byte) ([]byte, error)

// RequestIssuer issues by a CA that is elsewhere, such as Vault's PKI. The key is made here, and
// only the request leaves the machine.
func RequestIssuer(sign Signer) Issuer {
	return func(ctx context.Context, former *x509.Certificate) (PEM, error) {
		node, err := nodeOf(former)
		if err != nil {
			return PEM{}, err
		}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return PEM{}, fmt.Errorf("making key: %w", err)
		}
		request := &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: node + nodeDomain}, DNSNames: []string{node + nodeDomain, serverName},
			IPAddresses: former.IPAddresses,
		}
		for _, name := range former.DNSNames {
			if !slices.Contains(request.DNSNames, name) {
				request.DNSNames = append(request.DNSNames, name)
			}
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, request, key)
		if err != nil {
			return PEM{}, fmt.Errorf("making certificate request: %w", err)
		}
		certificate, err := sign(ctx, request, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		if err != nil {
			return PEM{}, err
		}
		encoded, err := encodeKey(key)
		return PEM{Certificate: certificate, Key: encoded}, err
	}
}

// CheckCAKey reports why CAIssuer could not issue with these files.
func CheckCAKey(caFile, caKeyFile string) error {
	authorities, err := readPEM(caFile)
	if err != nil {
		return err
	}
	key, err := readPEM(caKeyFile)
	if err != nil {
		return err
	}
	if _, err := parseCA(PEM{Certificate: authorities, Key: key}); err != nil {
		return fmt.Errorf("%s and %s: %w", caFile, caKeyFile, err)
	}
	return nil
}

// RenewAt is when a certificate is due: a third of its life before its end, and up to a sixtieth
// earlier, so that certificates of one day are not all renewed at once.
func RenewAt(c *x509.Certificate) time.Time {
	life := c.NotAfter.Sub(c.NotBefore)
	spread := new(big.Int).Mod(c.SerialNumber, big.NewInt(1000)).Int64()
	return c.NotAfter.Add(-life/3 - life/60*time.Duration(spread)/1000)
}

// due reports whether a certificate is to be renewed. One that begins in the future was made by a
// wrong clock, and peers refuse it.
func due(c *x509.Certificate, now time.Time) bool {
	return !now.Before(RenewAt(c)) || now.Before(c.NotBefore)
}

// Renewal keeps a node's certificate from expiring.
type Renewal struct {
	Credentials *Credentials
	Issue       Issuer
	Replace     ReplaceFile
	// Done is called after each attempt with its error; it may be nil.
	Done   func(error)
	Logger *slog.Logger
}

// Run renews the certificate when it is due until ctx ends. It tries again after failures, and
// meanwhile the former certificate stays in use. It returns nil.
func (r *Renewal) Run(ctx context.Context) error {
	if err := CompletePair(r.Credentials.files, r.Replace); err != nil {
		r.Logger.Error("cluster: the key of the certificate can't be put in its place", "path", r.Credentials.files.KeyFile,
			"error", err)
	}
	pause := backoff.ExponentialBackOff{InitialInterval: renewalRetryMin, MaxInterval: renewalRetryMax, Multiplier: 2}
	for {
		leaf := r.Credentials.Leaf()
		wait := max(time.Second, min(renewalLook, time.Until(RenewAt(leaf))))
		if due(leaf, time.Now()) {
			err := r.renew(ctx, leaf)
			if ctx.Err() != nil {
				return nil
			}
			if r.Done != nil {
				r.Done(err)
			}
			if err != nil {
				wait = pause.NextBackOff()
				r.failed(leaf, wait, err)
			}
		} else {
			pause.Reset()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (r *Renewal) failed(leaf *x509.Certificate, wait time.Duration, err error) {
	level := slog.LevelWarn
	if time.Now().After(leaf.NotAfter) {
		level = slog.LevelError
	}
	r.Logger.Log(context.Background(), level,
		"cluster: the certificate could not be renewed; the old one stays (bivouac runbook certificates)",
		"path", r.Credentials.files.CertFile, "expires", leaf.NotAfter, "retry_in", wait, "error", err)
}

// renew replaces the certificate once.
func (r *Renewal) renew(ctx context.Context, former *x509.Certificate) error {
	pair, err := r.Issue(ctx, former)
	if err != nil {
		return err
	}
	next, err := r.Credentials.check(pair)
	if err != nil {
		return fmt.Errorf("the new certificate is of no use: %w", err)
	}
	now := time.Now()
	switch {
	case now.Before(next.NotBefore) || now.After(next.NotAfter):
		return fmt.Errorf("the new certificate is good from %s to %s, which is not now: the clock of this machine, "+
			"or of who issued it, is wrong",
			next.NotBefore.Format(time.RFC3339), next.NotAfter.Format(time.RFC3339))
	case !next.NotAfter.After(former.NotAfter) && !now.Before(former.NotBefore):
		return fmt.Errorf("the new certificate would end on %s, no later than the present one: the CA ends then, "+
			"or the lifetime is too short",
			next.NotAfter.Format(time.RFC3339))
	}
	if err := WritePair(r.Credentials.files, pair, r.Replace); err != nil {
		return err
	}
	if err := r.Credentials.Reload(); err != nil {
		return err
	}
	r.Logger.Info("cluster: certificate renewed", "path", r.Credentials.files.CertFile, "expires", next.NotAfter)
	return nil
}
