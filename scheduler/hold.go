package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// fence proves that this node's store has everything that was acknowledged before the call: it
// commits a command that changes nothing, and Propose returns once the store has it. Without it a
// deposed leader could take the work of its successor for a stranger's.
func (s *Scheduler) fence(ctx context.Context) error {
	var body fsm.Body = &fsm.RemovalReserveBody{Kind: fsm.RemovalJob}
	if s.store.View().Birth().IsZero() {
		body = &fsm.SandboxObserveBody{Observations: []fsm.Observation{{
			ID: "fence", Status: fsm.SandboxStatus{State: fsm.SandboxStarting, Since: micro(time.Now())},
		}}}
	}
	_, err := s.cluster.Propose(ctx, command(body))
	return err
}

// hold begins a hold, or adds to the present one, when judge finds anything in the store behind
// the fence. When it returns, this node's store has the hold.
func (s *Scheduler) hold(ctx context.Context, log *slog.Logger, judge func(v *fsm.View) []fsm.Finding) error {
	if len(judge(s.store.View())) == 0 {
		return nil
	}
	if err := s.fence(ctx); err != nil {
		return err
	}
	v := s.store.View()
	findings := unknown(v.Hold(), judge(v))
	if len(findings) == 0 {
		return nil
	}
	const most = 100 // as many as a hold keeps
	more := len(findings) - min(len(findings), most)
	findings = findings[:len(findings)-more]
	_, err := s.cluster.Propose(ctx, command(&fsm.HoldBeginBody{At: v.Index(), Findings: findings}))
	if err != nil {
		return fmt.Errorf("beginning a hold: %w", err)
	}
	for _, f := range findings {
		log.Warn("hold began: the leader does nothing by itself until an operator releases it (bivouac runbook hold)",
			"reason", f.Kind, "sandbox", f.ID, "error", f.Detail, "count", len(findings)+more)
	}
	return nil
}

// unknown drops the findings that the hold already has.
func unknown(h *fsm.Hold, findings []fsm.Finding) []fsm.Finding {
	if h == nil {
		return findings
	}
	known := map[[3]string]bool{}
	for _, f := range h.Findings {
		known[[3]string{f.Kind, f.Store, f.ID}] = true
	}
	var left []fsm.Finding
	for _, f := range findings {
		if !known[[3]string{f.Kind, f.Store, f.ID}] {
			left = append(left, f)
		}
	}
	return left
}

// strange reports whether a birth, as text, is of this cluster but outside its history. No birth,
// or another cluster's, proves nothing about the state.
func strange(v *fsm.View, birth string) bool {
	b, ok := fsm.ParseBirth(birth)
	return ok && !v.Birth().IsZero() && b.Cluster == v.ClusterID() && !v.Contains(b)
}

// strangers returns findings for what was born outside the view's history.
func strangers(v *fsm.View, jobs []Observed) (findings []fsm.Finding) {
	for _, o := range jobs {
		if o.Foreign || !strange(v, o.Birth) {
			continue
		}
		if sb := v.SandboxAny(o.SandboxID); sb != nil && sb.Birth.String() == o.Birth {
			continue
		}
		what := "the job"
		if !o.Exists {
			what = "the workspace"
		}
		findings = append(findings, fsm.Finding{
			Kind: fsm.FindingStranger, Store: fsm.StoreNomad, ID: o.SandboxID, Birth: o.Birth,
			Detail: what + " of sandbox " + o.SandboxID + " is of this cluster and not of this history: " +
				"the state is older than it",
		})
	}
	return findings
}

// vanished returns a judge that finds that many jobs are gone at once without an event. It counts
// the jobs that this leader knew, or, before its first listing, those that run by the state.
func (l *loop) vanished(before *fsm.View, jobs []Observed, seq uint64) func(v *fsm.View) []fsm.Finding {
	there := make(map[string]bool, len(jobs))
	for _, o := range jobs {
		there[o.SandboxID] = o.Exists || o.Foreign
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	explained := map[string]bool{} // of those that are gone
	for id, t := range l.tracks {
		if !there[id] && (t.seq > seq || l.known && !t.observed.Exists) {
			explained[id] = true
		}
	}
	// A sandbox that stopped answering since is an ERROR with a placement, and counts too.
	runs := func(sb *fsm.Sandbox) bool {
		return sb != nil && sb.Desired == fsm.DesiredRunning && sb.Status.Placement != nil &&
			sb.Status.Generation == sb.Generation
	}
	return func(v *fsm.View) []fsm.Finding {
		if v.Birth().IsZero() {
			return nil
		}
		running, gone := 0, 0
		for sb := range before.AllSandboxes() {
			if !runs(sb) {
				continue
			}
			running++
			if !there[sb.ID] && !explained[sb.ID] && runs(v.SandboxAny(sb.ID)) {
				gone++
			}
		}
		if gone <= atMost(running) {
			return nil
		}
		return []fsm.Finding{{
			Kind: fsm.FindingVanished, Store: fsm.StoreNomad,
			Detail: fmt.Sprintf(
				"the jobs of %d of %d running sandboxes are gone at once, and no event told of it: "+
					"another backend answers, or it was emptied",
				gone,
				running,
			),
		}}
	}
}

// atMost returns how many of total things may be removed in an hour without an operator, or be
// gone at once without a hold: the larger of five and a tenth.
func atMost(total int) int { return max(5, total/10) }
