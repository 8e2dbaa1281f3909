package cluster_test

import (
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
)

// TestCluster_RemovedNode_IsNotReadyAndSaysSo has a node that hears of its removal, one that was
// away meanwhile, and one that starts again.
func TestCluster_RemovedNode_IsNotReadyAndSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 4)
		defer c.Close()
		c.Settle()
		leader := c.Leader()
		present, away := (leader+1)%4, (leader+2)%4
		c.Kill(away)
		for _, i := range []int{present, away} {
			c.Forget(i)
			if err := c.Node(leader).RemoveServer(t.Context(), "n"+string(rune('0'+i)), cluster.RemoveOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Propose(t.Context(), leader, newKey(1)); err != nil {
			t.Fatal(err)
		}
		c.Start(away)
		says := func(i int) bool {
			err := c.Node(i).Ready()
			return err != nil && strings.Contains(err.Error(), "not a member of the cluster as of index")
		}
		for _, i := range []int{present, away} {
			c.Eventually("the removed node knows it", func() bool { return says(i) })
		}
		c.Kill(present)
		c.Start(present)
		c.Eventually("it knows it after its next start", func() bool { return says(present) })
		for range 120 {
			time.Sleep(500 * time.Millisecond)
			for _, i := range []int{present, away} {
				if !says(i) {
					t.Fatalf("n%d, which was removed, says: %v", i, c.Node(i).Ready())
				}
			}
		}
		c.Kill(present)
		c.Kill(away)
	})
}

// TestReal_LeaderRestartedAtOnce_IsTakenForGone restarts the leader's process and keeps its port
// open, so that no follower gets "connection refused".
func TestReal_LeaderRestartedAtOnce_IsTakenForGone(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	ports := make([]interface{ Close() error }, 3)
	again := make([]func() net.Listener, 3)
	for i, n := range r.nodes {
		f, err := n.cfg.Listener.(*net.TCPListener).File() // keeps the port open
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = f
		again[i] = func() net.Listener {
			l, err := net.FileListener(f)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		r.start(i)
	}
	t.Cleanup(func() {
		for _, p := range ports {
			_ = p.Close()
		}
	})
	for i := range 3 {
		r.ready(i)
	}
	const seen = "bivouac_raft_leader_restarts_seen_total"
	for round := range 20 {
		leader := r.leader()
		r.put(leader, round+1)
		r.want(round + 1)
		r.kill(leader)
		r.nodes[leader].cfg.Listener = again[leader]()
		r.start(leader)
		r.put((leader+1)%3, round+100)
		r.ready(leader)
		r.want(round + 100)
		if r.count((leader+1)%3, seen)+r.count((leader+2)%3, seen) > 0 {
			return
		}
	}
	t.Error("in twenty rounds no follower noticed the leader's new process")
}
