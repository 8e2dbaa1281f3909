package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

func (w *world) view() *fsm.View { return w.cluster.Store.View() }

// hold waits until the cluster holds because of the kind.
func (w *world) holds(kind string) *fsm.Hold {
	w.Helper()
	w.until("a hold: "+kind, 2*time.Minute, func() bool {
		h := w.view().Hold()
		if h == nil {
			return false
		}
		for _, f := range h.Findings {
			if f.Kind == kind {
				return true
			}
		}
		return false
	})
	return w.view().Hold()
}

// release ends the hold as `bivouac operator hold release` does.
func (w *world) release() {
	w.cluster.Must(&fsm.HoldReleaseBody{Adopt: w.view().Adoptable()}, "")
}

// rolledBack ends the term, restores an older state and leads again.
func (w *world) rolledBack(saved []byte) {
	w.Helper()
	w.elapse(2 * time.Second) // the mark is written within a second
	w.step()
	w.cluster.RollBack(saved)
	w.lead()
}

// Fault 2 of issue 9: all disks are restored to an older state, and a sandbox that was made
// meanwhile has no row.
func TestHold_OlderState_KillsNothing(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		saved := w.cluster.Save()
		w.create("b")
		w.reach("b", fsm.SandboxRunning, time.Second)
		w.rolledBack(saved)
		w.elapse(10 * time.Minute)
		if w.nomad.Live("b") != 1 || !w.nomad.HasVolume("b") || w.cluster.State("a") != fsm.SandboxRunning {
			t.Fatalf("live %d, workspace %v; %s", w.nomad.Live("b"), w.nomad.HasVolume("b"), w.describe())
		}
		w.holds(fsm.FindingStranger)
		w.holds(fsm.FindingMarkAhead)
		w.expectOrphan("b", fsm.OrphanJob, fsm.OrphanStranger)
		if w.gauge("bivouac_hold", "") != 1 {
			t.Error("the metric shows no hold")
		}

		w.nomad.Declare("b")
		w.release()
		w.until("the job gone after the release", 2*time.Minute, func() bool { return !w.nomad.Has("b") })
		w.expectOrphan("b", fsm.OrphanWorkspace, fsm.OrphanUnowned)
		w.elapse(w.cfg.OrphanRetention - time.Hour)
		if !w.nomad.HasVolume("b") || w.view().Hold() != nil || w.nomad.Live("a") != 1 {
			t.Errorf("workspace %v, hold %+v; %s", w.nomad.HasVolume("b"), w.view().Hold(), w.describe())
		}
		w.eventually("the workspace gone after its retention", 2*time.Hour, func() bool { return !w.nomad.HasVolume("b") })
		w.eventually("the record gone", time.Hour, func() bool { return len(w.view().Orphans()) == 0 })
	})
}

// There are no strangers: only the mark shows the rollback.
func TestHold_OlderState_NothingStartsOrStops(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		for _, id := range []string{"a", "b", "c", "d"} {
			w.create(id)
			w.reach(id, fsm.SandboxRunning, time.Second)
		}
		w.pause("b")
		w.reach("b", fsm.SandboxPaused, 2*time.Second)
		saved := w.cluster.Save()
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, 2*time.Second)
		w.resume("b")
		w.reach("b", fsm.SandboxRunning, 2*time.Second)
		starts, stops := w.nomad.Calls("start"), w.nomad.Calls("stop")
		w.rolledBack(saved)
		w.holds(fsm.FindingMarkAhead)
		w.elapse(10 * time.Minute)
		if w.nomad.Calls("start") != starts || w.nomad.Calls("stop") != stops || w.nomad.Calls("remove") != 0 {
			t.Errorf("steps under a hold: %d starts, %d stops", w.nomad.Calls("start")-starts, w.nomad.Calls("stop")-stops)
		}
		// What runs is adopted. What does not run shows an error: nothing starts it.
		w.reach("b", fsm.SandboxRunning, time.Second)
		if sb := w.cluster.Sandbox("a"); sb.State() != fsm.SandboxError || sb.Status.Reason != fsm.ReasonHeld ||
			sb.Status.Detail == "" {
			t.Errorf("status %+v", sb.Status)
		}
		// Users' requests are carried out.
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, 2*time.Second)
		w.pause("c")
		w.reach("c", fsm.SandboxPaused, 2*time.Second)
		w.delete("d")
		w.gone("d", 5*time.Second)
		w.create("e")
		w.reach("e", fsm.SandboxRunning, time.Second)
		w.release()
		w.elapse(10 * time.Minute)
		if w.view().Hold() != nil || w.cluster.State("b") != fsm.SandboxRunning ||
			w.cluster.State("a") != fsm.SandboxRunning {
			t.Errorf("hold %+v; %s", w.view().Hold(), w.describe())
		}
	})
}

