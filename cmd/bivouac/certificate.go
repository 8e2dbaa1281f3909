package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
)

// fileCertificate is the HTTP port's certificate. It is read again when its files change. If
// the new pair does not load, the last good one stays in use.
type fileCertificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	loaded  *tls.Certificate
	changed [2]time.Time
	told    string // the last logged reason why the files do not load
}

// loadCertificate reads the pair once, so that a mistake shows at startup.
func loadCertificate(certFile, keyFile string, log *slog.Logger) (*fileCertificate, error) {
	c := &fileCertificate{certFile: certFile, keyFile: keyFile, log: log}
	if _, err := c.reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// get implements tls.Config.GetCertificate. Every handshake calls it, from many goroutines.
func (c *fileCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed, err := c.reload()
	switch {
	case err == nil && changed:
		c.log.Info("the HTTP certificate is read again", "path", c.certFile)
	case err != nil && err.Error() != c.told:
		c.log.Error("keeping the old HTTP certificate: the new files do not load", "error", err)
	}
	c.told = ""
	if err != nil {
		c.told = err.Error()
	}
	return c.loaded, nil
}

// expires is when the certificate in use ends.
func (c *fileCertificate) expires() time.Time {
	pair, _ := c.get(nil) // the last good one
	return pair.Leaf.NotAfter
}

// reload loads the files if they have changed. The caller holds mu or is c's only user.
func (c *fileCertificate) reload() (changed bool, err error) {
	var times [2]time.Time
	for i, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return false, fmt.Errorf("reading the HTTP certificate: %s; put the file back (bivouac runbook certificates)",
				oneLine(err))
		}
		times[i] = info.ModTime()
	}
	if c.loaded != nil && times == c.changed {
		return false, nil
	}
	pair, err := peernet.ReadPair(c.certFile, c.keyFile)
	if err != nil {
		return false, fmt.Errorf("reading the HTTP certificate: %w; put a certificate and its key there, "+
			"as PEM (bivouac runbook certificates)", err)
	}
	c.loaded, c.changed = pair, times
	return true, nil
}

// serverTLS is the configuration of an HTTPS listener.
func (c *fileCertificate) serverTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get, NextProtos: []string{"h2", "http/1.1"}}
}
