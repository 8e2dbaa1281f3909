package scheduler

import (
	"context"
	"path"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// farewell is the polite part of a pause, before its job is stopped.
type farewell struct {
	generation uint64
	over       bool
}

// leaveTime is how long a sandbox runs on at least after its pause was accepted:
// every node's door hears of the pause in that time and closes the sandbox's
// streams itself, with words that clients understand.
const leaveTime = 100 * time.Millisecond

// takingLeave reports whether the stop of a sandbox must wait because its
// conversations are just being paused: an agent that is stopped at work comes
// back as failed. It begins that the first time it is asked for a pause. However
// it ends, and at the latest after Config.PauseGrace, the sandbox is stopped.
func (l *loop) takingLeave(ctx context.Context, sb *fsm.Sandbox, t *track, o Observed) bool {
	if sb == nil || sb.Desired != fsm.DesiredPaused || sb.Status.State != fsm.SandboxRunning ||
		sb.KeyRef.IsZero() || sb.Template.Readiness == fsm.ReadinessAllocation {
		return false
	}
	url := AgentURL(o.Placement)
	if url == "" {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := t.farewell; f != nil && f.generation == sb.Generation {
		return !f.over
	}
	f := &farewell{generation: sb.Generation}
	t.farewell = f
	l.probers.Go(func() {
		begin := time.Now()
		l.pausePolitely(ctx, sb, url, o.Placement.Workspace)
		sleep(ctx, leaveTime-time.Since(begin))
		l.mu.Lock()
		f.over = true
		l.mu.Unlock()
		l.queue.add(sb.ID)
	})
	return true
}

// pausePolitely pauses what runs in the sandbox. It also puts the marker back
// into the workspace, which is known to be the right one as long as the sandbox
// runs: what a user cleared away must not look like a loss later.
func (l *loop) pausePolitely(ctx context.Context, sb *fsm.Sandbox, url, workspace string) {
	s, log := l.s, l.log.With("sandbox", sb.ID)
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PauseGrace)
	defer cancel()
	outcome := "ok"
	defer func() { s.metrics.pauses.WithLabelValues(outcome).Inc() }()
	keys, err := s.secrets.Read(ctx, sb.KeyRef)
	if err != nil {
		outcome = "failed"
		log.Warn("conversations could not be paused before the sandbox stops", "error", err)
		return
	}
	key := keys[secretKeyMember]
	if m := markerOf(sb); sb.Status.Workspace == m.Token && workspace != "" {
		if err := s.agents.Upload(ctx, url, key, path.Join(workspace, markerFile), m.encode()); err != nil {
			log.Info("the workspace's marker could not be written again", "error", err)
		}
	}
	did, err := s.agents.PauseAll(ctx, url, key)
	switch {
	case err != nil:
		outcome = "failed"
		log.Warn("conversations could not be paused before the sandbox stops", "count", did.Conversations, "error", err)
	case did.Conversations > 0:
		log.Info("conversations paused before the sandbox stops", "count", did.Conversations, "duration", time.Since(begin))
	}
}
