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

// collectSecrets has the versions of secrets destroyed that no row refers to:
// once when the term begins, then at the configured period. A version younger
// than the secret store's grace may belong to a command that is still on its
// way and is spared there.
func (s *Scheduler) collectSecrets(ctx context.Context, log *slog.Logger) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	retry := newBackoff(s.cfg.BackoffMax/4, s.cfg.CollectInterval)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		pause := s.cfg.CollectInterval
		n, err := s.collectOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			pause = retry.NextBackOff()
			log.Warn("collecting secrets failed", "error", err)
		default:
			retry.Reset()
			if n > 0 {
				log.Info("unreferenced secrets destroyed", "count", n)
			}
		}
		s.metrics.secrets.Add(float64(n))
		timer.Reset(pause)
	}
}

func (s *Scheduler) collectOnce(ctx context.Context) (int, error) {
	if err := s.fence(ctx); err != nil {
		return 0, err
	}
	return s.secrets.Collect(ctx, s.store.View().SecretReferenced)
}
