package main

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// fileCertificate is the certificate of the HTTP port, read again when its
// files change. A pair that can't be read leaves the last good one in use.
type fileCertificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	loaded  *tls.Certificate
	changed [2]time.Time
}

// loadCertificate reads the pair once, so that a mistake shows at the start.
func loadCertificate(certFile, keyFile string) (*fileCertificate, error) {
	c := &fileCertificate{certFile: certFile, keyFile: keyFile}
	if _, err := c.get(nil); err != nil {
		return nil, err
	}
	return c, nil
}

// get serves tls.Config.GetCertificate: it is called for every handshake, from
// many goroutines.
func (c *fileCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var changed [2]time.Time
	for i, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return c.last(err)
		}
		changed[i] = info.ModTime()
	}
	if c.loaded != nil && changed == c.changed {
		return c.loaded, nil
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return c.last(err)
	}
	c.loaded, c.changed = &pair, changed
	return c.loaded, nil
}

// last gives the last good certificate, or err when there never was one.
func (c *fileCertificate) last(err error) (*tls.Certificate, error) {
	if c.loaded != nil {
		return c.loaded, nil
	}
	return nil, fmt.Errorf("reading the HTTP certificate: %w", err)
}

// serverTLS is the configuration of an HTTPS listener.
func (c *fileCertificate) serverTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get, NextProtos: []string{"h2", "http/1.1"}}
}
