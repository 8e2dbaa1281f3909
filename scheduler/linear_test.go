package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// A full listing in which nothing changed is one call of the backend and no pass over any
// sandbox, however many there are.
func TestListing_NothingChanged_CostsOneCall(t *testing.T) {
	t.Parallel()
	for _, many := range []int{100, 1000} {
		t.Run(fmt.Sprint(many), func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				tmpl := w.cluster.Store.View().Spec(specID).Template
				tmpl.Driver, tmpl.Isolation, tmpl.Readiness = fsm.DriverMock, "", fsm.ReadinessAllocation
				w.cluster.Must(&fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: specID, Template: tmpl}}}, "operator")
				for i := range many {
					w.create(fmt.Sprintf("s%d", i))
				}
				for i := range many {
					w.reach(fmt.Sprintf("s%d", i), fsm.SandboxRunning, 5*time.Second)
				}
				// A start's deadline wakes the sandbox once more.
				w.elapse(w.cfg.StartTimeout + time.Second)
				calls := []string{"list", "watch", "start", "stop", "remove", "health"}
				before := map[string]int{}
				for _, c := range calls {
					before[c] = w.nomad.Calls(c)
				}
				listings, passes, observed := w.count("listing"), w.count("sandbox"), w.cluster.Count(fsm.SandboxObserve)
				w.elapse(6 * w.cfg.ListInterval)
				for _, c := range calls {
					want := 0
					if c == "list" {
						want = 6
					}
					if n := w.nomad.Calls(c) - before[c]; n != want {
						t.Errorf("%d calls of %s, want %d", n, c, want)
					}
				}
				if n := w.count("listing") - listings; n != 6 {
					t.Errorf("%d listings are counted, want 6", n)
				}
				if n := w.count("sandbox") - passes; n != 0 {
					t.Errorf("%d passes over sandboxes of which nothing changed", n)
				}
				if n := w.cluster.Count(fsm.SandboxObserve) - observed; n != 0 {
					t.Errorf("%d observations", n)
				}
			})
		})
	}
}

// count returns how many passes of the kind there were.
func (w *world) count(pass string) (n uint64) {
	w.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		w.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "bivouac_scheduler_pass_duration_seconds" && m.GetLabel()[0].GetValue() == pass {
				n = m.GetHistogram().GetSampleCount()
			}
		}
	}
	return n
}
