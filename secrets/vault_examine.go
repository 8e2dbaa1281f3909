package secrets

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// The results of a Check.
const (
	CheckOK   = "ok"
	CheckWarn = "warn"
	CheckFail = "fail"
)

// Check is one line of Examine.
type Check struct {
	Result, Subject, Detail string
}

// clockLimit is how far Vault's clock may be from the node's before Examine warns: both date what
// is deleted.
const clockLimit = time.Minute

// Examine checks what a node needs of Vault, for `bivouac operator doctor`: that it answers and is
// unsealed, its version and clock, the AppRole, and each permission. sign is the path that a node
// renews its certificate at, "" for none. It logs in once, writes nothing, and revokes its token.
func (v *Vault) Examine(ctx context.Context, sign string) (found []Check) {
	add := func(result, subject, format string, args ...any) {
		found = append(found, Check{result, subject, fmt.Sprintf(format, args...)})
	}
	defer v.http.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 4*v.cfg.Timeout)
	defer cancel()
	client, err := v.newClient("")
	if err != nil {
		add(CheckFail, "vault", "%s can't be asked: %s", v.cfg.Address, err)
		return found
	}
	begun := time.Now()
	health, err := client.Sys().HealthWithContext(ctx)
	took := time.Since(begun)
	switch {
	case err != nil:
		add(CheckFail, "vault", "%s does not answer: %s; look at vault { address } and ca_file, and whether Vault runs",
			v.cfg.Address, callCause(err))
		return found
	case !health.Initialized:
		add(CheckFail, "vault", "%s is not initialised: vault operator init", v.cfg.Address)
		return found
	case health.Sealed:
		add(CheckFail, "vault", "%s is sealed: vault operator unseal", v.cfg.Address)
		return found
	}
	add(CheckOK, "vault", "%s answers and is unsealed", v.cfg.Address)
	add(CheckOK, "vault.version", "%s", health.Version)
	// Vault's clock comes in whole seconds.
	if off := time.Unix(health.ServerTimeUTC, 0).Sub(begun.Add(took / 2)); off.Abs()-took-time.Second > clockLimit {
		add(CheckWarn, "vault.clock", "Vault's clock is off by %s: synchronise both (chrony, ntpd)", off.Round(time.Second))
	} else {
		add(CheckOK, "vault.clock", "within %s of this machine's", clockLimit)
	}
	s, err := v.logIn(ctx)
	if err != nil {
		add(CheckFail, "vault.login", "%s", err)
		return found
	}
	defer v.end(s)
	if auth := s.login.Auth; auth.Renewable {
		add(CheckOK, "vault.login", "auth/%s, policies %s, for %s at a time", v.cfg.AuthMount,
			strings.Join(auth.TokenPolicies, ", "), time.Duration(auth.LeaseDuration)*time.Second)
	} else {
		add(CheckWarn, "vault.login",
			"the token can't be renewed: write the AppRole of deploy/vault/bivouac.hcl again, with token_period")
	}
	v.examineSecretID(ctx, s, add)
	v.examinePermissions(ctx, s, sign, add)
	v.examineMount(ctx, s, add)
	return found
}

// examineSecretID looks when the secret id ends.
func (v *Vault) examineSecretID(
	ctx context.Context,
	s *session,
	add func(result, subject, format string, args ...any),
) {
	const subject = "vault.secret_id"
	id, err := v.lookUpSecretID(ctx, s)
	switch {
	case err != nil:
		add(CheckWarn, subject, "when it ends is not known: %s; write deploy/vault/bivouac.hcl again", err)
	case id.expires.IsZero():
		add(CheckWarn, subject, "it never ends: set secret_id_ttl of the AppRole and write another into %s",
			v.cfg.SecretIDFile)
	case time.Now().After(id.warning()):
		add(CheckWarn, subject, "it ends on %s: write another into %s (bivouac runbook secret-id)",
			id.expires.UTC().Format(time.RFC3339), v.cfg.SecretIDFile)
	default:
		add(CheckOK, subject, "it ends on %s", id.expires.UTC().Format(time.RFC3339))
	}
}

// callCause returns the cause of a call without an answer: the method and URL say nothing more.
func callCause(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// examinePermissions asks what the token may do on each path that is used.
func (v *Vault) examinePermissions(
	ctx context.Context,
	s *session,
	sign string,
	add func(result, subject, format string, args ...any),
) {
	const subject = "vault.permission"
	policy := "deploy/vault/bivouac.hcl"
	all := append(v.permissions(),
		permission{
			v.cfg.Mount + "/metadata/" + v.cfg.NomadNamespace + "/",
			v.cfg.Mount + "/metadata/" + v.cfg.NomadNamespace + "/",
			[]string{"list"},
		},
		permission{v.cfg.Mount + "/config", v.cfg.Mount + "/config", []string{"read"}},
	)
	if sign != "" {
		all = append(all, permission{sign, sign, []string{"update"}})
	}
	lacks, err := s.lacks(ctx, all)
	if err != nil {
		add(CheckWarn, subject,
			"the permissions could not be asked for (sys/capabilities-self): %s; give the AppRole Vault's default policy",
			explain(err))
		return
	}
	missing := map[string][]string{}
	for _, one := range lacks {
		missing[one.Path] = append(missing[one.Path], one.Capability)
	}
	for _, one := range all {
		if one.shown == sign {
			policy = "deploy/vault/pki.hcl"
		}
		if lost := missing[one.shown]; len(lost) > 0 {
			add(CheckFail, subject, "the token lacks %s on %s: write %s again", strings.Join(lost, ", "), one.shown, policy)
		} else {
			add(CheckOK, subject, "%s on %s", strings.Join(one.capabilities, ", "), one.shown)
		}
	}
}

// examineMount looks at what the mount does by itself.
func (v *Vault) examineMount(ctx context.Context, s *session, add func(result, subject, format string, args ...any)) {
	config, err := s.client.Logical().ReadWithContext(ctx, v.cfg.Mount+"/config")
	switch {
	case isDenied(err):
		return // the permission has a line
	case err != nil:
		add(CheckFail, "vault.mount", "%s is no KV version 2, or can't be read: %s", v.cfg.Mount, explain(err))
		return
	case config == nil:
		add(CheckFail, "vault.mount", "%s is no KV version 2: vault secrets enable -path=%s -version=2 kv", v.cfg.Mount,
			v.cfg.Mount)
		return
	}
	if after, _ := config.Data["delete_version_after"].(string); after != "" && after != "0s" {
		add(CheckFail, "vault.mount",
			"%s deletes versions after %s, and secrets in use vanish: vault write %s/config delete_version_after=0s",
			v.cfg.Mount, after, v.cfg.Mount)
		return
	}
	add(CheckOK, "vault.mount", "%s keeps versions", v.cfg.Mount)
}
