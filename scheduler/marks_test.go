package scheduler_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// A drain is carried out in a cluster in which nothing else happens: no row changes but those that
// the drain itself changes.
func TestDrain_NothingElseHappens(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		w.cfg.CopyInterval = 1000 * time.Hour
		w.step()
		w.lead()
		w.create("sb")
		w.reach("sb", fsm.SandboxRunning, time.Minute)
		w.elapse(10 * time.Minute)
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientDraining}, "operator")
		w.onB(c, "sb")
	})
}
