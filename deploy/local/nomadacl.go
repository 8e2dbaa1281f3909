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
	policy, err := deploy.Files.ReadFile("nomad/bivouac.policy.hcl")
	if err != nil {
		return "", fmt.Errorf("making a token: %w", err)
	}
	rules := strings.Replace(string(policy), `namespace "sandboxes"`, fmt.Sprintf("namespace %q", n.namespace), 1)
	in := map[string]string{"Name": "bivouac", "Rules": rules}
	if err := n.Do(ctx, http.MethodPost, "acl/policy/bivouac", in, nil); err != nil {
		return "", fmt.Errorf("making a token: %w", err)
	}
	var token struct{ SecretID string }
	request := map[string]any{"Name": "bivouac", "Type": "client", "Policies": []string{"bivouac"}}
	if err := n.Do(ctx, http.MethodPost, "acl/token", request, &token); err != nil {
		return "", fmt.Errorf("making a token: %w", err)
	}
	return token.SecretID, nil
}
