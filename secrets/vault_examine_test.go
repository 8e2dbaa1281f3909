package secrets

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

// examined returns the lines of Examine that are not ok, as "result subject: detail".
func examined(t *testing.T, cfg VaultConfig, sign string) (bad []string) {
	t.Helper()
	v, err := NewVault(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range v.Examine(t.Context(), sign) {
		if c.Result != CheckOK {
			bad = append(bad, c.Result+" "+c.Subject+": "+c.Detail)
		}
		t.Log(c)
	}
	return bad
}

// only fails unless there is the one line that begins and goes on so.
func only(t *testing.T, got []string, begin, part string) {
	t.Helper()
	if len(got) != 1 || !strings.HasPrefix(got[0], begin) || !strings.Contains(got[0], part) {
		t.Errorf("not the one line %q with %q: %q", begin, part, got)
	}
}

// Each path of the policy that is left out is named, and no other.
func TestVault_Examine_NamesEachMissingPermission(t *testing.T) {
	t.Parallel()
	server := sharedVault(t)
	cfg := config(t, server, local.AppRoleOptions{})
	if bad := examined(t, cfg, ""); len(bad) > 0 {
		t.Fatalf("the shipped policy: %q", bad)
	}
	only(t, examined(t, cfg, "pki/sign/n1"), "fail vault.permission: ",
		"lacks update on pki/sign/n1: write deploy/vault/pki.hcl")
	const metadata = "secret/metadata/"
	for _, line := range []string{
		"secret/data/" + cfg.Prefix + "/*", "secret/delete/" + cfg.Prefix + "/*", "secret/undelete/" + cfg.Prefix + "/*",
		"secret/destroy/" + cfg.Prefix + "/*", metadata + cfg.Prefix + "/*",
		"secret/data/" + cfg.NomadNamespace + "/sandbox-*",
		"secret/delete/" + cfg.NomadNamespace + "/sandbox-*", "secret/undelete/" + cfg.NomadNamespace + "/sandbox-*",
		"secret/destroy/" + cfg.NomadNamespace + "/sandbox-*", metadata + cfg.NomadNamespace + "/sandbox-*",
		metadata + cfg.NomadNamespace + "/", "secret/config",
	} {
		lesser := config(t, server, local.AppRoleOptions{})
		line = strings.ReplaceAll(strings.ReplaceAll(line, cfg.Prefix, lesser.Prefix), cfg.NomadNamespace,
			lesser.NomadNamespace)
		withoutPath(t, server, lesser, line)
		only(t, examined(t, lesser, ""), "fail vault.permission: the token lacks ",
			" on "+line+": write deploy/vault/bivouac.hcl")
	}
}

func TestVault_Examine_LoginMountAndSeal(t *testing.T) {
	t.Parallel()
	server := ownVault(t)
	cfg := config(t, server, local.AppRoleOptions{})
	if err := server.Do(t.Context(), http.MethodPost, "secret/config", map[string]string{"delete_version_after": "1h"},
		nil); err != nil {
		t.Fatal(err)
	}
	only(t, examined(t, cfg, ""), "fail vault.mount: secret deletes versions after 1h",
		"vault write secret/config delete_version_after=0s")
	if err := os.WriteFile(cfg.SecretIDFile, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	only(t, examined(t, cfg, ""), "fail vault.login: ", "vault refuses the AppRole login at auth/approle")
	if err := server.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	only(t, examined(t, cfg, ""), "fail vault: ", "is sealed: vault operator unseal")
	v, err := NewVault(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if s := v.State(); s.Reachable || s.Sealed || s.Err == nil {
		t.Errorf("before a probe: %+v", s)
	}
	v.probeOnce(t.Context())
	if s := v.State(); s.Reachable || !s.Sealed || s.Err == nil {
		t.Errorf("a sealed Vault: %+v", s)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	cfg.Timeout = 5 * time.Second
	only(t, examined(t, cfg, ""), "fail vault: ", "does not answer: ")
	v.probeOnce(t.Context())
	if s := v.State(); s.Reachable || s.Sealed || s.Err == nil {
		t.Errorf("a stopped Vault: %+v", s)
	}
}
