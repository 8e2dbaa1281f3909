//go:build linux

package chaos

import (
	"context"
	"errors"
	"net/http"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// stack breaks Nomad or Vault.
func (n *Nemesis) stack(ctx context.Context, kind Kind) (string, func() error) {
	ctx = context.WithoutCancel(ctx) // the repair comes after the end
	bounded := func(do func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, testcluster.Patience)
		defer cancel()
		return do(ctx)
	}
	nomad, vault := n.cluster.Nomad, n.cluster.Vault
	var err error
	repair := func(context.Context) error { return nil }
	switch kind {
	case KillNomad:
		err, repair = nomad.Kill(), nomad.Start
	case KillVault:
		err, repair = vault.Kill(), vault.Start
	case SealVault:
		err, repair = bounded(vault.Seal), vault.Unseal
	case FreezeClient:
		err, repair = nomad.Freeze(), func(context.Context) error { return nomad.Thaw() }
	case RevokeTokens:
		err = bounded(func(ctx context.Context) error {
			return vault.Do(ctx, http.MethodPost, "sys/leases/revoke-prefix/auth/jwt-nomad/login", nil, nil)
		})
	default: // CollectNomad
		err = bounded(func(ctx context.Context) error { return nomad.Do(ctx, http.MethodPut, "system/gc", nil, nil) })
	}
	return "the stack", func() error { return errors.Join(err, bounded(repair)) }
}
