package llm

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"bivouac.dev/bivouac/fsm"
)

// CheckCA returns an error if a text is no certificates in PEM; "" is none.
func CheckCA(text string) error {
	if text == "" {
		return nil
	}
	n := 0
	for rest := []byte(text); ; n++ {
		rest = bytes.TrimSpace(rest)
		if len(rest) == 0 && n > 0 {
			return nil
		}
		block, after := pem.Decode(rest)
		// Decode leaves out text, and a block that it can't read, before the one that it returns.
		begin := []byte("-----BEGIN ")
		if block == nil || !bytes.HasPrefix(rest, begin) ||
			bytes.Count(rest[:len(rest)-len(after)], begin) != 1 || len(block.Headers) > 0 {
			return errors.New("must be certificates in PEM, and nothing else")
		}
		rest = after
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("has a %s: it must have certificates alone", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("certificate %d: %w", n+1, err)
		}
	}
}

// trusting returns a transport like t that trusts a server's own certificates beside the system's.
func trusting(t *http.Transport, ca string) *http.Transport {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	pool.AppendCertsFromPEM([]byte(ca)) // CheckCA lets nothing through that it can't read
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return t
}

// serverAt returns what the operator says of an address, nil for nothing.
func serverAt(policy fsm.LLM, u *url.URL) *fsm.ModelServer {
	port := u.Port()
	if port == "" {
		port = defaultPort(u.Scheme)
	}
	return policy.ServerAt(u.Hostname(), port)
}

// serves reports whether the connections are those that a policy wants.
func (t *transports) serves(policy fsm.LLM) bool {
	return slices.Equal(t.policy.Hosts, policy.Hosts) &&
		slices.EqualFunc(t.policy.Servers, policy.Servers, func(a, b fsm.ModelServer) bool {
			return a.Host == b.Host && a.CA == b.CA && maps.Equal(a.Headers, b.Headers)
		})
}
