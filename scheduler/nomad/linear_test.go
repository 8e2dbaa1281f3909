package nomad_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// counts returns how often each call of Nomad's API was made.
func counts(t *testing.T, reg *prometheus.Registry) map[string]uint64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "call" {
					out[l.GetValue()] += m.GetHistogram().GetSampleCount()
				}
			}
		}
	}
	return out
}

// A full listing costs the same few calls for any number of sandboxes, and does not read again
// what the event stream has reported.
func TestRunner_List_CostsTheSameForFewAndMany(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	b := benchWith(t, func(c *nomad.Config) { c.Registerer = reg })
	ctx, cancel := context.WithCancel(t.Context())
	up := make(chan string, 4096)
	ended := make(chan error, 1)
	go func() {
		ended <- b.r.Watch(ctx, b.cluster, func(o scheduler.Observed) {
			if o.Up {
				up <- o.SandboxID
			}
		})
	}()
	defer func() { cancel(); b.must(<-ended) }()
	running := 0
	for _, many := range []int{3, 40} {
		waits := map[string]bool{}
		for ; running < many; running++ {
			job := b.job(fsm.DriverMock)
			job.Template.Readiness = fsm.ReadinessAllocation
			job.New = true
			b.must(b.r.Start(t.Context(), job))
			waits[job.SandboxID] = true
		}
		for len(waits) > 0 {
			select {
			case id := <-up:
				delete(waits, id)
			case <-t.Context().Done():
				t.Fatalf("Nomad never said that %v run", waits)
			}
		}
		// Other tests' jobs change beside ours, so one listing in a few suffices.
		want := map[string]uint64{
			"list jobs":        1,
			"list allocations": 1,
			"list evaluations": 1,
			"list volumes":     1,
			"list clients":     1,
		}
		b.until("a listing that asks for nothing but the lists", func() error {
			before := counts(t, reg)
			list, err := b.r.List(t.Context(), b.cluster)
			b.must(err)
			placed := 0
			for _, o := range list {
				if o.Placement != nil && o.Up && len(o.Placement.Ports) > 0 {
					placed++
				}
			}
			if placed != many {
				t.Fatalf("%d sandboxes are listed with a placement, want %d", placed, many)
			}
			got := counts(t, reg)
			maps.DeleteFunc(got, func(call string, n uint64) bool { return n == before[call] })
			for call := range got {
				got[call] -= before[call]
			}
			if !maps.Equal(got, want) {
				return fmt.Errorf("a listing of %d sandboxes called %v, want %v", many, got, want)
			}
			return nil
		})
	}
}
