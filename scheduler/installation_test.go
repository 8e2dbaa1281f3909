package scheduler_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// The store has the leader's configuration from the beginning of its term on.
func TestScheduler_BringsItsInstallationIntoTheStore(t *testing.T) {
	inWorld(t, options(), func(w *world) {
		is := func(want fsm.Installation) func() bool {
			return func() bool { return w.cluster.Store.View().Installation() == want }
		}
		first := fsm.Installation{PerUser: fsm.Limits{Running: 3}, Policy: fsm.Policy{IdleTimeout: time.Hour}}
		w.step()
		w.cfg.Installation = first
		w.lead()
		w.until("the limits are there", time.Second, is(first))
		w.step()
		w.cfg.Installation = fsm.Installation{}
		w.lead()
		w.until("the limits are gone", time.Second, is(fsm.Installation{}))
		before := w.cluster.Count(fsm.InstallationConfigure)
		w.step()
		w.lead()
		w.elapse(time.Minute)
		if w.cluster.Count(fsm.InstallationConfigure) != before {
			t.Error("what is there already was proposed again")
		}
	})
}
