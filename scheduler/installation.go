package scheduler

import (
	"context"
	"log/slog"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// configure brings this leader's configuration into the store when none was
// ever there. It tries until it succeeds or the term ends: limits and policies
// are enforced from the store alone. Later ones are an operator's.
func (s *Scheduler) configure(ctx context.Context, log *slog.Logger) error {
	retry := newBackoff(s.cfg.BackoffMin, s.cfg.BackoffMax)
	for !s.store.View().Configured() {
		_, err := s.cluster.Propose(ctx, command(&fsm.InstallationConfigureBody{Installation: s.cfg.Installation}))
		if err == nil {
			log.Info("limits and policies brought into the cluster")
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		log.Warn("bringing limits and policies into the cluster failed", "error", err)
		timer := time.NewTimer(retry.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
	return nil
}
