package scheduler_test

import (
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// An id that a client chose may be deleted and used again at once.
func TestOrphan_IDUsedAgain_IsNotTakenForTheFormer(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		for round := range 5 {
			w.create("a")
			w.reach("a", fsm.SandboxRunning, 5*time.Second)
			w.pause("a")
			w.reach("a", fsm.SandboxPaused, 2*time.Second)
			w.resume("a")
			w.reach("a", fsm.SandboxRunning, 2*time.Second)
			w.delete("a")
			if round%2 == 0 {
				w.until("gone", 5*time.Second, func() bool { return w.cluster.Sandbox("a") == nil })
			} else {
				w.gone("a", 5*time.Second)
				w.elapse(time.Second)
			}
		}
	})
}

// The sandbox is made after the pass that finds the orphan.
func TestOrphan_GetsASandbox_IsAdopted(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.step()
		w.nomad.Add("a", clusterID)
		w.lead()
		w.elapse(w.cfg.OrphanGrace - time.Second)
		w.create("a")
		w.elapse(time.Minute)
		if w.nomad.Calls("remove") != 0 || !w.nomad.HasVolume("a") {
			t.Error("what has a sandbox was removed")
		}
		w.delete("a")
		w.until("the row gone", 10*time.Second, func() bool { return w.cluster.Sandbox("a") == nil })
		// The workspace has no birth, so it is not the sandbox's.
		if w.nomad.Has("a") || !w.nomad.HasVolume("a") {
			t.Errorf("job %v, workspace %v", w.nomad.Has("a"), w.nomad.HasVolume("a"))
		}
	})
}

// Another leader registered the job again since this one read it.
func TestOrphan_ChangedSince_IsLeftAlone(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.step()
		w.nomad.AddBorn("a", clusterID, w.birth())
		w.nomad.Declare("a")
		var changed atomic.Int32
		w.nomad.Before(func(call string, j scheduler.Job) error {
			if (call == "stop" || call == "remove") && changed.Add(1) == 1 {
				w.nomad.Change("a")
			}
			return nil
		})
		w.lead()
		w.until("the first try", time.Minute, func() bool { return changed.Load() > 0 })
		if w.nomad.Live("a") != 1 {
			t.Error("a job that was changed was stopped")
		}
		w.until("gone after another look", 2*time.Minute, func() bool { return !w.nomad.Has("a") })
		w.expectOrphan("a", fsm.OrphanWorkspace, fsm.OrphanUnowned)
		w.eventually("the workspace gone", w.cfg.OrphanRetention+time.Hour, func() bool { return !w.nomad.HasVolume("a") })
	})
}

func TestDelete_NeverGivesUpAndSaysSo(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.nomad.Before(func(call string, _ scheduler.Job) error {
			if call == "remove" {
				return fsm.Errorf(fsm.CodeScheduler, "volume in use")
			}
			return nil
		})
		w.delete("a")
		w.elapse(time.Hour)
		if n := w.nomad.Calls("remove"); n < 600 {
			t.Errorf("%d tries in an hour", n)
		}
		if got := w.gauge("bivouac_sandboxes_overdue", "deleted"); got != 1 {
			t.Errorf("overdue: %v", got)
		}
		w.nomad.Before(nil)
		w.gone("a", 10*time.Second)
		if got := w.gauge("bivouac_sandboxes_overdue", "deleted"); got != 0 {
			t.Errorf("overdue: %v", got)
		}
	})
}
