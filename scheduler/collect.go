package scheduler

import (
	"context"
	"log/slog"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// fence proves that this node leads and that its store has everything that was
// acknowledged before the call: it puts a command that changes nothing through
// the log. Without it a deposed leader could take another leader's new sandbox
// for an orphan.
func (s *Scheduler) fence(ctx context.Context) error {
	body := &fsm.SandboxObserveBody{Observations: []fsm.Observation{{
		ID: "fence", Status: fsm.SandboxStatus{State: fsm.SandboxStarting, Since: micro(time.Now())},
	}}}
	_, err := s.cluster.Propose(ctx, command(body))
	return err
}

// collectSecrets has the versions of secrets deleted, and later destroyed, that
// no row refers to: once when the term begins, then at the configured period. A
// version younger than the secret store's grace may belong to a command that is
// still on its way and is spared there.
func (s *Scheduler) collectSecrets(ctx context.Context, log *slog.Logger) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	retry := newBackoff(s.cfg.BackoffMax/4, s.cfg.CollectInterval)
	strangers := 0
	for {
		select {
		case <-ctx.Done():
			s.metrics.strangers.Set(0)
			return nil
		case <-timer.C:
		}
		pause := s.cfg.CollectInterval
		did, err := s.collectOnce(ctx)
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

func (s *Scheduler) collectOnce(ctx context.Context) (SecretsCollected, error) {
	if err := s.fence(ctx); err != nil {
		return SecretsCollected{}, err
	}
	return s.secrets.Collect(ctx, judgeSecrets(s.store.View()))
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
