package scheduler_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// EndLeft implements scheduler.Carrier.
func (c *carrying) EndLeft(_ context.Context, _ string, ours func(birth string) bool) (int, error) {
	if err := c.at("end", ""); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.left)
	c.left = slices.DeleteFunc(c.left, ours)
	return before - len(c.left), nil
}

func (c *carrying) leave(births ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = births
}

func (c *carrying) stillLeft() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.left)
}

// The jobs that a leader leaves beside workspaces end with the next term, and with the collections that
// follow; those of no history of ours stay, and so do all in a hold.
func TestCarriers_EndWhatALeaderLeft(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		w.cluster.NextTerm() // births need a history
		w.create("sb")
		birth := w.reach("sb", fsm.SandboxRunning, time.Minute).Birth.String()
		w.step()
		c.leave(birth, "", "other/nonce/3", clusterID+"/unknown/3")
		w.lead()
		w.until("what the former leader left is ended", time.Minute, func() bool { return c.stillLeft() == 3 })
		c.leave(birth)
		w.until("what this leader could not end is ended", time.Hour, func() bool { return c.stillLeft() == 0 })
		w.cluster.Must(&fsm.HoldBeginBody{
			At: w.view().Index(), Findings: []fsm.Finding{{Kind: fsm.FindingVanished, Store: fsm.StoreNomad, Detail: "a drill"}},
		}, "")
		w.step()
		c.leave(birth)
		w.lead()
		w.elapse(time.Hour)
		if c.stillLeft() != 1 {
			t.Error("a leader ended a job in a hold")
		}
	})
}

// A leader that could not end what is left, as the backend failed or in a hold, tries again soon.
func TestCarriers_EndWhatALeaderLeft_TriesAgain(t *testing.T) {
	t.Parallel()
	inCarryingWorld(t, func(w *world, c *carrying) {
		w.cluster.NextTerm() // births need a history
		w.create("sb")
		birth := w.reach("sb", fsm.SandboxRunning, time.Minute).Birth.String()
		w.step()
		c.leave(birth)
		c.setFails(func(step string) error {
			if step == "end" {
				return errors.New("the backend is away")
			}
			return nil
		})
		w.lead()
		w.elapse(2 * w.cfg.ListInterval)
		c.setFails(nil)
		w.elapse(2 * w.cfg.ListInterval)
		if c.stillLeft() != 0 {
			t.Error("it is left, long after the backend was back")
		}
	})
}
