package scheduler

import (
	"context"
	"log/slog"

	"bivouac.dev/bivouac/fsm"
)

// ranBefore reports whether a store without a configuration is of an earlier program, which stored
// none if its file had none. Such a cluster has no limits and gets none by an upgrade. A new cluster
// is raised from version 1 to the newest at once.
func ranBefore(v *fsm.View) bool {
	if v.ProtocolVersion() > 1 && !v.Active(fsm.VersionAccess) {
		return true
	}
	sandboxes, _ := v.OwnedSandboxes("", fsm.Page{Limit: 1})
	return len(sandboxes) > 0
}

// configure brings this leader's installation configuration into a store that never had one. It
// retries until it succeeds or the term ends, because limits and policies are enforced from the
// store alone. Only an operator changes it later.
func (s *Scheduler) configure(ctx context.Context, log *slog.Logger) error {
	retry := newBackoff(s.cfg.BackoffMin, s.cfg.BackoffMax)
	in := s.cfg.Installation
	if ranBefore(s.store.View()) {
		in.PerUser, in.Overall = fsm.Limits{}, fsm.Limits{}
	}
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
