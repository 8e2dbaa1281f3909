package scheduler_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// TestProof_AddressThatIsNotReported: a new leader that can't ask the backend has the address from
// the row alone. It shows the key to nobody there, and the sandbox stays as it is. Once the backend
// has reported the address, the ordinary proof is made.
func TestProof_AddressThatIsNotReported(t *testing.T) {
	t.Parallel()
	inWorld(t, nomadtest.Options{}, func(w *world) {
		w.create("s1")
		w.reach("s1", fsm.SandboxRunning, time.Minute)
		challenges, proofs := w.nomad.Calls("challenge only"), w.nomad.Calls("prove")
		if challenges > 0 || proofs == 0 {
			t.Fatalf("%d of %d proofs were challenges", challenges, proofs)
		}
		w.nomad.Away(true)
		w.step()
		w.lead()
		w.elapse(5 * time.Minute)
		if c, p := w.nomad.Calls("challenge only"), w.nomad.Calls("prove")-proofs; c == 0 || c != p {
			t.Errorf("%d of %d proofs at an address of the row were challenges", c, p)
		}
		w.reach("s1", fsm.SandboxRunning, 0)
		w.nomad.Away(false)
		w.elapse(time.Minute)
		w.reach("s1", fsm.SandboxRunning, 0)
	})
}
