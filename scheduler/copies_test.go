package scheduler_test

import (
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// A copy whose object has gone is found by the daily look, is counted, and is made again where the
// workspace rests. That of a running sandbox is made again after the interval.
func TestCopies_WhatIsGoneIsSeen(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		w.create("rests")
		w.reach("rests", fsm.SandboxRunning, time.Minute)
		w.pause("rests")
		w.until("a copy", time.Minute, func() bool { return w.cluster.Sandbox("rests").Copy != nil })
		first := w.cluster.Sandbox("rests").Copy.ID
		c.mu.Lock()
		maps.DeleteFunc(c.copies, func(string, string) bool { return true })
		c.mu.Unlock()
		c.setFails(func(step string) error {
			if step == "export" {
				return fsm.Errorf(fsm.CodeScheduler, "the client is away")
			}
			return nil
		})
		damaged := func() float64 { return w.gauge("bivouac_workspace_copies_damaged", "") }
		w.until("the damage is counted", 25*time.Hour, func() bool { return damaged() == 1 })
		c.setFails(nil)
		w.until("another copy", time.Hour, func() bool { return w.cluster.Sandbox("rests").Copy.ID != first })
		w.until("no damage is left", time.Minute, func() bool { return damaged() == 0 })
	})
}

// The copy of a leader whose clock was ahead suppresses no later one, of what rests and of what runs.
func TestCopies_ALeaderWhoseClockWasAhead(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]int{"by generation": fsm.ProtocolVersion, "by time": fsm.VersionCopies - 1} {
		t.Run(name, func(t *testing.T) {
			inCarryingWorld(t, func(w *world, _ *carrying) {
				w.cluster.Must(&fsm.ProtocolRaiseBody{Version: version}, "")
				for _, id := range []string{"rests", "runs"} {
					w.create(id)
					w.reach(id, fsm.SandboxRunning, time.Minute)
					ahead := fsm.Copy{ID: "ahead", Sum: sum, At: time.Now().Add(100 * time.Hour)}
					if version == fsm.ProtocolVersion {
						ahead.Generation = w.cluster.Sandbox(id).Generation
					}
					w.cluster.Must(&fsm.SandboxCopiedBody{ID: id, Copy: ahead}, "")
				}
				w.pause("rests")
				for _, id := range []string{"rests", "runs"} {
					w.until("a copy of "+id, time.Hour, func() bool { return w.cluster.Sandbox(id).Copy.ID != "ahead" })
				}
			})
		})
	}
}

// What its client pauses may have been written to after its last copy, though no generation followed. It
// is copied once.
func TestCopies_WhatItsClientPausedIsCopied(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, _ *carrying) {
		w.create("sb")
		w.reach("sb", fsm.SandboxRunning, time.Minute)
		w.until("a copy", 2*w.cfg.CopyInterval, func() bool { return w.cluster.Sandbox("sb").Copy != nil })
		first := w.cluster.Sandbox("sb").Copy.ID
		w.elapse(time.Second)
		w.nomad.Drain("a", scheduler.ClientDraining)
		w.reach("sb", fsm.SandboxPaused, time.Minute)
		if reason := w.cluster.Sandbox("sb").Status.Reason; reason != fsm.ReasonClient {
			t.Fatalf("paused for %q", reason)
		}
		w.until("another copy", 10*time.Minute, func() bool { return w.cluster.Sandbox("sb").Copy.ID != first })
		second := w.cluster.Sandbox("sb").Copy.ID
		w.elapse(time.Hour)
		if sb := w.cluster.Sandbox("sb"); sb.Copy.ID != second {
			t.Errorf("copied as %s, then as %s, though it rests", second, sb.Copy.ID)
		}
	})
}

// The keys of copies are in no row, and stay.
func TestCopies_TheirKeysAreKept(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.cluster.Must(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion}, "")
		w.secrets.Birth = func() fsm.Birth { return w.cluster.Store.View().Birth() }
		for _, path := range []string{scheduler.CopyKeys, "copies/other"} {
			for range 2 {
				if _, err := w.secrets.Write(w.Context(), path, map[string]string{"value": "x"}); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.elapse(nomadtest.Grace + 2*w.cfg.CollectInterval)
		if w.secrets.Deleted(scheduler.CopyKeys, 1) || w.secrets.Deleted(scheduler.CopyKeys, 2) ||
			!w.secrets.Deleted("copies/other", 2) {
			t.Error("a key of copies was collected, or the collection does nothing")
		}
	})
}

const sum = "0000000000000000000000000000000000000000000000000000000000000000"

// What is not found while the sandbox is there is a failure as any other: it is tried again after longer
// and longer pauses.
func TestCopies_WhatIsNotFoundIsAFailure(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		w.create("sb")
		w.reach("sb", fsm.SandboxRunning, time.Minute)
		var tries atomic.Int64
		c.setFails(func(step string) error {
			if step != "export" {
				return nil
			}
			tries.Add(1)
			return fsm.Errorf(fsm.CodeNotFound, "there is no such version of copies/key")
		})
		w.pause("sb")
		w.reach("sb", fsm.SandboxPaused, time.Minute)
		w.elapse(10 * time.Minute)
		if n := tries.Load(); n == 0 || n > 30 {
			t.Errorf("%d tries in 10 minutes", n)
		}
		c.setFails(nil)
		w.until("a copy", 10*time.Minute, func() bool { return w.cluster.Sandbox("sb").Copy != nil })
	})
}
