package peernet

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// ReadPair reads a certificate, with those that follow it in its file, and its
// private key. crypto/tls reads the same files, but does not say which of them is
// at fault, and looks only at the first certificate. The error names the file and
// never quotes it. Used for the peer port and by main for the HTTP port. Where
// WritePair was interrupted, the certificate's key is found where that left it.
func ReadPair(certFile, keyFile string) (*tls.Certificate, error) {
	pair, err := readPair(certFile, keyFile)
	if err == nil || !errors.Is(err, errOtherKey) {
		return pair, err
	}
	if pair, nextErr := readPair(certFile, NextKey(keyFile)); nextErr == nil {
		return pair, nil
	}
	// WritePair may have ended between the two reads.
	if pair, againErr := readPair(certFile, keyFile); againErr == nil {
		return pair, nil
	}
	return nil, err
}

// errOtherKey marks a key that is not the certificate's.
var errOtherKey = errors.New("is not the key of the certificate in")

func readPair(certFile, keyFile string) (*tls.Certificate, error) {
	certificate, err := readPEM(certFile)
	if err != nil {
		return nil, err
	}
	key, err := readPEM(keyFile)
	if err != nil {
		if _, damaged := parseCertificates(certFile, certificate); damaged != nil {
			return nil, damaged
		}
		return nil, err
	}
	return parsePair(certFile, keyFile, PEM{Certificate: certificate, Key: key})
}

// parsePair parses what the two files hold.
func parsePair(certFile, keyFile string, content PEM) (*tls.Certificate, error) {
	chain, err := parseCertificates(certFile, content.Certificate)
	if err != nil {
		return nil, err
	}
	raw := content.Key
	if chain[0].PublicKey == nil {
		return nil, fmt.Errorf("%s is damaged: its public key is of no known kind", certFile)
	}
	pair := &tls.Certificate{Leaf: chain[0]}
	for _, c := range chain {
		pair.Certificate = append(pair.Certificate, c.Raw)
	}
	// crypto/tls finds the key and its kind; it is given one good certificate, so
	// that what it finds fault with is the key.
	leaf := pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: chain[0].Raw})
	read, err := tls.X509KeyPair(leaf, raw)
	switch {
	case err == nil:
		pair.PrivateKey = read.PrivateKey
		return pair, nil
	case !bytes.Contains(raw, []byte("PRIVATE KEY-----")):
		return nil, fmt.Errorf("%s holds no private key", keyFile)
	case strings.Contains(err.Error(), "does not match"):
		return nil, fmt.Errorf("%s %w %s", keyFile, errOtherKey, certFile)
	}
	return nil, fmt.Errorf("%s is damaged, or no key that this program can read: %w", keyFile, err)
}

// ReplaceFile replaces a file's content and mode so that a crash leaves the old or the new
// content. Package peernet writes no files by itself.
type ReplaceFile func(path string, data []byte, mode os.FileMode) error

// NextKey is where WritePair puts a key until its certificate is in place.
func NextKey(keyFile string) string { return keyFile + ".next" }

// WritePair replaces a certificate and its key. Whenever it is interrupted, ReadPair finds the
// old pair or the new one. Nodes that renew themselves and `bivouac tls` use it.
func WritePair(files TLSFiles, pair PEM, replace ReplaceFile) error {
	next := NextKey(files.KeyFile)
	if err := replace(next, pair.Key, 0o600); err != nil {
		return err
	}
	if err := replace(files.CertFile, pair.Certificate, 0o644); err != nil {
		return err
	}
	if err := replace(files.KeyFile, pair.Key, 0o600); err != nil {
		return err
	}
	if err := os.Remove(next); err != nil {
		return fmt.Errorf("removing the second copy of the key: %w", err)
	}
	return nil
}

// CompletePair ends a WritePair that was interrupted.
func CompletePair(files TLSFiles, replace ReplaceFile) error {
	next := NextKey(files.KeyFile)
	if _, err := readPair(files.CertFile, next); err != nil {
		return nil
	}
	key, err := os.ReadFile(next)
	if err != nil {
		return fmt.Errorf("completing the pair: %w", err)
	}
	if err := replace(files.KeyFile, key, 0o600); err != nil {
		return err
	}
	return os.Remove(next)
}

