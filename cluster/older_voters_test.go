package cluster_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

// voted is the call by which a follower asks voters whom they elected. Programs below
// fsm.VersionPeers don't know it.
const voted = "voted"

// electWithout has a leader elected while n0 is away, which so has no proof of the election and has
// to ask. The programs of all other nodes don't know the question.
func electWithout(t *testing.T, c *clustertest.Cluster) {
	t.Helper()
	c.Settle()
	c.SetUnknown(func(to, call string) bool { return to != "n0" && call == voted })
	before := c.Node(0).Status().Term
	c.Kill(0)
	c.Kill(1)
	c.Start(1)
	c.Eventually("another term begins", func() bool { return c.Node(c.Leader()).Status().Term > before })
	if _, err := c.Propose(t.Context(), c.Leader(), newKey(7)); err != nil {
		t.Fatal(err)
	}
	c.Start(0)
}

// TestCluster_OlderVoters_AreBelievedUntilTheVersion: while a cluster is upgraded, n0 follows a leader
// whose election nobody can confirm. From the version on it does not.
func TestCluster_OlderVoters_AreBelievedUntilTheVersion(t *testing.T) {
	t.Parallel()
	caughtUp := func(c *clustertest.Cluster) bool { return len(c.Store(0).View().APIKeys()) == 1 }
	t.Run("below it", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := upgraded(t, fsm.VersionPeers-1)
			defer c.Close()
			electWithout(t, c)
			term := c.Node(1).Status().Term
			c.Eventually("n0 catches up", func() bool { return caughtUp(c) && c.Node(0).Ready() == nil })
			if now := c.Node(1).Status().Term; now != term {
				t.Errorf("n0 waited for another election: term %d, was %d", now, term)
			}
			c.SetUnknown(func(to, call string) bool { return to != "n3" && call == voted })
			i := c.Join()
			c.Eventually("a newcomer becomes a member", func() bool {
				return names(c.Node(2)) == "n0 n1 n2 n3" &&
					c.Node(i).Ready() == nil
			})
		})
	})
	t.Run("from it on", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := upgraded(t, fsm.VersionPeers)
			defer c.Close()
			electWithout(t, c)
			time.Sleep(time.Minute)
			if caughtUp(c) {
				t.Error("n0 took entries without a proof")
			}
			c.SetUnknown(nil)
			c.Eventually("n0 catches up", func() bool { return caughtUp(c) && c.Node(0).Ready() == nil })
		})
	})
}

// TestCluster_OlderVersion_ADeniedElectionIsNone: below the version, too, a member that leads nobody
// writes nothing where those that can be asked deny it.
func TestCluster_OlderVersion_ADeniedElectionIsNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := upgraded(t, fsm.VersionPeers-1)
		defer c.Close()
		leader := c.Leader()
		asked, poses := (leader+1)%3, (leader+2)%3
		key, err := newKey(9).Encode()
		if err != nil {
			t.Fatal(err)
		}
		of := c.Node(asked).Status()
		request := &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{
				ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(c.Node(poses).Status().ID),
				Addr: fmt.Appendf(nil, "%s@%s", c.Node(poses).Status().ID, c.Address(poses)),
			},
			Term: of.Term + 1, LeaderCommitIndex: of.CommitIndex + 1,
			Entries: []*raft.Log{{Index: of.CommitIndex + 1, Term: of.Term + 1, Type: raft.LogCommand, Data: key}},
		}
		var response raft.AppendEntriesResponse
		err = c.Messenger().AppendEntries(raft.ServerID(of.ID), raft.ServerAddress(c.Address(asked)), request, &response)
		if err == nil && response.Success {
			t.Error("the entry is taken")
		}
		c.Settle()
		if now := c.Node(asked).Status().Term; now != of.Term {
			t.Errorf("the term is %d, was %d", now, of.Term)
		}
	})
}