func TestHold_OtherNomad(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		for i := range 3 {
			w.create(fmt.Sprintf("s%d", i))
			w.reach(fmt.Sprintf("s%d", i), fsm.SandboxRunning, time.Second)
		}
		w.elapse(2 * time.Second)
		starts := w.nomad.Calls("start")
		w.nomad.Wipe()
		w.holds(fsm.FindingMarkLost)
		w.elapse(10 * time.Minute)
		if w.nomad.Calls("start") != starts || w.nomad.Mark() != nil {
			t.Errorf("%d starts in another Nomad, mark %+v", w.nomad.Calls("start")-starts, w.nomad.Mark())
		}
		w.release()
		w.until("the mark", 2*time.Minute, func() bool { return w.nomad.Mark() != nil })
		if sb := w.reach("s1", fsm.SandboxError, time.Minute); sb.Status.Reason != fsm.ReasonWorkspace {
			t.Errorf("status %+v", sb.Status)
		}
		w.elapse(10 * time.Minute)
		if w.view().Hold() != nil {
			t.Errorf("held again: %+v", w.view().Hold())
		}
	})
}

// Half of the jobs are gone at once, and the mark is unchanged.
func TestHold_ManyJobsVanished(t *testing.T) {
	t.Parallel()
	o := options()
	var silent atomic.Bool
	o.Fault = func(scheduler.Observed) nomadtest.Fault { return nomadtest.Fault{Drop: silent.Load(), Times: 1} }
	inWorld(t, o, func(w *world) {
		const n = 20
		for i := range n {
			w.create(fmt.Sprintf("s%d", i))
			w.reach(fmt.Sprintf("s%d", i), fsm.SandboxRunning, time.Second)
		}
		w.elapse(time.Minute)
		starts := w.nomad.Calls("start")
		silent.Store(true)
		for i := range 6 {
			w.nomad.PurgeByHand(fmt.Sprintf("s%d", i))
		}
		w.nomad.Break() // before failed probes make them an ERROR
		w.holds(fsm.FindingVanished)
		w.elapse(time.Minute)
		if w.nomad.Calls("start") != starts {
			t.Errorf("%d starts", w.nomad.Calls("start")-starts)
		}
		silent.Store(false)
		w.release()
		for i := range n {
			w.reach(fmt.Sprintf("s%d", i), fsm.SandboxRunning, time.Minute)
		}
		// Five are started again without an operator.
		silent.Store(true)
		for i := range 5 {
			w.nomad.PurgeByHand(fmt.Sprintf("s%d", i))
		}
		w.nomad.Break()
		w.until("started again", 2*time.Minute, func() bool { return w.nomad.Calls("start") >= starts+11 })
		if w.view().Hold() != nil {
			t.Errorf("hold %+v", w.view().Hold())
		}
	})
}

func TestHold_Marks(t *testing.T) {
	t.Parallel()
	theirs := fsm.Mark{Cluster: "another", History: "h", Epoch: 1, Nonce: "x", Index: 9, Time: time.Unix(1, 0).UTC()}
	for name, c := range map[string]struct {
		break_ func(w *world)
		kind   string
	}{
		"another cluster's": {func(w *world) { w.nomad.SetMark(theirs) }, fsm.FindingMarkForeign},
		"denied":            {func(w *world) { w.nomad.DenyMarks(true) }, fsm.FindingMarkDenied},
		"gone":              {func(w *world) { w.nomad.LoseMark() }, fsm.FindingMarkLost},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				w.until("the first mark", 5*time.Second, func() bool {
					return w.nomad.Mark() != nil &&
						w.view().Marked(fsm.StoreNomad)
				})
				if w.view().Hold() != nil {
					t.Fatalf("the first mark began a hold: %+v", w.view().Hold())
				}
				w.step()
				c.break_(w)
				before := w.nomad.Mark()
				w.nomad.AddBorn("orphan", clusterID, w.birth())
				w.lead()
				w.holds(c.kind)
				w.create("a")
				w.reach("a", fsm.SandboxRunning, time.Second)
				w.elapse(10 * time.Minute)
				if got := w.nomad.Mark(); got != before {
					t.Errorf("the mark was written: %+v", got)
				}
				if !w.nomad.Has("orphan") {
					t.Error("an orphan was removed under a hold")
				}
			})
		})
	}
}

