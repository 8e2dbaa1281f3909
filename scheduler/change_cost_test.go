package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// TestOneChange_CostsTheSameBesideMore: between two listings a sandbox's changes make the leader pass
// over no other rows and look at no other sandboxes, however many there are.
func TestOneChange_CostsTheSameBesideMore(t *testing.T) {
	t.Parallel()
	type cost struct{ rows, passes uint64 }
	var costs []cost
	for _, n := range []int{20, 200} {
		inCarryingWorld(t, func(w *world, _ *carrying) {
			w.under(fsm.Policy{IdleTimeout: time.Hour, DeletePausedAfter: 24 * time.Hour})
			for i := range n {
				w.create(fmt.Sprintf("sb-%03d", i))
			}
			for i := range n {
				w.reach(fmt.Sprintf("sb-%03d", i), fsm.SandboxRunning, time.Minute)
				w.pause(fmt.Sprintf("sb-%03d", i))
			}
			for i := range n {
				w.reach(fmt.Sprintf("sb-%03d", i), fsm.SandboxPaused, time.Minute)
			}
			w.elapse(time.Minute)
			for listed := w.nomad.Calls("list"); w.nomad.Calls("list") == listed; {
				w.elapse(100 * time.Millisecond)
			}
			w.elapse(time.Second)
			listed := w.nomad.Calls("list")
			passes := w.passes("sandbox") // which passes over rows itself
			rows := w.cluster.Store.Visited()
			w.resume("sb-000")
			w.reach("sb-000", fsm.SandboxRunning, time.Second)
			w.pause("sb-000")
			w.reach("sb-000", fsm.SandboxPaused, 5*time.Second)
			w.elapse(10 * time.Second)
			if w.nomad.Calls("list") != listed {
				t.Fatal("a listing came in between")
			}
			rows = w.cluster.Store.Visited() - rows
			costs = append(costs, cost{rows, w.passes("sandbox") - passes})
		})
	}
	t.Logf("rows and passes beside 20 and 200 sandboxes: %v", costs)
	if few, many := costs[0], costs[1]; many.rows > few.rows || many.passes > few.passes+few.passes/2 {
		t.Errorf("a resume and a pause cost %v beside 20 sandboxes and %v beside 200", few, many)
	}
}

// passes returns how often the leader looked at a sandbox, or listed.
func (w *world) passes(kind string) uint64 {
	w.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		w.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "bivouac_scheduler_pass_duration_seconds" && m.GetLabel()[0].GetValue() == kind {
				return m.GetHistogram().GetSampleCount()
			}
		}
	}
	w.Fatalf("no metric of passes %s", kind)
	return 0
}
