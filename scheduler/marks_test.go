package scheduler_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// A drain is carried out in a cluster in which nothing else happens: no row changes but those that
// the drain itself changes.
func TestDrain_NothingElseHappens(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		w.cfg.CopyInterval = 1000 * time.Hour
		w.step()
		w.lead()
		w.create("sb")
		w.reach("sb", fsm.SandboxRunning, time.Minute)
		w.elapse(10 * time.Minute)
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientDraining}, "operator")
		w.onB(c, "sb")
	})
}

// A sandbox that is made while a client is drained, or lost, goes to another. One that the backend puts
// there all the same does not start and stop in a loop.
func TestDrain_NewSandboxes(t *testing.T) {
	t.Parallel()
	for _, mark := range []string{fsm.ClientDraining, fsm.ClientLost} {
		inCarryingWorld(t, func(w *world, c *carrying) {
			w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: mark}, "operator")
			w.create("new")
			w.reach("new", fsm.SandboxRunning, time.Minute)
			w.elapse(10 * time.Minute)
			if n := len(c.startsOf("new")); c.client("new") != "b" || n != 1 {
				t.Errorf("%s: it runs on %s after %d starts", mark, c.client("new"), n)
			}
		})
	}
	inCarryingWorld(t, func(w *world, c *carrying) {
		c.mu.Lock()
		c.ignores = true
		c.mu.Unlock()
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientDraining}, "operator")
		w.create("new")
		w.elapse(2 * time.Minute)
		starts := c.startsOf("new")
		for i := 2; i < len(starts); i++ {
			if pause := starts[i].Sub(starts[i-1]); pause < 5*time.Second {
				t.Errorf("start %d came %s after the one before", i, pause)
			}
		}
		if len(starts) > 7 {
			t.Errorf("%d starts in two minutes", len(starts))
		}
	})
}

// What a client that was lost still has stays through changes of the leader: it may be the only
// holder of what was written after the copy.
func TestLost_WhatTheClientHasStays(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		w.create("sb")
		w.reach("sb", fsm.SandboxRunning, time.Minute)
		w.pause("sb")
		w.until("a copy", time.Minute, func() bool { return w.cluster.Sandbox("sb").Copy != nil })
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientLost}, "operator")
		w.resume("sb")
		w.until("it runs on b", 10*time.Minute, func() bool {
			return c.client("sb") == "b" &&
				w.cluster.Sandbox("sb").State() == fsm.SandboxRunning
		})
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: ""}, "operator")
		for range 2 {
			w.step()
			w.cluster.NextTerm()
			w.lead()
			w.elapse(time.Hour)
		}
		list, _ := c.ListWorkspaces(t.Context(), scheduler.Job{SandboxID: "sb"})
		if len(list) != 2 || c.content[list[0].ID] != "of sb" {
			t.Errorf("left is %v", list)
		}
		w.delete("sb")
		w.until("it is deleted", 10*time.Minute, func() bool { return w.cluster.Sandbox("sb") == nil })
	})
}

