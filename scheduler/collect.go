package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// collectSecrets has the versions of secrets deleted, and later destroyed, that
// no row refers to: once when the term begins, then at the configured period. A
// version younger than the secret store's grace may belong to a command that is
// still on its way and is spared there.
func (s *Scheduler) collectSecrets(ctx context.Context, log *slog.Logger, vault *ward) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	retry := newBackoff(s.cfg.BackoffMax/4, s.cfg.CollectInterval)
	strangers, total := 0, 0
	for {
		select {
		case <-ctx.Done():
			s.metrics.strangers.Set(0)
			return nil
		case <-timer.C:
		}
		pause := s.cfg.CollectInterval
		did, err := s.collectOnce(ctx, log, vault, &total)
		switch {
		case ctx.Err() != nil:
			s.metrics.strangers.Set(0)
			return nil
		case err != nil:
			pause = retry.NextBackOff()
			log.Warn("collecting secrets failed", "error", err)
		default:
			retry.Reset()
			s.tellCollected(log, did, strangers)
			strangers = did.Strangers
		}
		timer.Reset(pause)
	}
}

// tellCollected logs and counts what a collection did. before is how many
// strangers the one before it found.
func (s *Scheduler) tellCollected(log *slog.Logger, did SecretsCollected, before int) {
	s.metrics.secrets.Add(float64(did.Destroyed))
	s.metrics.deleted.Add(float64(did.Deleted))
	s.metrics.undeleted.Add(float64(did.Undeleted))
	s.metrics.strangers.Set(float64(did.Strangers))
	if did.Deleted > 0 {
		log.Info("unreferenced secrets deleted; they can be undeleted", "count", did.Deleted)
	}
	if did.Destroyed > 0 {
		log.Info("secrets deleted long ago destroyed", "count", did.Destroyed)
	}
	if did.Undeleted > 0 {
		log.Warn("secrets that are referenced were deleted; they are undeleted", "count", did.Undeleted)
	}
	if did.Strangers > 0 && did.Strangers != before {
		log.Warn("secrets of unknown birth are left alone", "count", did.Strangers, "path", did.StrangerPaths[0])
	}
}

// collectOnce collects once. total is how many versions the last collection was
// shown, which it replaces.
func (s *Scheduler) collectOnce(ctx context.Context, log *slog.Logger, vault *ward, total *int) (SecretsCollected, error) {
	if vault.marks != nil {
		if _, err := vault.judge(ctx); err != nil {
			return SecretsCollected{}, err
		}
	}
	if err := s.fence(ctx); err != nil {
		return SecretsCollected{}, err
	}
	c := &collection{s: s, log: log, view: s.store.View(), may: vault.marks == nil || vault.mayRemove(), total: *total}
	for range c.view.SecretRefs() {
		c.refs++
	}
	did, err := s.secrets.Collect(ctx, func(e SecretEntry) SecretVerdict { return c.judge(ctx, e) })
	*total = c.seen
	if held := s.hold(ctx, log, c.strangers); err == nil {
		err = held
	}
	return did, err
}

// collection is one look at all that the secret store has.
type collection struct {
	s    *Scheduler
	log  *slog.Logger
	view *fsm.View
	// may: the mark in the secret store is ours.
	may bool
	// refs and total are the versions that rows refer to, and those the last
	// collection was shown; seen counts those of this one.
	refs, total, seen int
	braked            bool
	strange           []SecretEntry
}

// judge is judgeSecrets under the brake.
func (c *collection) judge(ctx context.Context, e SecretEntry) SecretVerdict {
	c.seen++
	verdict := judgeSecrets(c.view)(e)
	switch {
	case verdict == SecretStranger && strange(c.view, e.Birth.String()):
		c.strange = append(c.strange, e)
	case verdict != SecretUnreferenced || e.Ref.Version == 0 || e.Due == SecretDueNothing:
	case !c.may || c.braked:
		return SecretLeave
	default:
		ok, err := c.s.reserve(ctx, c.log, fsm.RemovalSecret, max(c.refs, c.total, c.seen))
		c.braked = err != nil || !ok
		// What is granted is granted by a state that may refer to it by now.
		if c.braked || c.s.store.View().SecretReferenced(e.Ref.Path, e.Ref.Version) {
			return SecretLeave
		}
	}
	return verdict
}

// strangers are the findings of what this cluster wrote in no history of the
// view's.
func (c *collection) strangers(v *fsm.View) (findings []fsm.Finding) {
	for _, e := range c.strange {
		if strange(v, e.Birth.String()) {
			findings = append(findings, fsm.Finding{
				Kind: fsm.FindingStranger, Store: fsm.StoreVault, ID: e.Ref.Path, Birth: e.Birth.String(),
				Detail: fmt.Sprintf("version %d of the secret %s is of this cluster and not of this history: the state is older than it", e.Ref.Version, e.Ref.Path),
			})
		}
	}
	return findings
}

// judgeSecrets says what becomes of the versions in the secret store: what no
// row refers to goes only if it was made in this view's history.
func judgeSecrets(v *fsm.View) func(SecretEntry) SecretVerdict {
	return func(e SecretEntry) SecretVerdict {
		ref, referenced := v.SecretRef(e.Ref.Path, e.Ref.Version)
		switch {
		case referenced && ref.Created != "" && ref.Created != e.Ref.Created:
			return SecretStranger // the store went back in time and gave the number out again
		case referenced:
			return SecretKeep
		case v.History().ID == "":
			return SecretLeave // births are not known below protocol version 3
		case !v.Contains(e.Birth):
			return SecretStranger
		case v.Hold() != nil:
			return SecretLeave
		}
		return SecretUnreferenced
	}
}
