package cluster_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

func TestNode_ForbidLeading_AnotherLeads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		l := leadAll(t, c, 0)
		former := c.Leader()
		c.Eventually("the leader's work runs", func() bool { return l.inside[former].Load() == 1 })
		c.Node(former).ForbidLeading(errors.New("the cluster went on elsewhere"))
		c.Eventually("another leads", func() bool {
			for i := range 3 {
				if i != former && l.inside[i].Load() == 1 {
					return l.inside[former].Load() == 0
				}
			}
			return false
		})
		if err := c.Node(former).Ready(); err == nil || err.Error() != "the cluster went on elsewhere" {
			t.Errorf("ready: %v", err)
		}
		c.Node(former).AllowLeading()
		c.Eventually("it is ready again", func() bool { return c.Node(former).Ready() == nil })
		l.stop()
		l.wg.Wait()
	})
}

// A node that must not lead hands over to one that answers, whoever else is dead:
// Raft by itself asks a dead one again and again (raftfix.Transfers).
func TestNode_ForbidLeading_BesideADeadMember(t *testing.T) {
	t.Parallel()
	for run := range 8 {
		synctest.Test(t, func(t *testing.T) {
			c := clustertest.New(t, 3)
			defer c.Close()
			c.Settle()
			former := c.Leader()
			next := (former + 1 + run%2) % 3
			c.Kill(3 - former - next)
			c.Node(former).ForbidLeading(errors.New("the cluster went on elsewhere"))
			c.Eventually("the other leads", func() bool {
				_, err := c.Propose(t.Context(), next, newKey(run))
				return err == nil && c.Leader() == next
			})
			c.Node(former).AllowLeading()
		})
	}
}

// No node may lead: no write is taken, and afterwards all is as it was.
func TestNode_AllForbidden_NoWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Leader()
		for i := range 3 {
			c.Node(i).ForbidLeading(errors.New("the cluster went on elsewhere"))
		}
		time.Sleep(10 * time.Second)
		begin := c.Node(0).Status().Term
		time.Sleep(10 * time.Second)
		if terms := c.Node(0).Status().Term - begin; terms > 2 {
			t.Errorf("leadership went on %d times in ten seconds", terms)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		cmd := fsm.NewCommand("unfit", time.Now(), "", &fsm.SpecApplyBody{Specs: []fsm.Spec{}})
		if _, err := c.Node(0).Propose(ctx, cmd); err == nil {
			t.Error("a write was taken")
		}
		for i := range 3 {
			c.Node(i).AllowLeading()
		}
		c.Eventually("a write is taken", func() bool {
			cmd := fsm.NewCommand("fit", time.Now(), "", &fsm.SpecApplyBody{Specs: []fsm.Spec{}})
			_, err := c.Node(0).Propose(t.Context(), cmd)
			return err == nil
		})
		c.Eventually("all clocks agree", func() bool { return c.Node(c.Leader()).ClocksAgree(t.Context()) == nil })
	})
}