// A sandbox is deleted while its workspace is copied. What is stored after its removal goes too: at
// once, and by the sweep where the leader ended meanwhile. A copy that a user may still want stays.
func TestCopy_SandboxDeletedDuringIt(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{false, true} {
		inCarryingWorld(t, func(w *world, c *carrying) {
			w.create("kept")
			w.reach("kept", fsm.SandboxRunning, time.Minute)
			w.pause("kept")
			w.until("a copy", time.Minute, func() bool { return w.cluster.Sandbox("kept").Copy != nil })
			entered, leave := make(chan struct{}, 10), make(chan struct{})
			c.mu.Lock()
			c.fails = func(step string) error {
				if step == "export" {
					entered <- struct{}{}
					<-leave
				}
				return nil
			}
			c.mu.Unlock()
			w.create("sb")
			w.reach("sb", fsm.SandboxRunning, time.Minute)
			w.pause("sb")
			<-entered
			w.delete("sb")
			w.until("the row is gone", time.Minute, func() bool { return w.cluster.Sandbox("sb") == nil })
			if ends {
				w.cluster.Refuse(func(fsm.Command) error { return errors.New("the leader is no more") })
				c.mu.Lock()
				c.lost = true
				c.mu.Unlock()
			}
			close(leave)
			if ends {
				w.elapse(time.Second)
				w.step()
				c.mu.Lock()
				c.lost = false
				c.mu.Unlock()
				w.cluster.Refuse(nil)
				w.cluster.NextTerm()
				w.lead()
				w.elapse(time.Hour)
				if !slices.Equal(c.stored(), []string{"kept", "sb"}) {
					t.Errorf("removed before its time: the store has %v", c.stored())
				}
			}
			w.eventually("nothing of it is stored", 2*w.cfg.OrphanRetention,
				func() bool { return slices.Equal(c.stored(), []string{"kept"}) })
		})
	}
}

// lacks makes every move of the Nomad fail as it does without alloc-exec.
func lacks(step string) error {
	if step == "export" {
		return &scheduler.Denied{
			Path:       "the namespace sandboxes",
			Capability: "alloc-exec",
			Detail:     "Nomad: Permission denied",
		}
	}
	return nil
}

// A drain that can't move anything pauses one sandbox and no other, says why, and brings that one back.
// The mark stays, so that nothing new comes. When it can, the same command moves everything.
func TestDrain_BringsBackWhatItPaused(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		ids := []string{"one", "two", "three"}
		for _, id := range ids {
			w.create(id)
			w.reach(id, fsm.SandboxRunning, time.Minute)
		}
		c.setFails(lacks)
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientDraining}, "operator")
		w.until("the drain stopped", 10*time.Minute,
			func() bool { return w.cluster.Store.View().MarkOf("a").Drain == fsm.DrainStopped })
		m := w.cluster.Store.View().MarkOf("a")
		if !strings.Contains(m.Failure, "alloc-exec") || len(m.Stays) != 1 {
			t.Errorf("the mark is %+v", m)
		}
		w.until("all run where they were", 10*time.Minute, func() bool { return c.allRunOn("a", w, ids...) })
		w.elapse(time.Hour)
		starts := 0
		for _, id := range ids {
			sb := w.cluster.Sandbox(id)
			if sb.Home != nil || sb.Move != nil || sb.State() != fsm.SandboxRunning {
				t.Errorf("%s is %+v", id, sb)
			}
			starts += len(c.startsOf(id))
		}
		if starts != len(ids)+1 {
			t.Errorf("%d starts of %d sandboxes: one alone was paused for the trial", starts, len(ids))
		}
		c.setFails(nil)
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientDraining}, "operator")
		for _, id := range ids {
			w.onB(c, id)
		}
		if m := w.cluster.Store.View().MarkOf("a"); m.Drain != fsm.DrainAll || m.Failure != "" {
			t.Errorf("the mark is %+v", m)
		}
	})
}

// One workspace of many can't be moved: it stays and runs, and the others are moved.
func TestDrain_OneStays(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		for _, id := range []string{"first", "good", "zbad"} {
			w.create(id)
			w.reach(id, fsm.SandboxRunning, time.Minute)
		}
		bad := w.cluster.Sandbox("zbad").ID
		c.mu.Lock()
		c.failsFor = func(step, id string) error {
			if step == "export" && id == bad {
				return errors.New("a file can't be read")
			}
			return nil
		}
		c.mu.Unlock()
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientDraining}, "operator")
		w.onB(c, "first")
		w.onB(c, "good")
		w.until("one stays", 10*time.Minute,
			func() bool { return slices.Equal(w.cluster.Store.View().MarkOf("a").Stays, []string{bad}) })
		w.until("it runs where it was", 10*time.Minute, func() bool { return c.allRunOn("a", w, "zbad") })
		if m := w.cluster.Store.View().MarkOf("a"); m.Drain != fsm.DrainAll ||
			!strings.Contains(m.Failure, "a file can't be read") {
			t.Errorf("the mark is %+v", m)
		}
	})
}

