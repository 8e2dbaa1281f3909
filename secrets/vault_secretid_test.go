package secrets

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"bivouac.dev/bivouac/deploy"
	"bivouac.dev/bivouac/deploy/local"
)

// endingSecretID gives the store's AppRole more settings, its node the policy of secret-id.hcl where
// renews, and writes a secret id of the role as it is then.
func endingSecretID(t *testing.T, server *local.Vault, cfg VaultConfig, renews bool, settings map[string]any) string {
	t.Helper()
	name := role(cfg)
	body := map[string]any{"token_policies": []string{name}, "token_period": "1h"}
	if renews {
		raw, err := deploy.Files.ReadFile("vault/secret-id.hcl")
		if err != nil {
			t.Fatal(err)
		}
		policy := strings.ReplaceAll(string(raw), "ROLE", name)
		if err := server.Do(t.Context(), http.MethodPost, "sys/policies/acl/"+name+"-secret-id",
			map[string]string{"policy": policy}, nil); err != nil {
			t.Fatal(err)
		}
		body["token_policies"] = []string{name, name + "-secret-id"}
	}
	maps.Copy(body, settings)
	if err := server.Do(t.Context(), http.MethodPost, "auth/approle/role/"+name, body, nil); err != nil {
		t.Fatal(err)
	}
	var made struct {
		Data struct {
			SecretID string `json:"secret_id"`
		}
	}
	if err := server.Do(t.Context(), http.MethodPost, "auth/approle/role/"+name+"/secret-id", nil, &made); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.SecretIDFile, []byte(made.Data.SecretID), 0o600); err != nil {
		t.Fatal(err)
	}
	return made.Data.SecretID
}

const expiryMetric = "bivouac_secret_store_secret_id_expiry_timestamp_seconds"

// expiry returns the metric.
func expiry(t *testing.T, r *prometheus.Registry) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == expiryMetric {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("no metric")
	return 0
}

// The node says when its secret id ends, and so does Examine.
func TestVault_SecretID_SaysWhenItEnds(t *testing.T) {
	t.Parallel()
	server, log, registry := sharedVault(t), &logBuffer{}, prometheus.NewRegistry()
	cfg := config(t, server, local.AppRoleOptions{})
	cfg.Logger, cfg.Registerer = log.logger(), registry
	endingSecretID(t, server, cfg, false, map[string]any{"secret_id_ttl": "48h"})
	s := run(t, cfg)
	eventually(t, "its end is known", func() error {
		if at := s.State().SecretIDExpires; time.Until(at) > 48*time.Hour || time.Until(at) < 47*time.Hour ||
			expiry(t, registry) != float64(at.Unix()) {
			return fmt.Errorf("%s, %v", at, expiry(t, registry))
		}
		return nil
	})
	if left := time.Until(s.State().SecretIDWarning); left < 36*time.Hour || left > 37*time.Hour {
		t.Errorf("a secret id of two days is warned of in %s", left)
	}
	cfg.Registerer = nil
	if bad := examined(t, cfg, ""); len(bad) > 0 {
		t.Errorf("a secret id of two days, a new one: %q", bad)
	}
	endingSecretID(t, server, cfg, false, map[string]any{"secret_id_ttl": "20s"})
	eventually(t, "Examine warns of one that ends", func() error {
		if bad := examined(t, cfg, ""); len(bad) == 0 {
			return errors.New("it says nothing")
		}
		return nil
	})
	only(t, examined(t, cfg, ""), "warn vault.secret_id: it ends on ", "write another into "+cfg.SecretIDFile)
	withoutPath(t, server, cfg, "auth/approle/role/+/secret-id/lookup")
	only(t, examined(t, cfg, ""), "warn vault.secret_id: when it ends is not known", "deploy/vault/bivouac.hcl")
}

// A secret id is warned of a week before its end, and a shorter one when the node should have
// renewed it.
func TestSecretID_Warning(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for life, want := range map[time.Duration]time.Duration{
		365 * day: 7 * day, 30 * day: 7 * day, 20 * day: 20 * day * 7 / 30, 3 * day: 3 * day * 7 / 30, 0: 0,
	} {
		id := secretID{made: made, expires: made.Add(life)}
		if before := id.expires.Sub(id.warning()); before != want {
			t.Errorf("one of %s is warned of %s before its end, want %s", life, before, want)
		}
		if life > 0 && !id.warning().After(id.due(0)) {
			t.Errorf("one of %s is warned of before the node renews it", life)
		}
	}
	if at := (&secretID{made: made}).warning(); !at.IsZero() {
		t.Errorf("one without an end is warned of at %s", at)
	}
}

// Where the policy lets it and the role is bound to addresses, the node renews its secret id: the
// former is destroyed, no operation fails, and the file has one that can log in.
func TestVault_SecretID_RenewsItself(t *testing.T) {
	t.Parallel()
	server, log, registry := sharedVault(t), &logBuffer{}, prometheus.NewRegistry()
	cfg := config(t, server, local.AppRoleOptions{})
	cfg.Logger, cfg.Registerer = log.logger(), registry
	cfg.Replace, cfg.renewAge = os.WriteFile, time.Second
	first := endingSecretID(t, server, cfg, true,
		map[string]any{"secret_id_ttl": "1h", "secret_id_bound_cidrs": []string{"127.0.0.0/8"}})
	s := run(t, cfg)
	eventually(t, "two renewals", func() error {
		if n := testutil.ToFloat64(s.renewals.WithLabelValues("ok")); n < 2 {
			return fmt.Errorf("%v: %s", n, log.String())
		}
		return s.Health(t.Context())
	})
	raw, err := os.ReadFile(cfg.SecretIDFile)
	if err != nil || strings.TrimSpace(string(raw)) == first {
		t.Errorf("the file has the first one: %v", err)
	}
	if again, err := s.logIn(t.Context()); err != nil {
		t.Errorf("the file's can't log in: %v", err)
	} else {
		s.end(again)
	}
	var listed struct{ Data struct{ Keys []string } }
	if err := server.Do(t.Context(), "LIST", "auth/approle/role/"+role(cfg)+"/secret-id", nil, &listed); err != nil {
		t.Fatal(err)
	}
	if n := len(listed.Data.Keys); n > 3 { // the one of config, the present, and one that is being replaced
		t.Errorf("%d secret ids are left", n)
	}
	if text := log.String(); strings.Contains(text, first) || strings.Contains(text, "level=ERROR") ||
		!strings.Contains(text, "secret id renewed") {
		t.Errorf("log:\n%s", text)
	}
}

