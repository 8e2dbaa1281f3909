package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// A client with hundreds of sandboxes is cut off while half of them run and half are paused. All
// are deleted, and sandboxes elsewhere are not affected.
func TestDrill_ClientCutOffWithHundredsOfSandboxes(t *testing.T) {
	t.Parallel()
	const half = 250
	inWorld(t, onTwoClients(), func(w *world) {
		running, paused := func(i int) string {
			return fmt.Sprintf("cut-%d",
				i)
		}, func(i int) string { return fmt.Sprintf("cut-p%d", i) }
		for i := range half {
			w.create(running(i))
			w.create(paused(i))
		}
		w.create("here")
		for i := range half {
			w.reach(running(i), fsm.SandboxRunning, time.Minute)
			w.reach(paused(i), fsm.SandboxRunning, time.Minute)
			w.pause(paused(i))
		}
		w.reach("here", fsm.SandboxRunning, time.Minute)
		for i := range half {
			w.reach(paused(i), fsm.SandboxPaused, time.Minute)
		}
		w.nomad.CutOff("cut-off", true)
		for i := range half {
			w.delete(running(i))
			w.delete(paused(i))
		}
		w.elapse(3 * time.Minute)
		before := w.nomad.Calls("remove")
		w.elapse(10 * time.Minute)
		rate := float64(w.nomad.Calls("remove")-before) / (10 * time.Minute).Seconds()
		t.Logf("%d deletions on a client that is cut off: %.1f removals a second", 2*half, rate)
		if rate > 10 {
			t.Errorf("%d deletions on a client that is cut off make %.1f removals a second", 2*half, rate)
		}
		// All others start, pause, resume and delete as usual.
		begin := time.Now()
		w.create("new")
		w.reach("new", fsm.SandboxRunning, time.Minute)
		started := time.Since(begin)
		w.pause("here")
		w.reach("here", fsm.SandboxPaused, time.Minute)
		w.resume("here")
		w.reach("here", fsm.SandboxRunning, time.Minute)
		w.delete("here")
		w.gone("here", time.Minute)
		t.Logf("beside them a start took %s, and a pause, a resume and a deletion %s", started, time.Since(begin)-started)
		if started > 300*time.Millisecond || time.Since(begin) > 3*time.Second {
			t.Errorf("a start took %s, everything %s", started, time.Since(begin))
		}
		// The client is back: everything is deleted.
		w.nomad.CutOff("cut-off", false)
		begin = time.Now()
		for i := range half {
			w.gone(running(i), 10*time.Minute)
			w.gone(paused(i), 10*time.Minute)
		}
		t.Logf("all were gone %s after the client was back", time.Since(begin))
	})
}

// A removal waits for a client that does not answer; no start waits for it.
func TestDrill_RemovalsThatHangHoldUpNobody(t *testing.T) {
	t.Parallel()
	inWorld(t, onTwoClients(), func(w *world) {
		const n = 300
		for i := range n {
			w.create(fmt.Sprintf("cut-%d", i))
		}
		for i := range n {
			w.reach(fmt.Sprintf("cut-%d", i), fsm.SandboxRunning, time.Minute)
		}
		w.nomad.Before(func(call string, job scheduler.Job) error {
			if call == "remove" && strings.HasPrefix(job.SandboxID, "cut-") {
				w.elapse(10 * time.Second) // Nomad waits for its client
				return fsm.Errorf(fsm.CodeScheduler, "no answer in time")
			}
			return nil
		})
		w.nomad.CutOff("cut-off", true)
		for i := range n {
			w.delete(fmt.Sprintf("cut-%d", i))
		}
		w.elapse(70 * time.Second) // what does not stop is removed by then
		begin := time.Now()
		w.create("new")
		w.reach("new", fsm.SandboxRunning, 5*time.Minute)
		took := time.Since(begin)
		t.Logf("a start beside %d removals that hang took %s", n, took)
		if took > time.Second {
			t.Errorf("a start beside %d removals that hang took %s", n, took)
		}
		w.nomad.Before(nil)
		w.nomad.CutOff("cut-off", false)
		for i := range n {
			w.gone(fmt.Sprintf("cut-%d", i), time.Minute)
		}
	})
}
