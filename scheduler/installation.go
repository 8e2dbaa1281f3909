package scheduler

import (
	"context"
	"log/slog"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// seedPause is how often a leader looks whether the cluster has become able to keep all of its
// configuration.
const seedPause = 100 * time.Millisecond

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

// configure brings the configuration of this leader's file into a store that has none, and the parts
// of it that an upgraded cluster lacks. It retries until all is set or the term ends, because it is
// in force from the store alone. Only an operator changes it later.
func (s *Scheduler) configure(ctx context.Context, log *slog.Logger) error {
	retry := newBackoff(s.cfg.BackoffMin, s.cfg.BackoffMax)
	in := s.cfg.Installation
	if v := s.store.View(); !v.Configured() && ranBefore(v) {
		in.PerUser, in.Overall = fsm.Limits{}, fsm.Limits{}
	}
	bytes, events := in.PerUser.StateBytes > 0 || in.Overall.StateBytes > 0, in.PerUser.EventBytes > 0
	for {
		v := s.store.View()
		switch {
		case v.ConfigIndex() > 0:
			return nil
		case v.Configured() && !v.Active(fsm.VersionConfig):
			if !sleep(ctx, seedPause) {
				return nil
			}
			continue
		case bytes && !v.Active(fsm.VersionAccess) || events && !v.Active(fsm.VersionEvents):
			// A new cluster is raised to the newest version within seconds; before that it drops these.
			if !sleep(ctx, retry.NextBackOff()) {
				return nil
			}
			continue
		}
		_, err := s.cluster.Propose(ctx,
			command(&fsm.InstallationConfigureBody{Installation: in, Seed: v.Active(fsm.VersionConfig)}))
		if err == nil {
			log.Info("the cluster has the configuration of this node's file now (bivouac config get)")
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		log.Warn("storing the cluster's configuration failed", "error", err)
		if !sleep(ctx, retry.NextBackOff()) {
			return nil
		}
	}
}