// boundSecretID runs a store whose node may renew its secret id, which is not due.
func boundSecretID(t *testing.T, change func(*VaultConfig)) (*local.Vault, *Vault, *session) {
	t.Helper()
	server := sharedVault(t)
	cfg := config(t, server, local.AppRoleOptions{})
	change(&cfg)
	endingSecretID(t, server, cfg, true,
		map[string]any{"secret_id_ttl": "48h", "secret_id_bound_cidrs": []string{"127.0.0.0/8"}})
	v := run(t, cfg)
	s, err := v.session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return server, v, s
}

// A node whose secret id has ended takes the next one by its token. There is nothing left to destroy.
func TestVault_SecretID_EndedIsRenewed(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	server, v, s := boundSecretID(t, func(c *VaultConfig) { c.Logger, c.Replace = log.logger(), os.WriteFile })
	if err := server.Do(t.Context(), http.MethodPost, "auth/approle/role/"+role(v.cfg)+"/secret-id/destroy",
		map[string]string{"secret_id": s.secretID}, nil); err != nil {
		t.Fatal(err)
	}
	next, _ := v.tendSecretID(t.Context(), s)
	if next == nil || strings.Contains(log.String(), "level=ERROR") {
		t.Fatalf("renewed: %t, log:\n%s", next != nil, log.String())
	}
	v.end(next)
}

// Writing the file may fail after the file is in its place: what it names must log in.
func TestVault_SecretID_WhatTheFileNamesIsNotDestroyed(t *testing.T) {
	t.Parallel()
	unsynced := errors.New("the folder is not synced")
	for _, writes := range []bool{true, false} {
		server, v, s := boundSecretID(t, func(c *VaultConfig) {
			c.Replace = func(path string, data []byte, mode os.FileMode) error {
				if !writes {
					return unsynced
				}
				return errors.Join(os.WriteFile(path, data, mode), unsynced)
			}
		})
		id, err := v.lookUpSecretID(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.renewSecretID(t.Context(), s, id); !errors.Is(err, unsynced) {
			t.Errorf("renewing says %v", err)
		}
		again, err := v.logIn(t.Context())
		if err != nil {
			t.Fatalf("the file's (written: %t) can't log in: %v", writes, err)
		}
		v.end(again)
		var listed struct{ Data struct{ Keys []string } }
		if err := server.Do(t.Context(), "LIST", "auth/approle/role/"+role(v.cfg)+"/secret-id", nil, &listed); err != nil {
			t.Fatal(err)
		}
		want := 2 // the one of config, and the present
		if writes {
			want++ // and the next
		}
		if len(listed.Data.Keys) != want {
			t.Errorf("%d secret ids are left (written: %t), want %d", len(listed.Data.Keys), writes, want)
		}
	}
}

// A role without addresses is not renewed: a copied secret id would make its own successor anywhere.
func TestVault_SecretID_UnboundIsNotRenewed(t *testing.T) {
	t.Parallel()
	server, log := sharedVault(t), &logBuffer{}
	for name, test := range map[string]struct {
		renews bool
		says   string
	}{
		"unbound":   {true, "the AppRole is bound to no address: set its secret_id_bound_cidrs"},
		"no policy": {false, "secret id expires soon: write another into its file"},
	} {
		cfg := config(t, server, local.AppRoleOptions{})
		cfg.Logger, cfg.Replace, cfg.renewAge = log.logger(), os.WriteFile, time.Second
		first := endingSecretID(t, server, cfg, test.renews, map[string]any{"secret_id_ttl": "1h"})
		run(t, cfg)
		eventually(t, name, func() error {
			if !strings.Contains(log.String(), test.says) {
				return errors.New(log.String())
			}
			return nil
		})
		if raw, err := os.ReadFile(cfg.SecretIDFile); err != nil || string(raw) != first {
			t.Errorf("%s: the file has another one: %v", name, err)
		}
	}
}

// What a node may make is nothing but a secret id as the role says.
func TestVault_SecretID_ThePolicyAllowsNoChoice(t *testing.T) {
	t.Parallel()
	server := sharedVault(t)
	cfg := config(t, server, local.AppRoleOptions{})
	endingSecretID(t, server, cfg, true,
		map[string]any{"secret_id_ttl": "1h", "secret_id_bound_cidrs": []string{"127.0.0.0/8"}})
	s, err := run(t, cfg).session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	path := "auth/approle/role/" + role(cfg)
	for _, body := range []map[string]any{{"cidr_list": "0.0.0.0/0"}, {"ttl": "1000h"}, {"num_uses": 0}} {
		if _, err := s.client.Logical().WriteWithContext(t.Context(), path+"/secret-id", body); !isDenied(err) {
			t.Errorf("%v: %v", body, err)
		}
	}
	if _, err := s.client.Logical().WriteWithContext(t.Context(), path,
		map[string]any{"token_policies": "root"}); !isDenied(err) {
		t.Errorf("it may change its role: %v", err)
	}
}
