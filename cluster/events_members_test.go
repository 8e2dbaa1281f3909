package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

// refused is a call that must be refused as a conflict that says why.
func (k talking) refused(what string, err error, why string) {
	k.t.Helper()
	if fsm.CodeOf(err) != fsm.CodeConflict || !strings.Contains(err.Error(), why) {
		k.t.Errorf("%s: %v, want a conflict that says %q", what, err, why)
	}
}

// emptied restarts a node without its events, which no node in deaf can fetch from then on.
func (k talking) emptied(i int, deaf map[string]bool) {
	k.t.Helper()
	if err := k.Node(i).Snapshot(k.t.Context()); err != nil { // its log has them no more
		k.t.Fatal(err)
	}
	k.Stop(i)
	k.SetEvents(i, nil)
	k.SetFault(func(from, _, call string) bool {
		return call == "events" && deaf[from]
	})
	k.Start(i)
	k.Eventually("the others see that it lacks events", func() bool {
		for _, m := range k.Node(k.Leader()).Members(k.t.Context()) {
			if m.Name == fmt.Sprint("n", i) {
				return m.EventsMissing > 0
			}
		}
		return false
	})
}

// TestNode_Events_AMemberWithoutThemIsNoneOfAMajority: a node is emptied and another killed for good
// before the first one has all events. None that has them can be taken away until then.
func TestNode_Events_AMemberWithoutThemIsNoneOfAMajority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		k := newTalking(t, c, "c1")
		ids := numbered("e", 40)
		k.add(0, "c1", ids...)
		k.have("c1", ids, 0, 1, 2)
		empty := c.Follower()
		deaf := map[string]bool{fmt.Sprint("n", empty): true, "n3": true}
		k.emptied(empty, deaf)
		holder, name := c.Leader(), func(i int) string { return fmt.Sprint("n", i) }
		lost := 3 - empty - holder
		ctx, node := t.Context(), func() *cluster.Node { return c.Node(c.Leader()) }

		k.refused("a transfer to it", node().TransferLeadership(ctx, name(empty)), "lacks events")
		if err := node().TransferLeadership(ctx, ""); err != nil || c.Leader() != lost {
			t.Errorf("a transfer goes to n%d, %v, want the one with all events, n%d", c.Leader(), err, lost)
		}
		if err := node().TransferLeadership(ctx, name(holder)); err != nil {
			t.Fatal(err)
		}
		k.refused("a removal", node().RemoveServer(ctx, name(lost), cluster.RemoveOptions{}), "lacks events")
		c.Kill(lost)
		c.Forget(lost)
		for _, o := range []cluster.RemoveOptions{{}, {Force: true}} {
			k.refused("removal of the only holder", node().RemoveServer(ctx, name(holder), o), "the only one")
		}
		k.refused("removal of the lost one", node().RemoveServer(ctx, name(lost), cluster.RemoveOptions{}), "lacks events")
		fresh := c.Join()
		c.Eventually("it is a member", func() bool { return len(node().Status().Servers) == 4 })
		k.refused("a replacement",
			node().ReplaceServer(ctx, name(lost), name(fresh), cluster.RemoveOptions{}), "lacks events")
		k.refused("a transfer with nobody to take it", node().TransferLeadership(ctx, ""), "not handed over")

		c.SetFault(nil)
		k.have("c1", ids, empty, fresh)
		c.Eventually("the lost one is replaced", func() bool {
			return node().ReplaceServer(ctx, name(lost), name(fresh), cluster.RemoveOptions{}) == nil
		})
		c.Eventually("the former holder is removed", func() bool {
			return node().RemoveServer(ctx, name(holder), cluster.RemoveOptions{}) == nil
		})
		c.Stop(holder)
		c.Forget(holder)
		k.have("c1", ids, empty, fresh)
		k.add(empty, "c1", "later")
		k.have("c1", append(ids, "later"), empty, fresh)
	})
}

// TestNode_Events_ALeaderWithoutThemHandsOver to a voter that has all, instead of refusing events until it
// has fetched them.
func TestNode_Events_ALeaderWithoutThemHandsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		k := newTalking(t, c, "c1")
		ids := numbered("e", 40)
		k.add(0, "c1", ids...)
		k.have("c1", ids, 0, 1, 2)
		empty := c.Follower()
		name := fmt.Sprint("n", empty)
		k.emptied(empty, map[string]bool{name: true})
		// A leader that can't ask it what it lacks lets it lead.
		c.SetFault(func(from, to, call string) bool {
			return call == "events" && from == name || call == "hello" && to == name
		})
		if err := c.Node(c.Leader()).TransferLeadership(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		c.SetFault(func(from, _, call string) bool { return call == "events" && from == name })
		c.Eventually("a node leads that has the events", func() bool { return c.Leader() != empty })
		k.add(empty, "c1", "later")
		c.SetFault(nil)
		k.have("c1", append(ids, "later"), 0, 1, 2)
	})
}
