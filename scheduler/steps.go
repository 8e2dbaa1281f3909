package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/fault"
)

// pass plans for one sandbox from the newest view and observation, reports its status, and takes
// the step. One pass at a time runs for a sandbox.
func (l *loop) pass(ctx context.Context, clusterID, id string) {
	v := l.s.store.View()
	sb := v.SandboxAny(id)
	sit, t, seen := l.situation(v, sb, id)
	d := Plan(sit)
	if kept := sit.Orphan.Record; sb != nil && kept != nil && kept.Delete && !owns(v, sb, sit.Observed) {
		// An operator deleted the workspace of an earlier sandbox with this id.
		d.Step = StepRemoveOrphan
	}
	// note comes first, because the prober's pace depends on it.
	l.note(t, sb, d)
	l.watch(ctx, t, sb, d.Probe, sit.Known)
	if !v.Active(fsm.MinVersion(fsm.SandboxAcceptWorkspace)) {
		// Older nodes do not know the field.
		d.Status.Proven = ""
	}
	if !v.Active(fsm.VersionRotate) {
		d.Status.Challenged = false
	}
	if st := clipped(d.Status); d.Observe && !statusEqual(sb.Status, st) {
		l.reports.submit(id, st)
	}
	if sb != nil && d.Observe && d.Status.Reason == fsm.ReasonClient && sb.Status.Reason != fsm.ReasonClient &&
		sit.Mark != fsm.ClientLost {
		l.log.Info("pausing a sandbox for its Nomad client (bivouac runbook drain)", "sandbox", id, "reason", d.Status.Detail)
	}
	if d.Note != nil {
		l.orphanNote(ctx, id, sit.Observed, *d.Note)
	}
	if l.pausingConversations(ctx, sb, t, sit.Observed, d.Step) {
		d.Step = StepNone
	}
	if d.Step != StepNone && l.mayStep(t, sb, id, seen, d.Step) {
		l.inTurn(id, d.Step, func() { l.step(ctx, clusterID, id, sb, t, sit.Observed, d.Step) })
	}
	if !d.Wake.IsZero() {
		l.queue.addAt(id, d.Wake)
	}
}

// situation collects the input of Plan. seen is the observation without operators' marks.
func (l *loop) situation(v *fsm.View, sb *fsm.Sandbox, id string) (s Situation, t *track, seen Observed) {
	cfg := l.s.cfg
	l.mu.Lock()
	defer l.mu.Unlock()
	t = l.trackLocked(id)
	switch {
	case sb != nil || !orphaned(t.observed):
		t.orphanSince, t.grantedAt = time.Time{}, time.Time{}
	case t.orphanSince.IsZero():
		t.orphanSince = time.Now()
	}
	s = Situation{
		ProgressAt: t.progressed(), Sandbox: sb, Known: l.known, Observed: withMarks(v, sb, t.observed),
		Mark: v.ClientMark(homeOf(sb, t.observed)), MoveFailure: t.moveFailure, UnplacedSince: t.unplacedSince,
		FailedSince: t.failedSince, OrphanSince: t.orphanSince, Away: t.away, StoppingSince: t.stoppingSince,
		Attempted: t.attempted, Probe: t.probe, Now: time.Now(),
		Limits: Limits{
			Start: cfg.StartTimeout, Progress: cfg.ProgressTimeout, Stop: cfg.StopTimeout, Placement: cfg.PlacementGrace,
			Retry:  cfg.RetryInterval,
			Orphan: cfg.OrphanGrace, Retention: cfg.OrphanRetention, Released: l.released,
			Health: cfg.HealthGrace, HealthFailures: cfg.HealthFailures, TermStart: l.started,
		},
	}
	if s.Away == nil {
		s.Away = l.away
	}
	s.Orphan = orphanFacts(v, t.observed, l.backend.mayRemove())
	s.Orphan.GrantedAt = t.grantedAt
	if sb != nil {
		s.Held, s.Holding, s.Unsure = v.Held(sb), v.Hold() != nil, !l.backend.sure()
		s.Stranger = t.observed.Exists && t.observed.Birth != sb.Birth.String() && strange(v, t.observed.Birth)
	}
	if sb != nil && t.failedFor == sb.Generation {
		s.StepFailed = t.failed
	}
	s.TakeOverRefused = sb != nil && t.takeOverRefused == sb.Generation
	return s, t, t.observed
}

