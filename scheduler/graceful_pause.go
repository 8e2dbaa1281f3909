package scheduler

import (
	"context"
	"path"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/access"
)

// gracefulPause is the graceful part of a pause, before the job is stopped.
type gracefulPause struct {
	generation uint64
	alloc      string
	over       bool
}

// minPauseTime is the least time that a sandbox runs on after its pause was accepted. Every node's
// proxy learns of the pause in that time and closes the sandbox's streams with a reason that
// clients understand.
const minPauseTime = 100 * time.Millisecond

// pausingConversations reports whether the stop of a sandbox must wait while its conversations are
// paused. A conversation that is stopped while its agent works comes back as failed. The first call
// for a pause, by a user or for a drained client, begins to pause them. The stop goes on when that
// succeeds or fails, and after Config.PauseGrace at the latest.
func (l *loop) pausingConversations(ctx context.Context, sb *fsm.Sandbox, t *track, o Observed, step Step) bool {
	if step != StepStop {
		l.mu.Lock()
		t.pause = nil // a drain may be taken back and come again
		l.mu.Unlock()
		return false
	}
	restarted := sb != nil && sb.Desired == fsm.DesiredRunning &&
		(o.Client == ClientDraining || o.Rotations != sb.Rotations)
	if sb == nil || sb.Desired != fsm.DesiredPaused && !restarted || sb.Status.State != fsm.SandboxRunning ||
		sb.KeyRef.IsZero() || sb.Template.Readiness == fsm.ReadinessAllocation {
		return false
	}
	url := access.AgentURL(o.Placement)
	if url == "" {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := t.pause; f != nil && f.generation == sb.Generation && f.alloc == o.Placement.AllocID {
		return !f.over
	}
	f := &gracefulPause{generation: sb.Generation, alloc: o.Placement.AllocID}
	t.pause = f
	l.probers.Go(func() {
		begin := time.Now()
		l.pauseConversations(ctx, sb, url, o.Placement.Workspace)
		sleep(ctx, minPauseTime-time.Since(begin))
		l.mu.Lock()
		f.over = true
		l.mu.Unlock()
		l.queue.add(sb.ID)
	})
	return true
}

// pauseConversations pauses the sandbox's conversations. It also writes the workspace's marker
// again: a running sandbox has proven its workspace, and a marker that a user deleted must not look
// like a lost workspace later.
func (l *loop) pauseConversations(ctx context.Context, sb *fsm.Sandbox, url, workspace string) {
	s, log := l.s, l.log.With("sandbox", sb.ID)
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PauseGrace)
	defer cancel()
	outcome := "ok"
	defer func() { s.metrics.pauses.WithLabelValues(outcome).Inc() }()
	ref := sb.KeyRef
	if !sb.FormerKeyRef.IsZero() {
		ref = sb.FormerKeyRef
	}
	keys, err := s.secrets.Read(ctx, ref)
	if err != nil {
		outcome = "failed"
		log.Warn("pausing conversations failed, the sandbox stops without it", "error", err)
		return
	}
	key := keys[fsm.MemberKey]
	if has := sb.Status.Workspace; has != "" && has != fsm.WorkspaceUnmarked && workspace != "" {
		if err := s.agents.Upload(ctx, url, key, path.Join(workspace, markerFile), markerOf(sb).encode()); err != nil {
			log.Info("writing the workspace's marker again failed", "error", err)
		}
	}
	did, err := s.agents.PauseAll(ctx, url, key, sb.Desired == fsm.DesiredRunning)
	switch {
	case err != nil:
		outcome = "failed"
		log.Warn("pausing conversations failed, the sandbox stops without it", "count", did.Conversations, "error", err)
	case did.Conversations > 0:
		log.Info("conversations paused before the sandbox stops", "count", did.Conversations, "duration", time.Since(begin))
	}
}
