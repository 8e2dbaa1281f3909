package llm

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"bivouac.dev/bivouac/fsm"
)

// CheckCA returns an error if a text is no certificates in PEM; "" is none.
func CheckCA(text string) error {
	if text == "" {
		return nil
	}
	n := 0
	for rest := []byte(text); ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			if strings.TrimSpace(string(rest)) != "" || n == 0 {
				return errors.New("must be certificates in PEM, and nothing else")
			}
			return nil
		}
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
	pool.AppendCertsFromPEM([]byte(ca)) // the configuration was checked
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return t
}

// serverAt returns what the operator says of an address, nil for nothing.
func serverAt(policy fsm.LLM, u *url.URL) *fsm.ModelServer {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	return policy.ServerAt(u.Hostname(), port)
}

// serves reports whether the connections are those that a policy wants.
func (t *transports) serves(policy fsm.LLM) bool {
	return slices.Equal(t.policy.Hosts, policy.Hosts) && sameServers(t.policy.Servers, policy.Servers)
}

// sameServers reports whether two lists need the same connections.
func sameServers(a, b []fsm.ModelServer) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Host != b[i].Host || a[i].CA != b[i].CA || !maps.Equal(a[i].Headers, b[i].Headers) {
			return false
		}
	}
	return true
}
