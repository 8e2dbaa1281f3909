package secrets

import (
	"context"
	"time"
)

// probeInterval is how often a node asks whether Vault serves.
const probeInterval = 5 * time.Second

// probe asks Vault's health, which needs no token, until ctx ends. A node that uses no secret
// notices a sealed Vault only so.
func (v *Vault) probe(ctx context.Context) {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		v.probeOnce(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (v *Vault) probeOnce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, min(v.cfg.Timeout, probeInterval))
	defer cancel()
	begun := time.Now()
	client, err := v.newClient("")
	if err == nil {
		_, err = v.serverTime(ctx, &session{client: client})
	}
	err = explain(err)
	v.metrics.observe("health", begun, err)
	if errorKind(err) != "canceled" {
		v.metrics.reachable.Store(err == nil)
	}
}
