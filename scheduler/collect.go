package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// collectSecrets collects the versions of secrets that no row refers to: it deletes them, and
// destroys them later. It runs when it is called, after the term's first listing, and then every
// CollectInterval. The secret store spares a version younger than its grace period, which may
// belong to a command that is under way.
func (s *Scheduler) collectSecrets(ctx context.Context, log *slog.Logger, vault *markGuard) error {
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
			s.logCollected(log, did, strangers)
			strangers = did.Strangers
		}
		timer.Reset(pause)
	}
}

// logCollected logs and counts what a collection did. before is the number of strangers that the
// collection before it found.
func (s *Scheduler) logCollected(log *slog.Logger, did SecretsCollected, before int) {
	s.metrics.secrets.Add(float64(did.Destroyed))
	s.metrics.deleted.Add(float64(did.Deleted))
	s.metrics.undeleted.Add(float64(did.Undeleted))
	s.metrics.strangers.Set(float64(did.Strangers))
	if did.Deleted > 0 {
		log.Info("unreferenced secrets deleted; they can be undeleted", "count", did.Deleted)
	}
	if did.Destroyed > 0 {
		log.Info("unreferenced secrets destroyed", "count", did.Destroyed)
	}
	if did.Undeleted > 0 {
		log.Warn("referenced secrets were deleted, undeleted them", "count", did.Undeleted)
	}
	if did.Strangers > 0 && did.Strangers != before {
		log.Warn("secrets of unknown birth left alone", "count", did.Strangers, "path", did.StrangerPaths[0])
	}
}

// collectOnce runs one collection. total is the number of versions that the last collection saw;
// it is replaced by this one's.
func (s *Scheduler) collectOnce(
	ctx context.Context,
	log *slog.Logger,
	vault *markGuard,
	total *int,
) (SecretsCollected, error) {
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

// collection is the state of one collection.
type collection struct {
	s    *Scheduler
	log  *slog.Logger
	view *fsm.View
	// may is true when the mark in the secret store is ours.
	may bool
	// refs counts the versions that rows refer to, total those that the last collection saw, and
	// seen those of this collection.
	refs, total, seen int
	limited           bool
	strange           []SecretEntry
}

// judge is judgeSecrets with the limit of removals.
func (c *collection) judge(ctx context.Context, e SecretEntry) SecretVerdict {
	c.seen++
	verdict := judgeSecrets(c.view)(e)
	switch {
	case verdict == SecretStranger && strange(c.view, e.Birth.String()):
		c.strange = append(c.strange, e)
	case verdict != SecretUnreferenced || e.Ref.Version == 0 || e.Due == SecretDueNothing:
	case !c.may || c.limited:
		return SecretLeave
	default:
		ok, err := c.s.reserve(ctx, c.log, fsm.RemovalSecret, max(c.refs, c.total, c.seen))
		c.limited = err != nil || !ok
		// The state that grants the removal may already refer to the version.
		if c.limited || c.s.store.View().SecretReferenced(e.Ref.Path, e.Ref.Version) {
			return SecretLeave
		}
	}
	return verdict
}

// strangers returns the versions that this cluster wrote outside the view's history.
func (c *collection) strangers(v *fsm.View) (findings []fsm.Finding) {
	for _, e := range c.strange {
		if strange(v, e.Birth.String()) {
			findings = append(findings, fsm.Finding{
				Kind: fsm.FindingStranger, Store: fsm.StoreVault, ID: e.Ref.Path, Birth: e.Birth.String(),
				Detail: fmt.Sprintf(
					"version %d of the secret %s is of this cluster and not of this history: the state is older than it",
					e.Ref.Version,
					e.Ref.Path,
				),
			})
		}
	}
	return findings
}

// CopyKeys is the entry in the secret store whose versions are the keys of copies. No row refers to
// them, and all are kept: copies name their key by its content.
const CopyKeys = "copies/key"

// judgeSecrets returns the verdict for each version in the secret store. A version that no row
// refers to is collected only if it was written in this view's history.
func judgeSecrets(v *fsm.View) func(SecretEntry) SecretVerdict {
	return func(e SecretEntry) SecretVerdict {
		ref, referenced := v.SecretRef(e.Ref.Path, e.Ref.Version)
		switch {
		case referenced && ref.Created != "" && ref.Created != e.Ref.Created:
			return SecretStranger // the store went back in time and assigned the number again
		case referenced, e.Ref.Path == CopyKeys:
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
