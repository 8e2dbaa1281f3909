package secrets

import (
	"context"
	"errors"
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
		v.metrics.probed.Store(&err)
		v.logSeal(err)
	}
}

// logSeal logs the seal of Vault, and that it serves again. Each node asks by itself, and logs what
// it sees.
func (v *Vault) logSeal(err error) {
	switch {
	case errors.Is(err, errSealed) && !v.sealed.Swap(true):
		v.log.Warn("vault is sealed (bivouac runbook vault-sealed)", "address", v.cfg.Address)
	case err == nil && v.sealed.Swap(false):
		v.log.Info("vault is unsealed", "address", v.cfg.Address)
	}
}

// Status is Vault as the last probe and login found it.
type Status struct {
	// Reachable: it answered and is unsealed. Sealed: it answered and is not.
	Reachable, Sealed bool
	// Err says why secrets can't be used: of the probe, else of the login.
	Err error
	// SecretIDExpires is when the node's secret id ends, SecretIDWarning when it should have been
	// replaced, zero if never or not known.
	SecretIDExpires, SecretIDWarning time.Time
}

// State returns what this node knows of Vault, without asking.
func (v *Vault) State() Status {
	s := v.state()
	if id := v.secretID.Load(); id != nil {
		s.SecretIDExpires, s.SecretIDWarning = id.expires, id.warning()
	}
	return s
}

func (v *Vault) state() Status {
	probed := v.metrics.probed.Load()
	if probed == nil {
		return Status{Err: unavailable("not asked yet")}
	}
	if err := *probed; err != nil {
		return Status{Sealed: errors.Is(err, errSealed), Err: err}
	}
	v.sessions.mu.Lock()
	defer v.sessions.mu.Unlock()
	return Status{Reachable: true, Err: v.sessions.err}
}
