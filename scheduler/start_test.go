package scheduler_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// Only a sandbox that was added in this term, and was never tried, is marked as new: all others
// may have left something in Nomad.
func TestStart_SaidToBeNewOnce(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		// world looks for a sandbox marked as new that has a workspace.
		synctest.Wait()
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		if n := w.nomad.Calls("start new"); n != 1 {
			t.Errorf("%d new starts for one new sandbox", n)
		}
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, 2*time.Second)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.step()
		w.create("b")
		w.lead()
		w.reach("b", fsm.SandboxRunning, time.Second)
		if n := w.nomad.Calls("start new"); n != 1 {
			t.Errorf("%d new starts after a resume and the start of a former leader's sandbox", n)
		}
		w.nomad.Away(true)
		w.create("c")
		w.elapse(time.Second)
		w.nomad.Away(false)
		w.reach("c", fsm.SandboxRunning, 10*time.Second)
		if n := w.nomad.Calls("start new"); n > 1 {
			t.Errorf("%d new starts after one that failed", n)
		}
	})
}

// A start without an error is one command of the leader: the RUNNING.
func TestStart_CostsOneObservation(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.elapse(time.Second)
		before := w.cluster.Count(fsm.SandboxObserve)
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.elapse(time.Second)
		if n := w.cluster.Count(fsm.SandboxObserve) - before; n != 1 {
			t.Errorf("%d observations for one start", n)
		}
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, 2*time.Second)
		before = w.cluster.Count(fsm.SandboxObserve)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.elapse(time.Second)
		if n := w.cluster.Count(fsm.SandboxObserve) - before; n != 1 {
			t.Errorf("%d observations for one resume", n)
		}
	})
}

// However many sandboxes are starting, together they are probed at a bounded rate.
func TestStart_ManyAtOnce_ProbesAreShared(t *testing.T) {
	t.Parallel()
	o := options()
	o.AnswerAfter = 3 * time.Second
	inWorld(t, o, func(w *world) {
		const many = 120
		for i := range many {
			w.create(fmt.Sprintf("s%d", i))
		}
		w.elapse(time.Second)
		before := w.nomad.Calls("health")
		w.elapse(time.Second)
		if n := w.nomad.Calls("health") - before; n < many || n > 2200 {
			t.Errorf("%d probes in a second for %d sandboxes that are starting", n, many)
		}
		for i := range many {
			w.reach(fmt.Sprintf("s%d", i), fsm.SandboxRunning, 5*time.Second)
		}
	})
}
