package cluster_test

import (
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
)

// TestCluster_EmptiedDisk_LosesNoAcknowledgedWrite: a node whose disk was emptied
// does not vote as the member that it was. Of three, one lacks a write that the
// two others acknowledged; it and the emptied one are no majority.
func TestCluster_EmptiedDisk_LosesNoAcknowledgedWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Leader()
		if _, err := c.Propose(t.Context(), 0, put("ada", 1)); err != nil {
			t.Fatal(err)
		}
		c.Settle()
		c.Kill(0)
		if _, err := c.Propose(t.Context(), 1, put("ada", 2)); err != nil {
			t.Fatal(err)
		}
		c.Kill(1)
		c.Kill(2)
		c.Wipe(2)
		c.Start(0)
		c.Start(2)
		for range 600 {
			time.Sleep(50 * time.Millisecond)
			if s := c.Node(0).Status(); s.State == cluster.StateLeader {
				t.Fatalf("n0, which lacks an acknowledged write, is elected in term %d with the vote of an emptied disk", s.Term)
			}
		}
		c.Start(1)
		c.Eventually("n0 is ready", func() bool { return c.Node(0).Ready() == nil })
		v, err := c.Node(0).View(t.Context(), cluster.Linearizable)
		if err != nil {
			t.Fatal(err)
		}
		if number := got(v, "ada"); number != 2 {
			t.Errorf("n0 reads %d, want the acknowledged 2", number)
		}
		c.Eventually("the emptied node is a voter under a new id", func() bool { return names(c.Node(1)) == "n0 n1 n2" })
	})
}

// TestReal_EmptiedDisk_LosesNoAcknowledgedWrite is the same over the real peer
// port and on real disks.
func TestReal_EmptiedDisk_LosesNoAcknowledgedWrite(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	r.startAll()
	r.put(0, 1)
	r.want(1)
	r.kill(0)
	r.put(1, 2)
	r.kill(1)
	r.kill(2)
	r.empty(2)
	r.start(0)
	r.start(2)
	// n0 has asked for votes in vain several times, or it leads.
	eventually(t, func() bool {
		return r.nodes[0].node.Status().State == cluster.StateLeader || r.count(0, "bivouac_raft_wrong_answers_total") >= 3
	}, func() string { return "n0 neither leads nor was refused" })
	if s := r.nodes[0].node.Status(); s.State == cluster.StateLeader {
		t.Fatalf("n0, which lacks an acknowledged write, is elected in term %d with the vote of an emptied disk", s.Term)
	}
	r.start(1)
	r.ready(0)
	r.want(2)
	r.ready(2)
	r.want(2)
}
