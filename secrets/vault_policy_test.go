package secrets

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

// withoutPath removes one path from the policy of a store's AppRole.
func withoutPath(t *testing.T, server *local.Vault, cfg VaultConfig, line string) {
	t.Helper()
	at := "sys/policies/acl/" + role(cfg)
	var answer struct{ Data struct{ Policy string } }
	if err := server.Do(t.Context(), http.MethodGet, at, nil, &answer); err != nil {
		t.Fatal(err)
	}
	begin := strings.Index(answer.Data.Policy, "path \""+line+"\"")
	if begin < 0 {
		t.Fatalf("no path %s in\n%s", line, answer.Data.Policy)
	}
	end := begin + strings.Index(answer.Data.Policy[begin:], "}\n")
	policy := answer.Data.Policy[:begin] + answer.Data.Policy[end+2:]
	if err := server.Do(t.Context(), http.MethodPost, at, map[string]string{"policy": policy}, nil); err != nil {
		t.Fatal(err)
	}
}

// TestVault_PermissionMissing_IsNamed: the AppRole's policy is older than reversible deletion.
func TestVault_PermissionMissing_IsNamed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := sharedVault(t)
	cfg := config(t, server, local.AppRoleOptions{})
	log := &logBuffer{}
	cfg.Logger = log.logger()
	lacking := "secret/undelete/" + cfg.NomadNamespace + "/sandbox-*"
	withoutPath(t, server, cfg, lacking)
	withoutPath(t, server, cfg, "secret/undelete/"+cfg.Prefix+"/*")
	s := run(t, cfg)
	v := write(t, s, settingsPath, "a")
	setGrace(s, time.Nanosecond)
	begun := time.Now()
	eventually(t, "the grace period", func() error { // by Vault's clock, truncated to the second
		_, err := s.Collect(ctx, born, always(Unreferenced))
		var denied *DeniedError
		if !errors.As(err, &denied) || !errors.Is(err, ErrUnavailable) || denied.Capability != "update" ||
			denied.Path != "secret/undelete/"+cfg.Prefix+"/*" {
			t.Fatalf("collecting: %v", err)
		}
		if time.Since(begun) < 2*time.Second {
			return errors.New("not yet")
		}
		return nil
	})
	forget(s, settingsPath, v)
	want(t, s, settingsPath, v, "a") // what can't be undeleted is not deleted
	err := s.Undelete(ctx, settingsPath, v)
	if says := "vault denies create or update on secret/undelete/" + cfg.Prefix + "/" + settingsPath; err == nil ||
		!strings.Contains(err.Error(), says) {
		t.Errorf("undeleting: %v, want it to say %q", err, says)
	}
	if text := log.String(); !strings.Contains(text, "vault denies update on "+lacking) ||
		strings.Contains(text, "destroy") {
		t.Errorf("log:\n%s", text)
	}
}

// TestVault_NumberUsedTwice_AfterVaultWentBack: Vault's own data are restored from a copy, and a
// version number is assigned again.
func TestVault_NumberUsedTwice_AfterVaultWentBack(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := ownVault(t)
	cfg := config(t, server, local.AppRoleOptions{})
	data, backup := server.Dir+"/data", t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := run(t, cfg)
	first := writeAt(t, s, settingsPath, "first", born)
	must(server.Stop())
	must(os.CopyFS(backup+"/data", os.DirFS(data)))
	must(server.Start(ctx))
	eventually(t, "vault", func() error { return s.Health(ctx) })
	lost := writeAt(t, s, settingsPath, "lost", born)
	must(server.Stop())
	must(os.RemoveAll(data))
	must(os.CopyFS(data, os.DirFS(backup+"/data")))
	must(server.Start(ctx))
	s = run(t, cfg) // another node, with an empty cache
	again := writeAt(t, s, settingsPath, "another value", born)
	if again.Number != lost.Number {
		t.Fatalf("versions %d and %d: the test does not show what it should", lost.Number, again.Number)
	}
	if data, err := s.Read(ctx, settingsPath, lost.Number, lost.Created); !errors.Is(err, ErrNotFound) ||
		!strings.Contains(err.Error(), "rolled back") {
		t.Errorf("the lost version reads as %v, %v", data, err)
	}
	want(t, s, settingsPath, first.Number, "first")
	if data, err := s.Read(ctx, settingsPath, again.Number, again.Created); err != nil ||
		data["value"] != "another value" {
		t.Errorf("%v, %v", data, err)
	}
}
