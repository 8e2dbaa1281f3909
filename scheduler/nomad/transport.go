package nomad

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// transport carries the calls to Nomad. It reads the token and the certificates again when their
// files change. While the new ones do not load, the last good ones stay in use.
type transport struct {
	token string
	file  string
	tls   api.TLSConfig
	log   *slog.Logger

	mu    sync.Mutex
	inner *http.Transport
	seen  map[string]os.FileInfo
	told  string // the last logged reason why the files do not load
}

// newTransport reads the files once, so that a mistake shows at startup.
func newTransport(cfg Config) (*transport, error) {
	t := &transport{
		token: cfg.Token, file: cfg.TokenFile, log: cfg.Logger,
		tls: api.TLSConfig{
			CACert: cfg.TLS.CAFile, ClientCert: cfg.TLS.CertFile, ClientKey: cfg.TLS.KeyFile,
			TLSServerName: cfg.TLS.ServerName,
		},
	}
	if _, err := t.reload(); err != nil {
		return nil, err
	}
	return t, nil
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	inner, token := t.current()
	if token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("X-Nomad-Token", token)
	}
	return inner.RoundTrip(r)
}

// CloseIdleConnections is called by http.Client.
func (t *transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inner.CloseIdleConnections()
}

// current returns the connections and the token of a call that begins now.
func (t *transport) current() (*http.Transport, string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed, err := t.reload()
	switch {
	case err == nil && changed:
		t.log.Info("Nomad's token and certificates are read again", "path", t.file)
	case err != nil && err.Error() != t.told:
		t.log.Error("keeping the token and certificates for Nomad: the new files do not load", "error", err)
	}
	t.told = ""
	if err != nil {
		t.told = err.Error()
	}
	return t.inner, t.token
}

// reload loads the files if one has changed. The caller holds mu or is t's only user.
func (t *transport) reload() (changed bool, err error) {
	seen := map[string]os.FileInfo{}
	for _, name := range []string{t.file, t.tls.CACert, t.tls.ClientCert, t.tls.ClientKey} {
		if name == "" {
			continue
		}
		if seen[name], err = os.Stat(name); err != nil {
			return false, fmt.Errorf("nomad: %w", err)
		}
		changed = changed || !sameFile(t.seen[name], seen[name])
	}
	if t.inner != nil && !changed {
		return false, nil
	}
	token := t.token
	if t.file != "" {
		if token, err = readToken(t.file); err != nil {
			return false, err
		}
	}
	inner := http.DefaultTransport.(*http.Transport).Clone()
	inner.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	inner.MaxIdleConnsPerHost = runtime.GOMAXPROCS(0) + 1
	inner.ForceAttemptHTTP2 = false // as Nomad's own client
	if err := api.ConfigureTLS(&http.Client{Transport: inner}, &t.tls); err != nil {
		return false, fmt.Errorf("nomad: reading the certificates: %w", err)
	}
	old := t.inner
	t.inner, t.token, t.seen = inner, token, seen
	if old != nil {
		old.CloseIdleConnections()
	}
	return true, nil
}

// sameFile reports whether a file is as it was read. was is nil for one that was not.
func sameFile(was, is os.FileInfo) bool {
	return was != nil && os.SameFile(was, is) && was.ModTime().Equal(is.ModTime()) && was.Size() == is.Size()
}

// readToken reads a file that holds one token.
func readToken(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("nomad: reading the token: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" {
		return "", fmt.Errorf("nomad: reading the token: %s is empty", path)
	}
	return token, nil
}
