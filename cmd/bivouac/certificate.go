package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"bivouac.dev/bivouac/cluster"
)

// fileCertificate is the certificate of the HTTP port, read again when its
// files change. A pair that can't be read leaves the last good one in use.
type fileCertificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	loaded  *tls.Certificate
	changed [2]time.Time
	told    string // what was last logged of files that do not load
}

// loadCertificate reads the pair once, so that a mistake shows at the start.
func loadCertificate(certFile, keyFile string, log *slog.Logger) (*fileCertificate, error) {
	c := &fileCertificate{certFile: certFile, keyFile: keyFile, log: log}
	if _, err := c.reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// get serves tls.Config.GetCertificate: it is called for every handshake, from
// many goroutines.
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

// reload takes what the files hold, if they have changed. The caller holds mu or
// owns c alone.
func (c *fileCertificate) reload() (changed bool, err error) {
	var times [2]time.Time
	for i, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return false, fmt.Errorf("reading the HTTP certificate: %s; put the file back", oneLine(err))
		}
		times[i] = info.ModTime()
	}
	if c.loaded != nil && times == c.changed {
		return false, nil
	}
	pair, err := cluster.ReadPair(c.certFile, c.keyFile)
	if err != nil {
		return false, fmt.Errorf("reading the HTTP certificate: %w; put a certificate and its key there, as PEM", err)
	}
	c.loaded, c.changed = pair, times
	return true, nil
}

// serverTLS is the configuration of an HTTPS listener.
func (c *fileCertificate) serverTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get, NextProtos: []string{"h2", "http/1.1"}}
}
