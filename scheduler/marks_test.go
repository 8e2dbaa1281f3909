package scheduler_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
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
			w.eventually("nothing of it is stored", 2*w.cfg.OrphanRetention, func() bool { return slices.Equal(c.stored(), []string{"kept"}) })
		})
	}
}
