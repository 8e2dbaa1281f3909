package peernet

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The protocols of the peer port, told apart by ALPN.
const (
	protoRaft  = "bivouac-raft/2"
	protoOlder = "bivouac-raft" // without a greeting
	protoCalls = "h2"
)

// reloadInterval is how often, at most, handshakes look at the files again.
const reloadInterval = time.Second

// TLSFiles names the files of a node's certificate.
type TLSFiles struct {
	// CAFile holds the cluster CA's certificates; every peer's must be signed
	// by one of them.
	CAFile string
	// CertFile and KeyFile are the node's own; see Issue.
	CertFile string
	KeyFile  string
}

// Credentials gives TLS configurations from files that may be replaced at any time. A
// replacement that does not load is logged, and the old certificate stays.
type Credentials struct {
	files  TLSFiles
	logger *slog.Logger
	peers  peerCertificates

	mu      sync.Mutex
	looked  time.Time
	changed [3]time.Time // modification times of what is loaded
	loadedPair
	node   string
	logged string // the last error of files that do not load
	// generation counts the pairs and CAs that were loaded.
	generation atomic.Uint64
}

// loadedPair is a node's pair with the CAs that it trusts.
type loadedPair struct {
	pair        *tls.Certificate
	roots       *x509.CertPool
	authorities []*x509.Certificate
}

// remedy ends every error of the files.
const remedy = `put the right file there, or make the node's pair again with "bivouac tls issue"; ` +
	`ca.pem is the same on all nodes (bivouac runbook certificates)`

// LoadCredentials reads the files and checks that certificate, key and CA belong together, and
// that the certificate is the named node's; an empty node allows any. Its errors name the
// file and the remedy.
func LoadCredentials(files TLSFiles, node string, logger *slog.Logger) (*Credentials, error) {
	c := &Credentials{files: files, logger: logger}
	if _, err := c.reload(); err != nil {
		return nil, err
	}
	if node != "" && c.node != node {
		return nil, fmt.Errorf("NodeName is %q but %s was issued to node %q; %s", node, files.CertFile, c.node, remedy)
	}
	return c, nil
}

// reload loads the files if they have changed. The caller holds mu or owns c alone.
func (c *Credentials) reload() (changed bool, err error) {
	times, err := c.modified()
	if err == nil && times != c.changed {
		changed, err = c.load(times)
	}
	if err != nil {
		err = fmt.Errorf("reading TLS files: %w; %s", err, remedy)
	}
	return changed, err
}

func (c *Credentials) modified() ([3]time.Time, error) {
	var times [3]time.Time
	for i, name := range []string{c.files.CAFile, c.files.CertFile, c.files.KeyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return times, err
		}
		times[i] = info.ModTime()
	}
	return times, nil
}

// load replaces the loaded certificates, and reports whether they are others. The caller holds mu
// or owns c alone.
func (c *Credentials) load(times [3]time.Time) (changed bool, err error) {
	authorities, err := readCertificates(c.files.CAFile)
	if err != nil {
		return false, err
	}
	pair, err := ReadPair(c.files.CertFile, c.files.KeyFile)
	if err != nil {
		return false, err
	}
	node, err := c.accept(pair, authorities)
	if err != nil {
		return false, err
	}
	same := func(a, b *x509.Certificate) bool { return a.Equal(b) }
	changed = c.pair == nil || !slices.EqualFunc(c.authorities, authorities, same) ||
		!slices.EqualFunc(c.pair.Certificate, pair.Certificate, bytes.Equal)
	c.node, c.changed = node, times
	if changed {
		roots := x509.NewCertPool()
		for _, a := range authorities {
			roots.AddCert(a)
		}
		c.loadedPair = loadedPair{pair, roots, authorities}
		c.generation.Add(1)
	}
	return changed, nil
}

