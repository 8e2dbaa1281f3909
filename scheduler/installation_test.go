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
		w.until("one is there", time.Minute, func() bool { return w.view().Configured() })
		w.cluster.Must(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion}, "")
		w.until("all of it", time.Minute, func() bool { return w.view().ConfigIndex() > 0 })
		before := w.cluster.Count(fsm.InstallationConfigure)
		first := w.view().Installation()
		other := fsm.Installation{
			CORS:    fsm.CORS{Origins: []string{"https://other.example"}},
			PerUser: fsm.Limits{Running: 3},
			Policy:  fsm.Policy{IdleTimeout: time.Hour},
		}
		w.step()
		w.cfg.Installation = other
		w.lead()
		w.elapse(time.Minute)
		if !w.view().Installation().Equal(first) || w.cluster.Count(fsm.InstallationConfigure) != before {
			t.Error("a leader with another file changed policies and limits")
		}
		w.cluster.Must(&fsm.InstallationConfigureBody{Installation: other}, "")
		w.step()
		w.cfg.Installation = fsm.Installation{}
		w.lead()
		w.elapse(time.Minute)
		if !w.view().Installation().Equal(other) {
			t.Error("the operator's configuration did not stay")
		}
	})
}
