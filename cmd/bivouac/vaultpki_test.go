package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/deploy"
	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/secrets"
)

// pki is a real Vault with the PKI of deploy/vault/pki.hcl: a role for each of two nodes, and an
// AppRole that may use n1's.
type pki struct {
	t     *testing.T
	vault *local.Vault
	dir   string
	store *secrets.Vault
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	v, err := local.StartVault(t.Context(), local.VaultOptions{Dir: t.TempDir(), Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	p := &pki{t: t, vault: v, dir: t.TempDir()}
	p.do("sys/mounts/pki", map[string]any{"type": "pki", "config": map[string]any{"max_lease_ttl": "87600h"}}, nil)
	var root struct{ Data struct{ Certificate string } }
	p.do("pki/root/generate/internal",
		map[string]any{"common_name": "Bivouac cluster CA", "key_type": "ec", "key_bits": 256, "ttl": "87600h"}, &root)
	p.write("ca.pem", root.Data.Certificate)
	for _, node := range []string{"n1", "n2"} {
		p.do("pki/roles/"+node, map[string]any{
			"allowed_domains": node + ".node.bivouac,server.bivouac", "allow_bare_domains": true, "allow_subdomains": false,
			"allow_localhost": false, "allow_ip_sans": false, "enforce_hostnames": true, "key_type": "ec", "key_bits": 256,
			"max_ttl": "720h", "no_store": true,
		}, nil)
	}
	raw, err := deploy.Files.ReadFile("vault/pki.hcl")
	if err != nil {
		t.Fatal(err)
	}
	p.do("sys/policies/acl/bivouac-pki-n1",
		map[string]string{"policy": strings.NewReplacer("PKI", "pki", "NODE", "n1").Replace(string(raw))}, nil)
	role, err := v.NewAppRole(t.Context(), local.AppRoleOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.do("auth/approle/role/bivouac", map[string]any{"token_policies": []string{"bivouac", "bivouac-pki-n1"}}, nil)
	p.write("secret-id", role.SecretID)
	if p.store, err = secrets.NewVault(secrets.VaultConfig{
		Address:      v.Address,
		RoleID:       role.RoleID,
		SecretIDFile: p.path("secret-id"),
	}); err != nil {
		t.Fatal(err)
	}
	p.background(p.store.Run)
	return p
}

// background runs a part until the test ends.
func (p *pki) background(run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	p.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			p.t.Error(err)
		}
	})
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

func (p *pki) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(p.path(name), []byte(text+"\n"), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pki) do(path string, in, out any) {
	p.t.Helper()
	if err := p.vault.Do(p.t.Context(), http.MethodPost, path, in, out); err != nil {
		p.t.Fatalf("%s: %v", path, err)
	}
}

// issue makes a node's first certificate, as an operator does.
func (p *pki) issue(node, ttl string) peernet.TLSFiles {
	p.t.Helper()
	var pair struct {
		Data struct {
			Certificate string
			PrivateKey  string `json:"private_key"`
		}
	}
	p.do("pki/issue/"+node,
		map[string]any{"common_name": node + ".node.bivouac", "alt_names": "server.bivouac", "ttl": ttl}, &pair)
	p.write(node+".pem", pair.Data.Certificate)
	p.write(node+"-key.pem", pair.Data.PrivateKey)
	return peernet.TLSFiles{CAFile: p.path("ca.pem"), CertFile: p.path(node + ".pem"), KeyFile: p.path(node + "-key.pem")}
}

// syncText is a log that can be read while it is written.
type syncText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *syncText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *syncText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A node whose certificate is due has Vault's PKI sign the next one, with the policy and the role of
// deploy/vault/pki.hcl. It can have none signed for another node.
func TestVaultPKI_ANodeRenewsItsCertificate(t *testing.T) {
	p := newPKI(t)
	files := p.issue("n1", "20s") // begins 30 s ago, so it is due
	var text syncText
	log := slog.New(slog.NewTextHandler(&text, nil))
	creds, err := peernet.LoadCredentials(files, "n1", log)
	if err != nil {
		t.Fatal(err)
	}
	first := creds.Leaf()
	cfg := PeerConfig{PKIMount: "pki", PKIRole: "n1", CertificateLifetime: peernet.DefaultNodeLifetime}

	// Other names are refused: by the role, and by the policy.
	other, err := peernet.ReadPair(p.issue("n2", "20s").CertFile, p.path("n2-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = peernet.RequestIssuer(cfg.vaultSigner(p.store))(t.Context(), other.Leaf)
	if !errors.Is(err, secrets.ErrInvalid) || !strings.Contains(err.Error(), "n2.node.bivouac") {
		t.Errorf("n1's role signs for n2: %v", err)
	}
	theirs := cfg
	theirs.PKIRole = "n2"
	_, err = peernet.RequestIssuer(theirs.vaultSigner(p.store))(t.Context(), other.Leaf)
	if denied := (*secrets.DeniedError)(nil); !errors.As(err, &denied) || denied.Path != "pki/sign/n2" {
		t.Errorf("n1 may use n2's role: %v", err)
	}
	none := cfg
	none.PKIMount = "nowhere"
	if _, err = peernet.RequestIssuer(none.vaultSigner(p.store))(t.Context(), first); !errors.Is(err,
		secrets.ErrUnavailable) {
		t.Errorf("a mount that is not there: %v", err)
	}

	// A sealed Vault: the former certificate stays, and the reason is logged.
	if err := p.vault.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	c := newCertificates(certificateOptions{issue: peernet.RequestIssuer(cfg.vaultSigner(p.store))}, creds, files,
		log, registry)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx) }()
	eventually(t, "the node says that Vault is sealed", func() error {
		if !strings.Contains(text.String(), "could not be renewed") || !strings.Contains(text.String(), "sealed") {
			return errors.New(text.String())
		}
		return nil
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !creds.Leaf().Equal(first) {
		t.Error("the former certificate is gone")
	}
	if err := p.vault.Unseal(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.background(c.run) // a restart, which does not wait for the next attempt
	eventually(t, "the certificate is renewed", func() error {
		if creds.Leaf().Equal(first) {
			return errors.New(text.String())
		}
		return nil
	})
	next := creds.Leaf()
	if left := next.NotAfter.Sub(next.NotBefore); left < 29*day || left > 31*day {
		t.Errorf("it is good for %v", left)
	}
	if bytes.Equal(next.RawSubjectPublicKeyInfo, first.RawSubjectPublicKeyInfo) {
		t.Error("with the former key")
	}
	if _, err := peernet.LoadCredentials(files, "n1", log); err != nil {
		t.Errorf("a restart fails: %v", err)
	}
	fmt.Fprintln(t.Output(), next.Subject, next.DNSNames, next.NotAfter)
}
