package scheduler_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// The first leader's configuration stays. A later leader with another file changes nothing; an
// operator does.
func TestScheduler_FirstInstallationStays(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.until("one is there", time.Second, func() bool { return w.view().Configured() })
		before := w.cluster.Count(fsm.InstallationConfigure)
		other := fsm.Installation{PerUser: fsm.Limits{Running: 3}, Policy: fsm.Policy{IdleTimeout: time.Hour}}
		w.step()
		w.cfg.Installation = other
		w.lead()
		w.elapse(time.Minute)
		if w.view().Installation() == other || w.cluster.Count(fsm.InstallationConfigure) != before {
			t.Error("a leader with another file changed policies and limits")
		}
		w.cluster.Must(&fsm.InstallationConfigureBody{Installation: other}, "")
		w.step()
		w.cfg.Installation = fsm.Installation{}
		w.lead()
		w.elapse(time.Minute)
		if w.view().Installation() != other {
			t.Error("the operator's configuration did not stay")
		}
	})
}
