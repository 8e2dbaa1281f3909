package local

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"

	"bivouac.dev/bivouac/deploy"
)

const (
	// nomadAuthPath is the mount path that `nomad setup vault` uses, too.
	nomadAuthPath = "jwt-nomad"
	nomadPolicy   = "nomad-workloads"
)

// TrustNomad is TrustNamespace for Nomad's namespace default.
func (v *Vault) TrustNomad(ctx context.Context, nomadAddress string) error {
	return v.TrustNamespace(ctx, nomadAddress, "")
}

// TrustNamespace lets the sandboxes' tasks in that namespace of the Nomad at that address, and
// no others, log in with their workload identity and read their own job's entries. `nomad setup
// vault` does the same for all namespaces. "" is default. It may be called again. Nomad must
// run, because Vault fetches its keys.
func (v *Vault) TrustNamespace(ctx context.Context, nomadAddress, namespace string) error {
	namespace = cmp.Or(namespace, "default")
	var auths map[string]any
	if err := v.Do(ctx, http.MethodGet, "sys/auth", nil, &auths); err != nil {
		return fmt.Errorf("setting vault up for nomad: %w", err)
	}
	if _, there := auths[nomadAuthPath+"/"]; !there {
		if err := v.Do(ctx, http.MethodPost, "sys/auth/"+nomadAuthPath, map[string]any{"type": "jwt"}, nil); err != nil {
			return fmt.Errorf("setting vault up for nomad: %w", err)
		}
	}
	var mount struct{ Accessor string }
	if err := v.Do(ctx, http.MethodGet, "sys/auth/"+nomadAuthPath, nil, &mount); err != nil {
		return fmt.Errorf("setting vault up for nomad: %w", err)
	}
	if err := v.writePolicy(ctx, nomadPolicy, "vault/nomad-workloads.hcl", "MOUNT", "secret", "ACCESSOR",
		mount.Accessor); err != nil {
		return err
	}
	writes := []struct {
		path string
		body map[string]any
	}{
		{"auth/" + nomadAuthPath + "/config", map[string]any{
			"jwks_url":           nomadAddress + "/.well-known/jwks.json",
			"jwt_supported_algs": []string{"RS256", "EdDSA"},
			"default_role":       nomadPolicy,
		}},
		{"auth/" + nomadAuthPath + "/role/" + nomadPolicy, map[string]any{
			"role_type":               "jwt",
			"bound_audiences":         []string{"vault.io"},
			"user_claim":              "/nomad_job_id",
			"user_claim_json_pointer": true,
			"bound_claims":            map[string]string{"nomad_namespace": namespace},
			"claim_mappings": map[string]string{
				"nomad_namespace": "nomad_namespace", "nomad_job_id": "nomad_job_id", "nomad_task": "nomad_task",
			},
			"token_type":             "service",
			"token_period":           "30m",
			"token_explicit_max_ttl": 0,
			"token_policies":         []string{nomadPolicy},
		}},
	}
	for _, w := range writes {
		if err := v.Do(ctx, http.MethodPost, w.path, w.body, nil); err != nil {
			return fmt.Errorf("setting vault up for nomad: %w", err)
		}
	}
	return nil
}

// AppRoleOptions says what a Bivouac node's AppRole may access.
type AppRoleOptions struct {
	// Name is the name of the role and its policy; "" is bivouac.
	Name string
	// Mount, Prefix and NomadNamespace: "" is secret, bivouac and default.
	Mount, Prefix, NomadNamespace string
	// Period is the token's renewal period, "" is 1h. A token that is renewed in time does not
	// expire.
	Period string
	// MaxTTL bounds a token's life in spite of renewals; "" is no bound.
	MaxTTL string
}

// AppRole is a node's login.
type AppRole struct{ RoleID, SecretID string }

// NewAppRole writes the policy of deploy/vault/bivouac.hcl and an AppRole with it, and issues a
// secret id. It may be called again: the role id stays, the secret id is new.
func (v *Vault) NewAppRole(ctx context.Context, o AppRoleOptions) (AppRole, error) {
	or := func(s *string, def string) {
		*s = cmp.Or(*s, def)
	}
	or(&o.Name, "bivouac")
	or(&o.Mount, "secret")
	or(&o.Prefix, "bivouac")
	or(&o.NomadNamespace, "default")
	or(&o.Period, "1h")
	err := v.writePolicy(ctx, o.Name, "vault/bivouac.hcl", "MOUNT", o.Mount, "PREFIX", o.Prefix, "NOMAD_NAMESPACE",
		o.NomadNamespace)
	if err != nil {
		return AppRole{}, err
	}
	role := map[string]any{"token_policies": []string{o.Name}, "token_no_default_policy": false, "secret_id_ttl": "720h"}
	if o.MaxTTL == "" {
		role["token_period"] = o.Period
	} else {
		role["token_ttl"], role["token_max_ttl"] = o.Period, o.MaxTTL
	}
	path := "auth/approle/role/" + o.Name
	if err := v.Do(ctx, http.MethodPost, path, role, nil); err != nil {
		return AppRole{}, fmt.Errorf("making the approle: %w", err)
	}
	var roleID struct {
		Data struct {
			RoleID string `json:"role_id"`
		} `json:"data"`
	}
	if err := v.Do(ctx, http.MethodGet, path+"/role-id", nil, &roleID); err != nil {
		return AppRole{}, fmt.Errorf("making the approle: %w", err)
	}
	var secretID struct {
		Data struct {
			SecretID string `json:"secret_id"`
		} `json:"data"`
	}
	if err := v.Do(ctx, http.MethodPost, path+"/secret-id", nil, &secretID); err != nil {
		return AppRole{}, fmt.Errorf("making the approle: %w", err)
	}
	return AppRole{RoleID: roleID.Data.RoleID, SecretID: secretID.Data.SecretID}, nil
}

// writePolicy fills in a policy file of deploy and stores it. pairs are words and their
// replacements; only whole words outside comments are replaced.
func (v *Vault) writePolicy(ctx context.Context, name, file string, pairs ...string) error {
	raw, err := deploy.Files.ReadFile(file)
	if err != nil {
		return fmt.Errorf("writing policy %s: %w", name, err)
	}
	policy := strings.NewReplacer(pairs...).Replace(string(raw))
	if err := v.Do(ctx, http.MethodPost, "sys/policies/acl/"+name, map[string]string{"policy": policy}, nil); err != nil {
		return fmt.Errorf("writing policy %s: %w", name, err)
	}
	return nil
}
