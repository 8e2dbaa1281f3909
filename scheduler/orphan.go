package scheduler

import (
	"context"
	"fmt"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/fault"
)

// OrphanFacts is what the state and the marks say about a job or workspace without a sandbox.
type OrphanFacts struct {
	// Record is the recorded orphan with the same birth, nil for none.
	Record *fsm.Orphan
	// Contained: it was born in this history, or a policy of this history left it.
	Contained bool
	// MayRemove: there is no hold, and the mark in the backend is ours.
	MayRemove bool
	// Recorded: the cluster records its history. Without that, births are unknown.
	Recorded bool
	// GrantedAt is when the removal was granted; zero when it was not.
	GrantedAt time.Time
}

// orphaned reports whether the observation has a job or workspace of ours.
func orphaned(o Observed) bool { return !o.Foreign && (o.Exists || o.Workspace) }

// orphanKind returns what is left of the sandbox: a job, or a workspace alone.
func orphanKind(o Observed) string {
	if o.Exists {
		return fsm.OrphanJob
	}
	return fsm.OrphanWorkspace
}

// orphanFacts returns what the view knows about an orphan.
func orphanFacts(v *fsm.View, o Observed, ours bool) OrphanFacts {
	f := OrphanFacts{Recorded: !v.Birth().IsZero(), MayRemove: ours && v.Hold() == nil}
	if !orphaned(o) || !f.Recorded {
		return f
	}
	if b, ok := fsm.ParseBirth(o.Birth); ok {
		f.Contained = v.Contains(b)
	}
	if r := v.Orphan(orphanKind(o), o.SandboxID); r != nil && r.Is(o.Birth) {
		f.Record = r
		// The policy that left the workspace is in the history.
		f.Contained = f.Contained || r.Reason == fsm.OrphanPolicy
	}
	return f
}

// planOrphan records a job or workspace without a sandbox once it was seen for a while, because a
// listing may still show what was just removed. It ends what was born in this history, jobs at
// once and workspaces after their retention, and what an operator deleted. Anything else is a
// stranger's and stays.
func planOrphan(s Situation) Decision {
	o, f := s.Observed, s.Orphan
	switch {
	case !s.Known || !orphaned(o):
		return Decision{}
	case !f.Recorded:
		return Decision{Wake: s.Now.Add(orphanPause)}
	}
	if at := s.OrphanSince.Add(s.Limits.Orphan); s.Now.Before(at) {
		return Decision{Wake: at}
	}
	reason := fsm.OrphanStranger
	if f.Contained {
		reason = fsm.OrphanUnowned
	}
	switch r := f.Record; {
	case r == nil, (r.Reason == fsm.OrphanStranger) == f.Contained:
		return Decision{Note: &fsm.Orphan{Sandbox: o.SandboxID, Kind: orphanKind(o), Reason: reason, Birth: o.Birth}}
	case r.Delete:
	case !f.Contained:
		return Decision{}
	case !f.MayRemove:
		return Decision{Wake: s.Now.Add(orphanPause)}
	case !o.Exists:
		if at := r.Since.Add(s.Limits.Retention); s.Now.Before(at) && !r.Purged {
			return Decision{Wake: at}
		}
	}
	return planEnd(s)
}

// orphanPause is the time between two looks at an orphan that may not be removed now.
const orphanPause = 30 * time.Second

// planEnd ends an orphan. A job is stopped first. If it does not stop in time, the removal goes
// on without waiting.
func planEnd(s Situation) Decision {
	o := s.Observed
	late := s.Orphan.GrantedAt.Add(s.Limits.Stop)
	switch {
	case s.Orphan.GrantedAt.IsZero() && o.Exists && !o.Stopped:
		return Decision{Step: StepStopOrphan}
	case !s.Orphan.GrantedAt.IsZero() && !s.Now.Before(late):
	case o.Exists && !o.Stopped:
		return Decision{Step: StepStopOrphan, Wake: late}
	case o.Live > 0 && !s.Orphan.GrantedAt.IsZero():
		return Decision{Wake: late}
	}
	return Decision{Step: StepRemoveOrphan}
}

// errRemovalLimit: the limit of removals is reached, or there is a hold.
var errRemovalLimit = fmt.Errorf("the limit of removals within an hour is reached, or the cluster holds")

