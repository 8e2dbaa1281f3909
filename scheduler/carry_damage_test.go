package scheduler_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/archive"
)

// What a restore has found, the look without the content does not take back. The damage is the leader's:
// one that ends shows none, and no damage is what the end of a term cuts.
func TestDamage_OfARestore(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		w.create("sb")
		w.reach("sb", fsm.SandboxRunning, time.Minute)
		w.pause("sb")
		w.until("a copy", time.Minute, func() bool { return w.cluster.Sandbox("sb").Copy != nil })
		var tries atomic.Int64
		loads := func(err error) {
			c.setFails(func(step string) error {
				if step == "load" {
					tries.Add(1)
					return err
				}
				return nil
			})
		}
		loads(fmt.Errorf("%w: %w", archive.ErrDamaged, context.Canceled))
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientLost}, "operator")
		w.resume("sb")
		w.until("a restore", time.Minute, func() bool { return tries.Load() > 0 })
		damaged := func() float64 { return w.gauge("bivouac_workspace_copies_damaged", "") }
		if n := damaged(); n != 0 {
			t.Errorf("%v copies are damaged by what ended early", n)
		}
		loads(fmt.Errorf("%w: another checksum", archive.ErrDamaged))
		w.until("the damage is counted", 10*time.Minute, func() bool { return damaged() == 1 })
		loads(fsm.Errorf(fsm.CodeScheduler, "the store is away"))
		w.elapse(49 * time.Hour)
		if n := damaged(); n != 1 {
			t.Errorf("%v copies are damaged after two looks without the content", n)
		}
		w.step()
		if n := damaged(); n != 0 {
			t.Errorf("%v copies are damaged by a leader that has ended", n)
		}
	})
}
