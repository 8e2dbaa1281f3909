package nomad_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/scheduler"
)

// Nomad keeps a hundred events or so, and begins a stream with the nearest that it
// has: what happened between the listing and that is found out all the same.
func TestWatch_EventsThatNomadDroppedAreListed(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	f.job("ends", "one", "running", started)
	f.job("goes", "one", "running", started)
	w := f.watch()
	for _, id := range []string{"ends", "goes"} {
		w.await(t, "the listing", id, 10*time.Second, func(o scheduler.Observed, _ bool) bool { return o.Live == 1 })
	}
	// Between the listing, which is of index 100, and the first event, of 900: one
	// job's task ends, one job is purged, one is made. Nomad tells of none of it.
	f.mu.Lock()
	f.index = 890
	ended, made := allocRow("ends", "one", "failed", map[string]any{"Type": "Driver Failure", "DisplayMessage": "broken"}), allocRow("made", "one", "running", started)
	ended["ModifyIndex"], made["ModifyIndex"] = 500, 600
	f.tables["/v1/jobs"] = []map[string]any{jobRow("ends"), jobRow("made")}
	f.tables["/v1/allocations"] = []map[string]any{ended, made}
	f.mu.Unlock()
	f.frames <- frame(900, map[string]any{"Job": jobRow("other")})
	w.await(t, "the first event", "other", 10*time.Second, func(o scheduler.Observed, _ bool) bool { return o.Exists })
	w.await(t, "a task's end in the gap", "ends", 10*time.Second, func(o scheduler.Observed, _ bool) bool { return o.Failure != nil })
	w.await(t, "a job made in the gap", "made", 10*time.Second, func(o scheduler.Observed, _ bool) bool { return o.Live == 1 })
	w.await(t, "a job purged in the gap", "goes", 10*time.Second, func(o scheduler.Observed, _ bool) bool { return !o.Exists && o.Live == 0 })
}
