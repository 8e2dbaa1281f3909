package cluster_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
)

// as is the header of a message of node i.
func as(c *clustertest.Cluster, i int) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: 3, ID: []byte(c.Node(i).Status().ID), Addr: []byte(c.Address(i))}
}

// TestCluster_Issue695_NoEntryOfATermThatTheLeaderDidNotLead: a heartbeat of a newer
// term, which another member has won, comes to a leader that is between two entries.
func TestCluster_Issue695_NoEntryOfATermThatTheLeaderDidNotLead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Settle()
		leader := c.Leader()
		led := c.Node(leader).Status().Term
		synctest.Wait()
		var vote raft.RequestVoteResponse
		request := &raft.RequestVoteRequest{
			RPCHeader:          as(c, (leader+1)%3),
			Term:               led + 5,
			LastLogIndex:       1 << 20,
			LastLogTerm:        led,
			LeadershipTransfer: true,
		}
		if err := c.Messenger().RequestVote("", raft.ServerAddress(c.Address((leader+2)%3)), request, &vote); err != nil ||
			!vote.Granted {
			t.Fatalf("the vote is %+v, %v", vote, err)
		}
		var answer raft.AppendEntriesResponse
		heartbeat := &raft.AppendEntriesRequest{RPCHeader: as(c, (leader+1)%3), Term: led + 5}
		if err := c.Messenger().AppendEntries("", raft.ServerAddress(c.Address(leader)), heartbeat, &answer); err != nil ||
			answer.Term != led+5 {
			t.Fatalf("answered %+v, %v", answer, err)
		}
		// The node did not hear yet that it leads no more.
		if _, err := c.Propose(t.Context(), leader, put("ada", 1)); err != nil {
			t.Fatal(err)
		}
		last, err := c.Logs(leader).LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		for i := uint64(1); i <= last; i++ {
			var entry raft.Log
			if err := c.Logs(leader).GetLog(i, &entry); err == nil && entry.Term == led+5 {
				t.Errorf("entry %d is of term %d, which nobody led", i, entry.Term)
			}
		}
	})
}

// TestCluster_Issue697_ALateSnapshotTakesNothingBack: a follower that was sent a
// snapshot, and acknowledged entries after it, gets the snapshot once more.
func TestCluster_Issue697_ALateSnapshotTakesNothingBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3, func(_ int, cfg *cluster.Config) { cfg.TrailingLogs = 10 })
		defer c.Close()
		leader := c.Leader()
		late := (leader + 1) % 3
		c.Kill(late)
		for i := range 100 {
			if _, err := c.Propose(t.Context(), leader, newKey(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Node(leader).Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		request, content := c.SnapshotOf(leader)
		c.Start(late)
		c.Settle()
		for i := 100; i < 200; i++ {
			if _, err := c.Propose(t.Context(), leader, newKey(i)); err != nil {
				t.Fatal(err)
			}
		}
		c.Settle()
		if leader != c.Leader() {
			t.Fatal("the leader changed")
		}
		request.RPCHeader, request.Term = as(c, leader), c.Node(leader).Status().Term
		before := c.Store(late).Index()
		var answer raft.InstallSnapshotResponse
		if err := c.Messenger().InstallSnapshot("", raft.ServerAddress(c.Address(late)), request, &answer,
			content); err != nil || !answer.Success {
			t.Errorf("answered %+v, %v", answer, err)
		}
		time.Sleep(10 * time.Millisecond)
		if now := c.Store(late).Index(); now < before {
			t.Errorf("the store went from index %d back to %d", before, now)
		}
		if _, err := c.Propose(t.Context(), late, newKey(200)); err != nil {
			t.Error(err)
		}
		if keys := len(c.Store(late).View().APIKeys()); keys != 201 {
			t.Errorf("%d keys, want 201", keys)
		}
	})
}
