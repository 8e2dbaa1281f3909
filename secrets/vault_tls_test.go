package secrets

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
)

// behindTLS puts a TLS proxy before the shared Vault, and stores the X-Vault-Namespace of requests
// in namespace.
func behindTLS(t *testing.T, namespace *atomic.Value) (address, caFile string) {
	t.Helper()
	vault, err := url.Parse(sharedVault(t).Address)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(vault)
	transport := &http.Transport{}
	proxy.Transport = transport
	front := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		namespace.Store(r.Header.Get("X-Vault-Namespace"))
		r.Header.Del("X-Vault-Namespace") // only Enterprise has namespaces
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		front.Close()
		transport.CloseIdleConnections()
	})
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	raw := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	if err := os.WriteFile(caFile, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return front.URL, caFile
}

func TestVault_TLS_TrustsItsCAOnly(t *testing.T) {
	t.Parallel()
	var namespace atomic.Value
	address, ca := behindTLS(t, &namespace)
	cfg := config(t, sharedVault(t), local.AppRoleOptions{})
	cfg.Address, cfg.CAFile, cfg.Namespace = address, ca, "team-a"
	s := run(t, cfg)
	want(t, s, settingsPath, write(t, s, settingsPath, "a"), "a")
	if got := namespace.Load(); got != "team-a" {
		t.Errorf("namespace %q", got)
	}

	named := cfg
	named.ServerName = "example.com" // also in the certificate
	if err := run(t, named).Health(t.Context()); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*VaultConfig){
		"the system's CAs": func(c *VaultConfig) { c.CAFile = "" },
		"another name":     func(c *VaultConfig) { c.ServerName = "vault.example.org" },
	} {
		bad := cfg
		change(&bad)
		err := run(t, bad).Health(t.Context())
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
