package nomad_test

import (
	"testing"

	"bivouac.dev/bivouac/scheduler"
)

// Nomad keeps some hundred events, and begins a stream with the nearest one. What happened
// between the listing and that one is still found.
func TestWatch_EventsThatNomadDroppedAreListed(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	f.job("ends", "one", "running", started)
	f.job("goes", "one", "running", started)
	w := f.watch()
	for _, id := range []string{"ends", "goes"} {
		w.await(t, "the listing", id, patience, func(o scheduler.Observed, _ bool) bool { return o.Live == 1 })
	}
	// Between the listing, which is of index 100, and the first event, of 900, one job's task
	// ends, one job is purged, and one is made. Nomad reports none of it.
	f.mu.Lock()
	f.index = 890
	ended, made := allocRow("ends", "one", "failed",
		map[string]any{"Type": "Driver Failure", "DisplayMessage": "broken"}), allocRow("made", "one", "running", started)
	ended["ModifyIndex"], made["ModifyIndex"] = 500, 600
	f.tables["/v1/jobs"] = []map[string]any{jobRow("ends"), jobRow("made")}
	f.tables["/v1/allocations"] = []map[string]any{ended, made}
	f.mu.Unlock()
	f.frames <- frame(900, map[string]any{"Job": jobRow("other")})
	w.await(t, "the first event", "other", patience, func(o scheduler.Observed, _ bool) bool { return o.Exists })
	w.await(t, "a task's end in the gap", "ends", patience,
		func(o scheduler.Observed, _ bool) bool { return o.Failure != nil })
	w.await(t, "a job made in the gap", "made", patience, func(o scheduler.Observed, _ bool) bool { return o.Live == 1 })
	w.await(t, "a job purged in the gap", "goes", patience, func(o scheduler.Observed, _ bool) bool {
		return !o.Exists &&
			o.Live == 0
	})
}

// A job that was placed and purged between the listing and the stream's first frame is read until
// its task has ended: the stream has no more events of it.
func TestWatch_JobPlacedAndPurgedInAGap_IsAwaited(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	f.add("/v1/jobs", jobRow("known"))
	w := f.watch()
	w.await(t, "the listing", "known", patience, func(o scheduler.Observed, _ bool) bool { return o.Exists })
	known, never := allocRow("known", "one", "running", started), allocRow("never", "one", "running", started)
	known["ModifyIndex"], never["ModifyIndex"] = 500, 600
	f.mu.Lock()
	f.index = 890
	f.tables["/v1/jobs"] = nil
	f.tables["/v1/allocations"] = []map[string]any{known, never}
	f.mu.Unlock()
	f.frames <- frame(900, map[string]any{"Job": jobRow("other")})
	live := func(n int) func(scheduler.Observed, bool) bool {
		return func(o scheduler.Observed, reported bool) bool { return reported && !o.Exists && o.Live == n }
	}
	for _, id := range []string{"known", "never"} {
		w.await(t, "its task runs on for a while", id, patience, live(1))
	}
	f.mu.Lock()
	f.index = 950
	f.tables["/v1/allocations"] = nil
	f.mu.Unlock()
	for _, id := range []string{"known", "never"} {
		w.await(t, "its task has ended", id, patience, live(0))
	}
}