// note records what the prober and the metrics need to know about a decision.
func (l *loop) note(t *track, sb *fsm.Sandbox, d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	starting := sb != nil && sb.Desired == fsm.DesiredRunning && d.Status.State == fsm.SandboxStarting
	placed := starting && d.Status.Placement != nil
	if sb != nil && d.Observe {
		since := latest(sb.Status.Since, sb.DesiredAt)
		if placed && !t.placed {
			seconds(l.s.metrics.start.WithLabelValues("placed", startKind(sb)), since)
		}
		if d.Status.State == fsm.SandboxRunning && t.starting {
			seconds(l.s.metrics.start.WithLabelValues("running", startKind(sb)), since)
			if sb.Status.Workspace == "" {
				l.s.metrics.started(l.s.store.View(), sb)
			}
		}
		if d.Status.State == fsm.SandboxError && sb.Status.State != fsm.SandboxError {
			l.s.metrics.failures.WithLabelValues(d.Status.Reason).Inc()
		}
	}
	t.starting, t.placed = starting, placed
}

// mayStep reports whether a step planned from the observation o may be taken now: o is the
// newest, the back-off is over, and the backend has shown the last step.
func (l *loop) mayStep(t *track, sb *fsm.Sandbox, id string, o Observed, step Step) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !observedEqual(t.observed, o) {
		l.queue.add(id)
		return false
	}
	now := time.Now()
	if now.Before(t.notBefore) {
		l.queue.addAt(id, t.notBefore)
		return false
	}
	if at := t.startAfter(sb); step == StepStart && now.Before(at) {
		l.queue.addAt(id, at)
		return false
	}
	if t.settle == nil {
		return true
	}
	if now.Before(t.settle.until) {
		l.queue.addAt(id, t.settle.until)
		return false
	}
	// The stream lost the step's event: list, and plan again after that.
	t.settle = nil
	t.seq = 0
	t.notBefore = now.Add(l.s.cfg.BackoffMin)
	l.queue.addAt(id, t.notBefore)
	l.listSoon()
	return false
}

func (l *loop) step(
	ctx context.Context, clusterID, id string, sb *fsm.Sandbox, t *track, o Observed, step Step,
) {
	log := l.log.With("sandbox", id, "step", step)
	begin := time.Now()
	callCtx, cancel := context.WithTimeout(ctx, l.s.cfg.CallTimeout)
	defer cancel()
	l.mu.Lock()
	// An old row that was added just now was restored, and may have been started before.
	fresh := t.fresh && sb != nil && begin.Sub(sb.CreatedAt) < l.s.cfg.StartTimeout
	t.fresh = t.fresh && step != StepStart
	l.mu.Unlock()
	job := jobOf(clusterID, id, sb, o, fresh, l.s.store.View())
	job.TakeOver = step == StepTakeOver
	err := l.act(callCtx, sb, t, o, job, step)
	if ctx.Err() != nil {
		return
	}
	if errors.Is(err, errRemovalLimit) {
		l.later(id, t, orphanPause)
		return
	}
	// A start or a removal changes the sandbox's secrets, too.
	l.backend.soon()
	l.vault.soon()
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	l.s.metrics.steps.WithLabelValues(string(step), outcome).Inc()
	if err != nil {
		l.stepFailed(log, id, sb, t, step, err)
		return
	}
	log.Info("step taken", "duration", time.Since(begin))
	l.mu.Lock()
	defer l.mu.Unlock()
	t.tryNow()
	t.away = nil
	switch step {
	case StepAdopt:
		return
	case StepRemove, StepRemoveOrphan:
		// The id may be used by another sandbox later.
		if t.prober != nil {
			t.prober.cancel()
		}
		// A listing that is under way may still show it.
		l.seq++
		*t = track{observed: Observed{SandboxID: id}, seq: l.seq, retry: t.retry}
		l.queue.add(id)
		return
	case StepStop:
		t.noteStop(sb, o)
	case StepStart:
		t.attempted = sb.Generation
		seconds(l.s.metrics.start.WithLabelValues("accepted", startKind(sb)), sb.DesiredAt)
	case StepTakeOver:
		t.attempted = sb.Generation
	}
	if !settled(o, t.observed) {
		t.settle = &settling{from: o, until: time.Now().Add(l.s.cfg.SettleTimeout)}
	}
	// Events during the step may already require the next one.
	l.queue.add(id)
}

