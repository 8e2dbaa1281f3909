package scheduler

import (
	"context"
	"errors"
	"path"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/agent"
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
	if step != StepStop && step != StepRemove {
		l.mu.Lock()
		t.pause = nil // a drain may be taken back and come again
		l.mu.Unlock()
		return false
	}
	restarted := sb != nil && sb.Desired == fsm.DesiredRunning &&
		(o.Client == ClientDraining || o.Rotations != sb.Rotations)
	deleted := sb != nil && l.fetchesBeforeDeletion(sb, o)
	if sb == nil || !deleted && (step != StepStop || sb.Desired != fsm.DesiredPaused && !restarted ||
		sb.Status.State != fsm.SandboxRunning) ||
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
		if deleted {
			l.fetchEvents(ctx, sb, url, deletionTime)
		} else {
			l.pauseConversations(ctx, sb, url, o.Placement.Workspace)
			sleep(ctx, minPauseTime-time.Since(begin))
		}
		l.mu.Lock()
		f.over = true
		l.mu.Unlock()
		l.queue.add(sb.ID)
	})
	return true
}

// deletionTime bounds how long a deletion waits for the events of the sandbox's conversations.
const deletionTime = 10 * time.Second

// fetchesBeforeDeletion reports whether a sandbox that is deleted runs and has conversations, whose events
// may be nowhere else.
func (l *loop) fetchesBeforeDeletion(sb *fsm.Sandbox, o Observed) bool {
	if l.s.cfg.Events == nil || sb.Desired != fsm.DesiredDeleted || o.Placement == nil || !o.Exists ||
		sb.Status.Placement == nil || sb.Status.Placement.AllocID != o.Placement.AllocID {
		return false
	}
	v := l.s.store.View()
	for range v.SandboxConversations(sb.ID) {
		return v.Active(fsm.VersionEvents)
	}
	return false
}

// fetchEvents fetches what the cluster lacks of the sandbox's events, and says so if it can't.
func (l *loop) fetchEvents(ctx context.Context, sb *fsm.Sandbox, url string, within time.Duration) {
	if l.s.cfg.Events == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	keys, err := l.s.secrets.Read(ctx, sb.AgentKey())
	if err == nil {
		err = l.s.cfg.Events.Fetch(ctx, sb, url, keys[fsm.MemberKey])
	}
	if err != nil {
		l.log.Warn("events that only the sandbox has could not be fetched before it stops", "sandbox", sb.ID,
			"error", err)
	}
}

// pauseConversations pauses the sandbox's conversations, and fetches their events. It also writes the
// workspace's marker again: a running sandbox has proven its workspace, and a marker that a user deleted
// must not look like a lost workspace later.
func (l *loop) pauseConversations(ctx context.Context, sb *fsm.Sandbox, url, workspace string) {
	s, log := l.s, l.log.With("sandbox", sb.ID)
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PauseGrace)
	defer cancel()
	outcome := "ok"
	defer func() { s.metrics.pauses.WithLabelValues(outcome).Inc() }()
	keys, err := s.secrets.Read(ctx, sb.AgentKey())
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
	within := s.cfg.PauseGrace
	if errors.Is(err, agent.ErrUnreachable) {
		within = s.cfg.ProbeTimeout // it may be slow alone, but a server that is gone delays no stop
	}
	l.fetchEvents(ctx, sb, url, within)
}
