package local

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"bivouac.dev/bivouac/deploy"
)

// bootstrapACL gets the management token of a new Nomad.
func (n *Nomad) bootstrapACL(ctx context.Context) error {
	if !n.acl {
		return nil
	}
	var token struct{ SecretID string }
	if err := n.DoAs(ctx, "", http.MethodPost, "acl/bootstrap", nil, &token); err != nil {
		return err
	}
	n.Token, n.acl = token.SecretID, false
	return nil
}

// NewToken writes the policy of deploy/nomad/bivouac.policy.hcl for this Nomad's namespace and
// issues a token with it. It requires ACLs.
func (n *Nomad) NewToken(ctx context.Context) (string, error) {
	rules, err := n.Policy()
	if err == nil {
		err = n.WritePolicy(ctx, rules)
	}
	if err != nil {
		return "", fmt.Errorf("making a token: %w", err)
	}
	var token struct{ SecretID string }
	request := map[string]any{"Name": policyName, "Type": "client", "Policies": []string{policyName}}
	if err := n.Do(ctx, http.MethodPost, "acl/token", request, &token); err != nil {
		return "", fmt.Errorf("making a token: %w", err)
	}
	return token.SecretID, nil
}

// policyName is the name of the policy of NewToken's tokens.
const policyName = "bivouac"

// Policy returns the policy of deploy/nomad/bivouac.policy.hcl for this Nomad's namespace, with what
// the policy says that raw_exec needs.
func (n *Nomad) Policy() (string, error) {
	policy, err := deploy.Files.ReadFile("nomad/bivouac.policy.hcl")
	return strings.NewReplacer(
		`namespace "sandboxes"`, fmt.Sprintf("namespace %q",
			n.namespace), `"alloc-exec",`, `"alloc-exec", "alloc-node-exec",`,
	).Replace(string(policy)), err
}

// WritePolicy replaces the policy of NewToken's tokens.
func (n *Nomad) WritePolicy(ctx context.Context, rules string) error {
	return n.Do(ctx, http.MethodPost, "acl/policy/"+policyName, map[string]string{"Name": policyName, "Rules": rules}, nil)
}