// accept gives the node of a pair that this node can use. The caller holds mu or owns c alone.
func (c *Credentials) accept(pair *tls.Certificate, authorities []*x509.Certificate) (node string, err error) {
	if node, err = nodeOf(pair.Leaf); err != nil {
		return "", fmt.Errorf("%s: %w", c.files.CertFile, err)
	}
	if c.node != "" && node != c.node {
		return "", fmt.Errorf("%s is node %q's certificate, this is %q", c.files.CertFile, node, c.node)
	}
	if err := vouched(pair, authorities); err != nil {
		return "", fmt.Errorf("%s is no certificate of the CA in %s, or one of them is damaged: %w", c.files.CertFile,
			c.files.CAFile, err)
	}
	return node, nil
}

// check is what the node demands of the content of its files before they are written.
func (c *Credentials) check(content PEM) (*x509.Certificate, error) {
	pair, err := parsePair(c.files.CertFile, c.files.KeyFile, content)
	if err != nil {
		return nil, err
	}
	authorities, err := readCertificates(c.files.CAFile)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.accept(pair, authorities); err != nil {
		return nil, err
	}
	return pair.Leaf, nil
}

// current gives the loaded certificate and CA. It checks the files at most once per
// reloadInterval.
func (c *Credentials) current() (*tls.Certificate, *x509.CertPool) {
	loaded := c.latest()
	return loaded.pair, loaded.roots
}

// latest is current with everything that is loaded.
func (c *Credentials) latest() loadedPair {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) >= reloadInterval || now.Before(c.looked) {
		c.looked = now
		c.look()
	}
	return c.loadedPair
}

// look reloads, and logs a change or a new error once. The caller holds mu.
func (c *Credentials) look() {
	changed, err := c.reload()
	switch {
	case err == nil && changed:
		c.logger.Info("cluster: certificate reloaded", "path", c.files.CertFile)
	case err != nil && err.Error() != c.logged:
		c.logger.Error("cluster: keeping the old certificate: the new files do not load", "error", err)
	}
	c.logged = ""
	if err != nil {
		c.logged = err.Error()
	}
}

// Reload reads the files now. Its error is LoadCredentials'; what was loaded stays then.
func (c *Credentials) Reload() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = [3]time.Time{} // a file system's clock may not have advanced since the last change
	changed, err := c.reload()
	if changed && err == nil {
		c.logger.Info("cluster: certificate reloaded", "path", c.files.CertFile)
	}
	return err
}

// Leaf is the certificate in use. Callers must not change it.
func (c *Credentials) Leaf() *x509.Certificate {
	pair, _ := c.current()
	return pair.Leaf
}

// CAExpiry is when the last of the CAs in use ends.
func (c *Credentials) CAExpiry() time.Time {
	return lastExpiry(c.latest().authorities)
}

// server gives the configuration of the peer port.
func (c *Credentials) server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{protoRaft, protoOlder, protoCalls},
		ClientAuth: tls.RequireAndVerifyClientCert,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			pair, roots := c.current()
			return &tls.Config{
				MinVersion:       tls.VersionTLS13,
				NextProtos:       []string{protoRaft, protoOlder, protoCalls},
				Certificates:     []tls.Certificate{*pair},
				ClientAuth:       tls.RequireAndVerifyClientCert,
				ClientCAs:        roots,
				VerifyConnection: c.verify,
				// A resumed session would not see a CA that was taken away.
				SessionTicketsDisabled: true,
			}, nil
		},
	}
}

// client gives the configuration for one dialled connection.
func (c *Credentials) client(protos ...string) *tls.Config {
	pair, roots := c.current()
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		NextProtos:       protos,
		ServerName:       serverName,
		Certificates:     []tls.Certificate{*pair},
		RootCAs:          roots,
		VerifyConnection: c.verify,
	}
}

// verifyNode runs after the chain was verified, on both ends: the other side
// must be a node, whose name it gives, and must speak one of our protocols.
func verifyNode(state tls.ConnectionState) (name string, err error) {
	if !slices.Contains([]string{protoRaft, protoOlder, protoCalls}, state.NegotiatedProtocol) {
		return "", errors.New("the peer port speaks only its own protocols")
	}
	if len(state.PeerCertificates) == 0 {
		return "", errors.New("no peer certificate")
	}
	leaf := state.PeerCertificates[0]
	if err := leaf.VerifyHostname(serverName); err != nil {
		return "", fmt.Errorf("not a node's certificate: %w", err)
	}
	return nodeOf(leaf)
}