// A pool on a client that is drained is filled anew on another, where a claim then finds its member. A
// member of the drained client that was claimed before is moved. Nothing of the pool is left there.
func TestDrain_Pools(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		w.pool(2)
		w.full(2, time.Minute)
		early := w.claim("early")
		if !early.Claimed || c.client(early.ID) != "a" {
			t.Fatalf("the first claim is %+v on %s", early, c.client(early.ID))
		}
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientDraining}, "operator")
		w.until("the pool is full on b", 10*time.Minute, func() bool {
			ready := w.ready()
			return len(ready) == 2 && !slices.ContainsFunc(ready, func(id string) bool { return c.client(id) != "b" })
		})
		late := w.claim("late")
		if !late.Claimed || c.client(late.ID) != "b" {
			t.Errorf("the claim during the drain is %+v on %s", late, c.client(late.ID))
		}
		w.onB(c, early.ID)
		w.reach(late.ID, fsm.SandboxRunning, time.Minute)
		w.until("the pool is full again", 10*time.Minute, func() bool { return len(w.ready()) == 2 })
		w.elapse(10 * time.Minute)
		for _, m := range w.cluster.Store.View().PoolMembers(specID) {
			if c.client(m.ID) != "b" || len(c.startsOf(m.ID)) != 1 {
				t.Errorf("the member %s is on %s after %d starts", m.ID, c.client(m.ID), len(c.startsOf(m.ID)))
			}
		}
	})
}

// A client with nothing but sandboxes in ERROR is emptied: those that ran are moved and started again,
// whether something of them is left or not.
func TestDrain_SandboxesInError(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		ids := []string{"crashed", "gone"}
		for _, id := range ids {
			w.create(id)
			w.reach(id, fsm.SandboxRunning, time.Minute)
			w.nomad.Fail(id, crash())
			w.reach(id, fsm.SandboxError, time.Minute)
		}
		w.nomad.StopByHand("gone")
		w.elapse(time.Minute)
		w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientDraining}, "operator")
		for _, id := range ids {
			w.onB(c, id)
		}
		if m := w.cluster.Store.View().MarkOf("a"); m.Drain != fsm.DrainAll || len(m.Stays) > 0 {
			t.Errorf("the mark is %+v", m)
		}
	})
}

// A sandbox in ERROR whose workspace can't be moved ends the drain when nothing else is left: it stays,
// and the mark says why.
func TestDrain_SandboxInErrorStays(t *testing.T) {
	t.Parallel()
	for _, others := range []bool{false, true} {
		inCarryingWorld(t, func(w *world, c *carrying) {
			w.create("never")
			w.until("its job", time.Second, func() bool { return w.nomad.Has("never") })
			w.nomad.Fail("never", crash())
			w.reach("never", fsm.SandboxError, time.Minute)
			want := fsm.DrainStopped
			if others {
				want = fsm.DrainAll
				w.create("good")
				w.reach("good", fsm.SandboxRunning, time.Minute)
			}
			w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientDraining}, "operator")
			never := w.cluster.Sandbox("never")
			w.until("it stays", 10*time.Minute,
				func() bool { return slices.Equal(w.cluster.Store.View().MarkOf("a").Stays, []string{never.ID}) })
			if m := w.cluster.Store.View().MarkOf("a"); m.Drain != want ||
				!strings.Contains(m.Failure, "is in ERROR and has no workspace that could be moved") {
				t.Errorf("the mark is %+v, want %s", m, want)
			}
			if others {
				w.onB(c, "good")
			}
			w.elapse(time.Hour)
			if now := w.cluster.Sandbox("never"); now.State() != fsm.SandboxError || now.Moves > 0 {
				t.Errorf("it is %+v", now)
			}
		})
	}
}
