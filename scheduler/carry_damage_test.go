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

// Check implements scheduler.Copies: what is not there is damaged.
func (c *carrying) Check(_ context.Context, _, sandbox string, cp fsm.Copy) error {
	c.mu.Lock()
	_, ok := c.copies[sandbox+"/"+cp.ID]
	c.mu.Unlock()
	if err := c.at("check", sandbox); err != nil || ok {
		return err
	}
	return archive.ErrDamaged
}

// Ready implements scheduler.Copies.
func (c *carrying) Ready(context.Context, string) error { return c.at("ready", "") }

// A store that is not mounted is no damage, and one copy that can't be looked at is no obstacle to others.
func TestDamage_OfTheStore(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		for _, id := range []string{"a", "b", "c", "d"} {
			w.create(id)
			w.reach(id, fsm.SandboxRunning, time.Minute)
			w.pause(id)
			w.until("a copy", time.Minute, func() bool { return w.cluster.Sandbox(id).Copy != nil })
		}
		var exports atomic.Int64
		away, failing := true, ""
		c.mu.Lock()
		clear(c.copies)
		c.failsFor = func(step, sandbox string) error {
			switch {
			case step == "export":
				exports.Add(1)
				return fsm.Errorf(fsm.CodeScheduler, "the client is away")
			case step == "ready" && away, step == "check" && sandbox == failing:
				return fsm.Errorf(fsm.CodeScheduler, "it is away")
			}
			return nil
		}
		c.mu.Unlock()
		w.elapse(49 * time.Hour)
		damaged := func() float64 { return w.gauge("bivouac_workspace_copies_damaged", "") }
		if n := damaged(); n != 0 || exports.Load() != 0 {
			t.Errorf("with the store away, %v copies are damaged, and %d workspaces are read", n, exports.Load())
		}
		w.step()
		away, failing = false, "a"
		w.cluster.NextTerm()
		w.lead()
		w.until("the others are counted", 49*time.Hour, func() bool { return damaged() == 3 })
	})
}

// A sandbox's first copy does not begin a store while the state names copies that it has not.
func TestDamage_AFirstCopyIntoAnotherStore(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		copied := func(id string) func() bool {
			return func() bool { return w.cluster.Sandbox(id).Copy != nil }
		}
		away := func(step string) error {
			if step == "ready" {
				return fsm.Errorf(fsm.CodeScheduler, "is it mounted")
			}
			return nil
		}
		c.setFails(away)
		for _, id := range []string{"first", "second"} {
			w.create(id)
			w.reach(id, fsm.SandboxRunning, time.Minute)
			w.pause(id)
			if id == "first" {
				w.until("the first of all", time.Minute, copied(id))
			}
		}
		w.elapse(10 * time.Minute)
		if copied("second")() {
			t.Error("a copy was made into a store that is not mounted")
		}
		c.setFails(nil)
		w.until("a copy", 10*time.Minute, copied("second"))
	})
}
