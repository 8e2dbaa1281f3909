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

// TestProof_ServerThatAnsweredAChallenge: once the sandbox's server has answered a challenge, what
// answers none is not shown the key, at no address that the backend reports and under no leader.
func TestProof_ServerThatAnsweredAChallenge(t *testing.T) {
	t.Parallel()
	inWorld(t, nomadtest.Options{}, func(w *world) {
		w.create("s1")
		if sb := w.reach("s1", fsm.SandboxRunning, time.Minute); !sb.Status.Challenged {
			t.Errorf("the row does not say that the server answered: %+v", sb.Status)
		}
		for range 2 {
			w.pause("s1")
			w.reach("s1", fsm.SandboxPaused, time.Minute)
			w.nomad.Unchallenged(true)
			w.resume("s1")
			w.until("a refusal", 10*time.Minute, func() bool {
				st := w.cluster.Sandbox("s1").Status
				return w.nomad.Calls("key shown") > 0 || st.Reason == fsm.ReasonAgentRejected
			})
			if n := w.nomad.Calls("key shown"); n > 0 {
				t.Fatalf("the key was shown %d times after a resume", n)
			}
			w.step()
			w.lead()
			w.nomad.Unchallenged(false)
			w.resume("s1")
			w.reach("s1", fsm.SandboxRunning, time.Minute)
		}
	})
}

// TestProof_ServerOfAnother: a server that never answered a challenge, as upstream's, is shown the
// key where the backend reported it.
func TestProof_ServerOfAnother(t *testing.T) {
	t.Parallel()
	inWorld(t, nomadtest.Options{}, func(w *world) {
		w.nomad.Unchallenged(true)
		w.create("s1")
		for range 3 {
			if sb := w.reach("s1", fsm.SandboxRunning, time.Minute); sb.Status.Challenged {
				t.Errorf("the row says that the server answered: %+v", sb.Status)
			}
			w.pause("s1")
			w.reach("s1", fsm.SandboxPaused, time.Minute)
			w.resume("s1")
		}
	})
}
