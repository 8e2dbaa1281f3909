package cluster_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/clustertest"
)

// TestCluster_NodeWithoutState_VotesForNobodyItDidNotPromise: Raft alone grants its
// vote while it has no configuration.
func TestCluster_NodeWithoutState_VotesForNobodyItDidNotPromise(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.NewStopped(t, 3)
		defer c.Close()
		c.Start(0)
		time.Sleep(time.Second)
		header := raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n9.x"), Addr: []byte("n9:1")}
		wire := c.Messenger()
		var vote raft.RequestVoteResponse
		if err := wire.RequestVote("", raft.ServerAddress(c.Address(0)),
			&raft.RequestVoteRequest{RPCHeader: header, Term: 7}, &vote); err != nil || vote.Granted {
			t.Errorf("a stranger gets the vote %+v, %v", vote, err)
		}
		var preVote raft.RequestPreVoteResponse
		err := wire.(raft.WithPreVote).RequestPreVote("", raft.ServerAddress(c.Address(0)),
			&raft.RequestPreVoteRequest{RPCHeader: header, Term: 7}, &preVote)
		if err != nil || preVote.Granted {
			t.Errorf("a stranger gets the pre-vote %+v, %v", preVote, err)
		}
		if term := c.Node(0).Status().Term; term != 0 {
			t.Errorf("the node is in term %d", term)
		}
		c.Start(1)
		c.Start(2)
		c.Leader()
	})
}