// The cluster continued elsewhere: this node must not lead.
func TestHold_NewerHistory_EndsTheTerm(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.step()
		w.nomad.SetMark(fsm.Mark{Cluster: clusterID, History: "restored", Epoch: time.Now().Unix(), Nonce: "y", Index: 9})
		s, err := scheduler.New(w.fresh(), w.cluster.Store, w.cluster, w.nomad, w.nomad, w.secrets)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Run(context.Background(), 2)
		if newer := (*scheduler.NewerHistoryError)(nil); !errors.As(err, &newer) || newer.Store != fsm.StoreNomad {
			t.Errorf("the term ended with %v", err)
		}
		if w.view().Hold() != nil {
			t.Errorf("hold %+v", w.view().Hold())
		}
	})
}

// A thing without a birth has no owner; one of another cluster is not listed.
func TestHold_StrangersWithoutBirth_StayAndAreListed(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.step()
		w.nomad.Add("old", clusterID)
		w.nomad.AddWorkspace("rest", clusterID, "another/nonce/7")
		w.lead()
		w.expectOrphan("old", fsm.OrphanJob, fsm.OrphanStranger)
		w.expectOrphan("rest", fsm.OrphanWorkspace, fsm.OrphanStranger)
		w.elapse(w.cfg.OrphanRetention * 2)
		if w.nomad.Live("old") != 1 || !w.nomad.HasVolume("rest") || w.view().Hold() != nil {
			t.Errorf("live %d, workspace %v, hold %+v", w.nomad.Live("old"), w.nomad.HasVolume("rest"), w.view().Hold())
		}
		// An operator ends them at once.
		w.nomad.Declare("old", "rest")
		w.cluster.Must(&fsm.OrphanDeleteBody{Kind: fsm.OrphanJob, Sandbox: "old"}, "")
		w.cluster.Must(&fsm.OrphanDeleteBody{Kind: fsm.OrphanWorkspace, Sandbox: "rest"}, "")
		w.until("both gone", 5*time.Second, func() bool { return !w.nomad.Has("old") && !w.nomad.HasVolume("rest") })
		w.expectOrphan("old", fsm.OrphanWorkspace, fsm.OrphanStranger)
		w.cluster.Must(&fsm.OrphanDeleteBody{Kind: fsm.OrphanWorkspace, Sandbox: "old"}, "")
		w.until("the workspace gone", time.Minute, func() bool { return !w.nomad.HasVolume("old") })
	})
}

func TestHold_OldProtocol_NothingIsRemovedOrMarked(t *testing.T) {
	t.Parallel()
	inWorldOf(t, options(), nomadtest.NewOldCluster, func(w *world) {
		w.nomad.Add("old", clusterID)
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.elapse(time.Hour)
		if w.nomad.Live("old") != 1 || w.nomad.Mark() != nil || len(w.view().Orphans()) != 0 {
			t.Errorf("live %d, mark %+v, orphans %v", w.nomad.Live("old"), w.nomad.Mark(), w.view().Orphans())
		}
		w.cluster.Must(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion}, "")
		w.until("the first mark", 5*time.Second, func() bool { return w.nomad.Mark() != nil })
		w.expectOrphan("old", fsm.OrphanJob, fsm.OrphanStranger)
		// The workspace of a sandbox older than births is its own.
		w.delete("a")
		w.gone("a", 5*time.Second)
		if w.view().Hold() != nil {
			t.Errorf("hold %+v", w.view().Hold())
		}
	})
}

func TestBrake_OrphansGoSlowly(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.step()
		const n = 12
		left := func() (count int) {
			for i := range n {
				if w.nomad.Has(fmt.Sprintf("o%d", i)) {
					count++
				}
			}
			return count
		}
		for i := range n {
			w.nomad.AddBorn(fmt.Sprintf("o%d", i), clusterID, w.birth())
			w.nomad.Declare(fmt.Sprintf("o%d", i))
		}
		w.lead()
		w.elapse(50 * time.Minute)
		if left() != n-5 || w.gauge("bivouac_removals_braked", "job") != 1 {
			t.Errorf("%d of %d left within the hour", left(), n)
		}
		w.elapse(time.Hour)
		if left() != n-10 {
			t.Errorf("%d of %d left after the hour", left(), n)
		}
	})
}

func TestBrake_PoliciesDeleteSlowlyAndPauseFreely(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.under(fsm.Policy{MaxRunning: time.Hour, DeletePausedAfter: time.Hour})
		const n = 12
		for i := range n {
			w.create(fmt.Sprintf("s%d", i))
			w.reach(fmt.Sprintf("s%d", i), fsm.SandboxRunning, time.Second)
		}
		w.elapse(time.Hour + time.Minute)
		for i := range n {
			w.reach(fmt.Sprintf("s%d", i), fsm.SandboxPaused, time.Minute)
		}
		w.elapse(time.Hour + 10*time.Minute)
		left := 0
		for range w.view().AllSandboxes() {
			left++
		}
		if left != n-5 {
			t.Errorf("%d of %d left", left, n)
		}
	})
}

