package scheduler

import (
	"context"
	"log/slog"

	"bivouac.dev/bivouac/fsm"
)

// configure brings this leader's installation configuration into a store that never had one. It
// retries until it succeeds or the term ends, because limits and policies are enforced from the
// store alone. Only an operator changes it later.
func (s *Scheduler) configure(ctx context.Context, log *slog.Logger) error {
	retry := newBackoff(s.cfg.BackoffMin, s.cfg.BackoffMax)
	in := s.cfg.Installation
	bytes := in.PerUser.StateBytes > 0 || in.Overall.StateBytes > 0
	for !s.store.View().Configured() {
		// A new cluster is raised to the newest version within seconds; before that it drops these.
		if bytes && !s.store.View().Active(fsm.VersionAccess) {
			if !sleep(ctx, retry.NextBackOff()) {
				return nil
			}
			continue
		}
		_, err := s.cluster.Propose(ctx, command(&fsm.InstallationConfigureBody{Installation: in}))
		if err == nil {
			log.Info("limits and policies of the installation stored")
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		log.Warn("storing the limits and policies of the installation failed", "error", err)
		if !sleep(ctx, retry.NextBackOff()) {
			return nil
		}
	}
	return nil
}
