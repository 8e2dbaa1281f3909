package scheduler

import (
	"context"
	"log/slog"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// limit is how many of so many things of a kind may be removed in an hour.
func (s *Scheduler) limit(total int) int {
	if s.cfg.RemovalsPerHour > 0 {
		return s.cfg.RemovalsPerHour
	}
	return atMost(total)
}

// reserve asks for leave to remove one thing of a kind, of which there are total,
// of the leader's own accord. It is the fence as well: with true this node leads
// and its store is up to date.
func (s *Scheduler) reserve(ctx context.Context, log *slog.Logger, kind string, total int) (bool, error) {
	now, limit := time.Now(), s.limit(total)
	v := s.store.View()
	braked := braking(v, kind, now)
	if v.Hold() != nil || v.Birth().IsZero() || braked && v.Removed(kind, now) >= limit {
		return false, nil
	}
	res, err := s.cluster.Propose(ctx, command(&fsm.RemovalReserveBody{Kind: kind, Want: 1, Limit: limit}))
	if err != nil {
		return false, err
	}
	if res.Granted == 0 && !braked && s.store.View().Hold() == nil {
		log.Warn("removals wait: the limit of an hour is reached (sandboxes { removals_per_hour })", "reason", kind, "count", limit)
	}
	return res.Granted > 0, nil
}

// braking reports whether the limit held removals of a kind back within the hour.
func braking(v *fsm.View, kind string, now time.Time) bool {
	for _, b := range v.Brakes(now) {
		if b.Kind == kind {
			return true
		}
	}
	return false
}