func TestHold_PoliciesAndPoolsRest(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.under(fsm.Policy{MaxRunning: time.Hour})
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.cluster.Must(&fsm.HoldBeginBody{
			At:       w.view().Index(),
			Findings: []fsm.Finding{{Kind: fsm.FindingRestored, Detail: "test"}},
		}, "")
		w.cluster.Must(&fsm.SpecPoolBody{ID: specID, Size: 2}, "operator")
		w.elapse(3 * time.Hour)
		if w.cluster.State("a") != fsm.SandboxRunning || len(w.view().PoolMembers(specID)) != 0 {
			t.Error(w.describe())
		}
		w.release()
		w.reach("a", fsm.SandboxPaused, time.Minute)
		w.until("a full pool", time.Minute, func() bool { return len(w.view().PoolMembers(specID)) == 2 })
	})
}

func TestPolicy_WaitsWhileClocksDiffer(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		var differ atomic.Bool
		differ.Store(true)
		w.cfg.ClocksAgree = func(context.Context) error {
			if differ.Load() {
				return errors.New("the clocks differ")
			}
			return nil
		}
		w.under(fsm.Policy{MaxRunning: time.Hour})
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.elapse(3 * time.Hour)
		if w.cluster.State("a") != fsm.SandboxRunning {
			t.Fatal(w.describe())
		}
		differ.Store(false)
		w.reach("a", fsm.SandboxPaused, time.Minute)
	})
}

// The id of a sandbox that was lost by the rollback is given to another: the job of its name is
// not changed.
func TestHold_StrangersJobHasTheNameOfASandbox(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("z")
		w.reach("z", fsm.SandboxRunning, time.Second)
		saved := w.cluster.Save()
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.rolledBack(saved)
		w.holds(fsm.FindingStranger)
		w.create("a")
		if sb := w.reach("a", fsm.SandboxError, time.Minute); sb.Status.Reason != fsm.ReasonForeignJob {
			t.Errorf("status %+v", sb.Status)
		}
		w.delete("a")
		w.until("the row gone", time.Minute, func() bool { return w.cluster.Sandbox("a") == nil })
		if w.nomad.Live("a") != 1 || !w.nomad.HasVolume("a") {
			t.Errorf("live %d, workspace %v", w.nomad.Live("a"), w.nomad.HasVolume("a"))
		}
	})
}

// A secret of a term that this leader does not know shows an older state, too.
func TestHold_StrangeSecret(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		const path = "users/u1/settings/llm_api_key"
		w.secrets.Birth = func() fsm.Birth { return fsm.Birth{Cluster: clusterID, Nonce: "lost", Index: 1} }
		if _, err := w.secrets.Write(w.Context(), path, map[string]string{"value": "x"}); err != nil {
			t.Fatal(err)
		}
		w.elapse(nomadtest.Grace + w.cfg.CollectInterval)
		h := w.holds(fsm.FindingStranger)
		if f := h.Findings[0]; f.Store != fsm.StoreVault || f.ID != path {
			t.Errorf("finding %+v", f)
		}
		w.elapse(nomadtest.Retention)
		if w.secrets.Deleted(path, 1) {
			t.Error("deleted under a hold")
		}
		w.release()
		w.eventually("deleted after the release", w.cfg.CollectInterval*2, func() bool { return w.secrets.Deleted(path, 1) })
		if w.view().Hold() != nil {
			t.Errorf("held again: %+v", w.view().Hold())
		}
	})
}

// The limit delays the collection of secrets, too.
func TestBrake_SecretsGoSlowly(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.secrets.Birth = func() fsm.Birth { return w.view().Birth() }
		const n = 12
		for i := range n {
			if _, err := w.secrets.Write(w.Context(), fmt.Sprintf("users/u%d/settings/llm_api_key", i),
				map[string]string{"value": "x"}); err != nil {
				t.Fatal(err)
			}
		}
		deleted := func() (count int) {
			for i := range n {
				if w.secrets.Deleted(fmt.Sprintf("users/u%d/settings/llm_api_key", i), 1) {
					count++
				}
			}
			return count
		}
		w.elapse(nomadtest.Grace + 30*time.Minute)
		if deleted() != 5 {
			t.Errorf("%d of %d deleted within the hour", deleted(), n)
		}
		w.elapse(time.Hour)
		if deleted() != 10 {
			t.Errorf("%d of %d deleted after the hour", deleted(), n)
		}
	})
}