// endOrphan takes a step that ends an orphan, if it still is one behind the fence. A job is
// registered only after its sandbox is in the log, so behind the fence a missing row means that
// there is no owner. If the id goes to a new sandbox while the step runs, this leader starts it
// afterwards, and another leader's start changes the modify index, so the step fails.
func (l *loop) endOrphan(ctx context.Context, job Job, t *track, o Observed, step Step) error {
	granted, err := l.mayEnd(ctx, t, o)
	if err != nil {
		return fmt.Errorf("making sure that nobody owns what is left of the sandbox: %w", err)
	}
	if !granted {
		return errRemovalLimit
	}
	fault.At("before", "orphan")
	if step == StepStopOrphan {
		return l.s.runner.Stop(ctx, job)
	}
	if o.Exists {
		job.KeepWorkspace = true
		err = l.s.runner.Remove(ctx, job)
	} else {
		err = l.s.runner.RemoveWorkspace(ctx,
			Workspace{SandboxID: job.SandboxID, ClusterID: job.ClusterID, Birth: o.Birth, ID: o.WorkspaceID, Lost: job.Lost})
		if err == nil && l.s.store.View().SandboxAny(job.SandboxID) == nil {
			err = l.removeCopies(ctx, job)
		}
	}
	if err != nil {
		return fmt.Errorf("removing a %s without a sandbox: %w", orphanKind(o), err)
	}
	l.s.metrics.orphansRemoved.Inc()
	l.log.Warn("orphan removed", "sandbox", job.SandboxID, "reason", orphanKind(o))
	_, err = l.s.cluster.Propose(ctx,
		command(&fsm.OrphanForgetBody{Kind: orphanKind(o), Sandboxes: []string{job.SandboxID}}))
	return err
}

// mayEnd reports whether the orphan may be ended now, by the committed state: the limit of
// removals granted it, or an operator requested it.
func (l *loop) mayEnd(ctx context.Context, t *track, o Observed) (bool, error) {
	l.mu.Lock()
	before := t.grantedAt
	l.mu.Unlock()
	ours := l.backend.mayRemove()
	asked := orphanFacts(l.s.store.View(), o, ours).Record
	if !before.IsZero() || asked != nil && asked.Delete {
		if err := l.s.fence(ctx); err != nil {
			return false, err
		}
	} else if ok, err := l.s.reserve(ctx, l.log, orphanKind(o), l.count(orphanKind(o))); err != nil || !ok {
		return false, err
	}
	v := l.s.store.View()
	f := orphanFacts(v, o, ours)
	sb := v.SandboxAny(o.SandboxID)
	switch {
	case f.Record != nil && f.Record.Delete && (sb == nil || !o.Exists && !owns(v, sb, o)):
	case sb != nil || !f.Contained || !f.MayRemove:
		return false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.grantedAt.IsZero() {
		t.grantedAt = time.Now()
	}
	return true, nil
}

// owns reports whether the observed job or workspace is the sandbox's.
func owns(v *fsm.View, sb *fsm.Sandbox, o Observed) bool {
	return Job{Birth: sb.Birth.String(), Unstamped: unstamped(v, sb)}.Owns(o.Birth)
}

// unstamped reports whether the sandbox is older than births. Its birth is then that of the
// version raise that introduced them.
func unstamped(v *fsm.View, sb *fsm.Sandbox) bool {
	terms := v.Terms()
	return len(terms) == 0 || sb.Birth.IsZero() || sb.Birth.Nonce == terms[0].Nonce && sb.Birth.Index == terms[0].Index
}

// count returns how many things of a kind the backend has, as far as known.
func (l *loop) count(kind string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.tracks {
		if t.observed.Exists || t.observed.Workspace && kind == fsm.OrphanWorkspace {
			n++
		}
	}
	return n
}

// noteOrphan records an orphan. A stranger of this cluster begins a hold first.
func (l *loop) noteOrphan(ctx context.Context, o Observed, note fsm.Orphan) error {
	if note.Reason == fsm.OrphanStranger {
		err := l.s.hold(ctx, l.log, func(v *fsm.View) []fsm.Finding { return strangers(v, []Observed{o}) })
		if err != nil {
			return err
		}
	}
	_, err := l.s.cluster.Propose(ctx, command(&fsm.OrphanNoteBody{Orphans: []fsm.Orphan{note}}))
	return err
}

// forgetOrphans drops the records of orphans that a listing no longer shows.
func (l *loop) forgetOrphans(ctx context.Context, jobs []Observed) error {
	v := l.s.store.View()
	orphans := v.Orphans()
	if len(orphans) == 0 || v.Hold() != nil || !l.backend.mayRemove() {
		return nil
	}
	job, exists := map[string]bool{}, map[string]bool{}
	for _, o := range jobs {
		job[o.SandboxID] = o.Exists
		exists[o.SandboxID] = o.Exists || o.Workspace
	}
	gone := map[string][]string{}
	for _, r := range orphans {
		if r.Kind == fsm.OrphanJob && !job[r.Sandbox] || r.Kind == fsm.OrphanWorkspace && !exists[r.Sandbox] {
			gone[r.Kind] = append(gone[r.Kind], r.Sandbox)
		}
	}
	for kind, ids := range gone {
		const most = 1000
		if _, err := l.s.cluster.Propose(ctx,
			command(&fsm.OrphanForgetBody{Kind: kind, Sandboxes: ids[:min(len(ids), most)]})); err != nil {
			return err
		}
	}
	return nil
}
