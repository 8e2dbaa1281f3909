package scheduler_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// An autoscaler sees the capacity and what waits for it on the leader, and 0 elsewhere.
func TestCapacity_IsAMetricOfTheLeader(t *testing.T) {
	t.Parallel()
	inWorld(t, nomadtest.Options{PlaceAfter: time.Second, AnswerAfter: time.Millisecond}, func(w *world) {
		expect := func(when string, want map[string]float64) {
			t.Helper()
			w.elapse(20 * time.Second)
			for name, value := range want {
				if got := w.gauge(name, ""); got != value {
					t.Errorf("%s: %s is %v, want %v", when, name, got, value)
				}
			}
		}
		w.create("a")
		w.until("the job", time.Second, func() bool { return w.nomad.Has("a") })
		w.nomad.Wait("a", &scheduler.Failure{Reason: fsm.ReasonNoCapacity, Detail: "memory exhausted on 1"})
		asks := w.cluster.Sandbox("a").Template
		expect("while it waits", map[string]float64{
			"bivouac_capacity_clients": 2, "bivouac_capacity_cpu_hertz": 4e9, "bivouac_capacity_cpu_free_hertz": 1e9,
			"bivouac_capacity_memory_bytes": 2 << 30, "bivouac_capacity_memory_free_bytes": 512 << 20,
			"bivouac_sandboxes_waiting_for_capacity": 1,
			"bivouac_capacity_waiting_cpu_hertz":     1e6 * float64(asks.CPU),
			"bivouac_capacity_waiting_memory_bytes":  float64(asks.Memory) * (1 << 20),
		})
		w.nomad.Wait("a", nil)
		w.reach("a", fsm.SandboxRunning, time.Minute)
		expect("once it runs",
			map[string]float64{"bivouac_sandboxes_waiting_for_capacity": 0, "bivouac_capacity_waiting_memory_bytes": 0})
		w.step()
		expect("without a leader", map[string]float64{"bivouac_capacity_clients": 0, "bivouac_capacity_memory_free_bytes": 0})
	})
}