// jobOf returns what the backend needs to know about the sandbox.
func jobOf(clusterID, id string, sb *fsm.Sandbox, o Observed, fresh bool, v *fsm.View) Job {
	job := Job{SandboxID: id, ClusterID: clusterID, Keep: v.LostOf(id)}
	for _, m := range v.ClientMarks() {
		job.Avoid = append(job.Avoid, m.ID)
	}
	job.Lost = lostClients(v)
	if sb != nil {
		job.Birth, job.Unstamped, job.KeepWorkspace = sb.Birth.String(), unstamped(v, sb), sb.KeepWorkspace
		job.Template, job.KeyRef, job.CreatedAt = sb.Template, sb.KeyRef, sb.CreatedAt
		job.Rotations = sb.Rotations
		job.RevertTo = sb.Status.Job.Version
		job.HasVersion = sb.Status.Job.Registered && sb.Desired != fsm.DesiredDeleted
		job.HasWorkspace = sb.Status.Workspace != ""
		if sb.Home != nil {
			job.Volume = sb.Home.Volume
		}
		if sb.Member() {
			job.KeyRef, job.Deferred = sb.InitRef, true
		}
		job.New = fresh && !o.Exists && !o.Foreign && !o.Workspace && !job.HasVersion && !job.HasWorkspace &&
			job.Volume == "" // a restored sandbox begins with its workspace
	}
	if o.Exists {
		job.ModifyIndex = o.ModifyIndex
	}
	return job
}

// act takes the step. Every step can be repeated after it was interrupted at any point.
func (l *loop) act(ctx context.Context, sb *fsm.Sandbox, t *track, o Observed, job Job, step Step) error {
	fault.At("before step", string(step))
	switch step {
	case StepStart, StepRaise, StepTakeOver:
		return l.s.runner.Start(ctx, job)
	case StepStop:
		return l.s.runner.Stop(ctx, job)
	case StepRemove:
		return l.remove(ctx, sb, o, job)
	case StepStopOrphan, StepRemoveOrphan:
		return l.endOrphan(ctx, job, t, o, step)
	case StepAdopt:
		_, err := l.s.cluster.Propose(ctx, command(&fsm.SandboxAdoptBody{ID: sb.ID, Generation: sb.Generation}))
		return err
	case StepNone:
	}
	return nil
}

// remove ends a sandbox: its job and workspace, its secrets, and then its row. If a policy
// deletes it, the workspace stays and the collector deletes its secrets.
func (l *loop) remove(ctx context.Context, sb *fsm.Sandbox, o Observed, job Job) error {
	if err := l.removeJob(ctx, o, job); err != nil {
		return fmt.Errorf("removing the job and the workspace: %w", err)
	}
	if !sb.KeepWorkspace {
		if err := l.removeCopies(ctx, job); err != nil {
			return err
		}
		for _, path := range secretPaths(sb) {
			fault.At("before", "delete secrets")
			if err := l.s.secrets.Delete(ctx, path); err != nil {
				return fmt.Errorf("deleting the sandbox's secrets: %w", err)
			}
		}
	}
	fault.At("before", "remove row")
	_, err := l.s.cluster.Propose(ctx, command(&fsm.SandboxRemoveBody{ID: job.SandboxID}))
	fault.At("after", "remove row")
	if err != nil && fsm.CodeOf(err) != fsm.CodeNotFound {
		return fmt.Errorf("removing the row: %w", err)
	}
	return nil
}