// LastExpiry is when the last of a file's certificates ends. Its errors are ReadPair's.
func LastExpiry(certFile string) (time.Time, error) {
	found, err := readCertificates(certFile)
	if err != nil {
		return time.Time{}, err
	}
	return lastExpiry(found), nil
}

// ReadCertificates reads every certificate of a file, at least one. Its errors are ReadPair's.
func ReadCertificates(certFile string) ([]*x509.Certificate, error) {
	return readCertificates(certFile)
}

func lastExpiry(found []*x509.Certificate) (last time.Time) {
	for _, c := range found {
		if c.NotAfter.After(last) {
			last = c.NotAfter
		}
	}
	return last
}

const blockCertificate = "CERTIFICATE"

// readCertificates reads every certificate of a file, at least one.
func readCertificates(name string) ([]*x509.Certificate, error) {
	raw, err := readPEM(name)
	if err != nil {
		return nil, err
	}
	return parseCertificates(name, raw)
}

// parseCertificates parses every certificate of a file, at least one. Of what is
// damaged none is left out: the pem package skips it.
func parseCertificates(name string, raw []byte) ([]*x509.Certificate, error) {
	var found []*x509.Certificate
	blocks, keys := 0, 0
	for rest := raw; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		blocks++
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			keys++
		}
		if block.Type != blockCertificate {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err == nil {
			err = ownSignature(c)
		}
		if err != nil {
			return nil, fmt.Errorf("%s is damaged: certificate %d: %w", name, len(found)+1, err)
		}
		found = append(found, c)
	}
	if bytes.Count(raw, []byte("-----BEGIN")) != blocks || bytes.Count(raw, []byte("-----END")) != blocks {
		return nil, fmt.Errorf("%s is damaged: not all of it is PEM, only %d blocks are", name, blocks)
	}
	switch {
	case len(found) == 0 && keys > 0:
		return nil, fmt.Errorf("no certificate in %s: it holds a private key; name the file of the key's certificate", name)
	case len(found) == 0:
		return nil, fmt.Errorf("no certificate in %s: it must be PEM, with a block %q", name, "BEGIN "+blockCertificate)
	}
	return found, nil
}

// ownSignature checks the signature of a certificate that signed itself, which
// nobody else looks at.
func ownSignature(c *x509.Certificate) error {
	if !bytes.Equal(c.RawSubject, c.RawIssuer) || len(c.AuthorityKeyId) > 0 &&
		!bytes.Equal(c.AuthorityKeyId, c.SubjectKeyId) {
		return nil
	}
	err := c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature)
	var insecure x509.InsecureAlgorithmError
	if errors.As(err, &insecure) || errors.Is(err, x509.ErrUnsupportedAlgorithm) {
		return nil // old, and not damaged for all we can tell
	}
	return err
}

// readPEM reads a file. Its error names the file once.
func readPEM(name string) ([]byte, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		var at *fs.PathError
		if errors.As(err, &at) {
			err = at.Err
		}
		return nil, fmt.Errorf("%s can't be read: %w", name, err)
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, fmt.Errorf("%s is empty", name)
	}
	return raw, nil
}

// vouched checks that peers who trust the same CAs will take the certificate for
// a node's: else a damaged one, or one of two files of another cluster, would
// show only in their refusals. No dates are looked at: what has expired since is
// for each handshake to say, and no reason not to start.
func vouched(pair *tls.Certificate, authorities []*x509.Certificate) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, a := range authorities {
		roots.AddCert(ageless(a))
	}
	for _, der := range pair.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		between.AddCert(ageless(c))
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := ageless(pair.Leaf).Verify(x509.VerifyOptions{
			DNSName: serverName, Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ageless gives a copy that is valid now. Its signature is checked against what
// was signed, not against these fields.
func ageless(c *x509.Certificate) *x509.Certificate {
	young := *c
	young.NotBefore, young.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	return &young
}
