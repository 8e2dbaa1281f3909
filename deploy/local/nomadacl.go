package local

import (
	"context"
	"fmt"
	"net/http"

	"bivouac.dev/bivouac/deploy"
)

// bootstrapACL gets the management token of a Nomad that was just made.
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

// NewToken writes the policy of deploy/nomad/bivouac.policy.hcl and issues a
// token that carries it, for a Nomad with ACLs.
func (n *Nomad) NewToken(ctx context.Context) (string, error) {
	policy, err := deploy.Files.ReadFile("nomad/bivouac.policy.hcl")
	if err != nil {
		return "", fmt.Errorf("making a token: %w", err)
	}
	in := map[string]string{"Name": "bivouac", "Rules": string(policy)}
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