// removeCopies deletes the copies of a workspace that is deleted.
func (l *loop) removeCopies(ctx context.Context, job Job) error {
	if l.s.cfg.Copies == nil {
		return nil
	}
	if err := l.s.cfg.Copies.Remove(ctx, job.ClusterID, job.SandboxID); err != nil {
		return fmt.Errorf("deleting the copies of the workspace: %w", err)
	}
	return nil
}

// removeJob removes the sandbox's job and workspace in the backend. A job of its name from
// another history stays, and so does that job's workspace.
func (l *loop) removeJob(ctx context.Context, o Observed, job Job) error {
	if v := l.s.store.View(); !o.Exists || o.Birth == job.Birth || !strange(v, o.Birth) {
		return l.s.runner.Remove(ctx, job)
	}
	if job.KeepWorkspace || job.Birth == "" {
		return nil
	}
	return l.s.runner.RemoveWorkspace(ctx,
		Workspace{SandboxID: job.SandboxID, ClusterID: job.ClusterID, Birth: job.Birth, Keep: job.Keep, Lost: job.Lost})
}

// secretPaths returns the paths of a sandbox's entries in the secret store.
func secretPaths(sb *fsm.Sandbox) []string {
	set := map[string]bool{
		sb.KeyRef.Path:       true,
		sb.InitRef.Path:      true,
		sb.WarmKeyRef.Path:   true,
		sb.FormerKeyRef.Path: true,
	}
	delete(set, "")
	return slices.Sorted(maps.Keys(set))
}

// orphanNote records an orphan, and retries later if that fails.
func (l *loop) orphanNote(ctx context.Context, id string, o Observed, note fsm.Orphan) {
	if err := l.noteOrphan(ctx, o, note); err != nil {
		if ctx.Err() == nil {
			l.log.Warn("recording an orphan failed", "sandbox", id, "error", err)
		}
		l.queue.addAt(id, time.Now().Add(l.s.cfg.BackoffMax))
	}
}

// later delays the sandbox's next step by d.
func (l *loop) later(id string, t *track, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.notBefore = time.Now().Add(d)
	l.queue.addAt(id, t.notBefore)
}

// stepFailed decides what a failed step means: the start can't work, a newer state of the job
// won, or it is retried.
func (l *loop) stepFailed(log *slog.Logger, id string, sb *fsm.Sandbox, t *track, step Step, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pause := t.retry.NextBackOff()
	if removes(step) && clientMissing(t.observed, err) {
		t.awayFailures++
		pause = jitter(awayRemovalPause(l.s.cfg.BackoffMax, t.awayFailures))
	}
	t.notBefore = time.Now().Add(pause)
	l.queue.addAt(id, t.notBefore)
	var final *Failure
	switch {
	case errors.As(err, &final) && final.Reason == fsm.ReasonNoCapacity:
		// Capacity changes, so the step is retried until the deadline.
		t.away = final
		l.queue.add(id)
		log.Warn("step failed", "reason", final.Reason, "error", err, "duration", pause)
	case errors.As(err, &final) && step == StepStart:
		t.failed, t.failedFor = final, sb.Generation
		l.queue.add(id)
		log.Warn("step refused", "reason", final.Reason, "error", err)
	case errors.As(err, &final) && step == StepTakeOver:
		t.takeOverRefused = sb.Generation
		l.queue.add(id)
		log.Warn("step refused", "reason", final.Reason, "error", err)
	case fsm.CodeOf(err) == fsm.CodeConflict:
		t.seq = 0
		l.listSoon()
		log.Info("step refused: the job changed since it was observed, planning again", "error", err)
	default:
		t.away = awayFailure(err)
		l.queue.add(id)
		log.Warn("step failed", "error", err, "duration", pause)
	}
}
