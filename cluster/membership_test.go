package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

// names gives the members as "n0 n1 n2", nonvoters in brackets.
func names(n *cluster.Node) string {
	var out []string
	for _, s := range n.Status().Servers {
		name := s.Name
		if !s.Voter {
			name = "[" + name + "]"
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

func TestCluster_Forms_WhateverTheStartOrder(t *testing.T) {
	t.Parallel()
	for run := range histories(15, 60) {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(run), func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d", seed)
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 0))
				count := []int{1, 3, 5}[rng.IntN(3)]
				c := clustertest.NewStopped(t, count)
				defer c.Close()
				order := rng.Perm(count)
				for _, i := range order {
					c.Start(i)
					time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
					// Crashes and cuts while it forms.
					switch rng.IntN(4) {
					case 0:
						c.Kill(i)
						c.Start(i)
					case 1:
						c.Isolate(i)
						time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
						c.Heal()
					}
				}
				c.Settle()
				leader := c.Leader()
				if got := len(c.Node(leader).Status().Servers); got != count {
					t.Errorf("%d members, want %d: %s", got, count, names(c.Node(leader)))
				}
				id := c.Store(0).View().ClusterID()
				for i := range count {
					if got := c.Store(i).View().ClusterID(); got == "" || got != id {
						t.Errorf("n%d is in cluster %q, n0 in %q", i, got, id)
					}
				}
			})
		})
	}
}

func TestCluster_Forms_NotBeforeAllExpectedHaveMet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.NewStopped(t, 3)
		defer c.Close()
		c.Start(2)
		c.Start(1)
		time.Sleep(time.Minute)
		for _, i := range []int{1, 2} {
			if servers := c.Node(i).Status().Servers; len(servers) != 0 {
				t.Errorf("n%d formed a cluster with %v", i, servers)
			}
			if c.Node(i).Ready() == nil {
				t.Errorf("n%d is ready", i)
			}
		}
		c.Start(0)
		c.Leader()
	})
}

func TestCluster_Join_NewNodeBecomesAVoterWhenCaughtUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Leader()
		for i := range 50 {
			if _, err := c.Propose(t.Context(), i%3, newKey(i)); err != nil {
				t.Fatal(err)
			}
		}
		i := c.Join()
		c.Eventually("the new node votes", func() bool { return names(c.Node(0)) == "n0 n1 n2 n3" })
		if _, err := c.Propose(t.Context(), i, newKey(50)); err != nil {
			t.Fatal(err)
		}
		if keys := len(c.Store(i).View().APIKeys()); keys != 51 {
			t.Errorf("the new node has %d keys, want 51", keys)
		}
	})
}

func TestCluster_Join_NodeWithoutItsDiskReplacesItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		leader := c.Leader()
		lost := (leader + 1) % 3
		before := c.Node(lost).Status().ID
		if _, err := c.Propose(t.Context(), leader, newKey(1)); err != nil {
			t.Fatal(err)
		}
		c.Kill(lost)
		c.Wipe(lost)
		c.Start(lost)
		c.Eventually("the node votes again under a new id", func() bool {
			s := c.Node(lost).Status()
			return s.ID != before && names(c.Node(leader)) == "n0 n1 n2" && len(s.Servers) == 3
		})
		c.Eventually("it has the state", func() bool { return len(c.Store(lost).View().APIKeys()) == 1 })
	})
}

func TestCluster_Join_NameOfALiveNodeIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Leader()
		i := c.JoinAs("n1")
		time.Sleep(20 * time.Second)
		if got := names(c.Node(0)); got != "n0 n1 n2" {
			t.Errorf("members are %s", got)
		}
		if len(c.Node(i).Status().Servers) != 0 {
			t.Errorf("the second n1 is in the cluster: %v", c.Node(i).Status().Servers)
		}
		c.Kill(i)
		c.Forget(i)
	})
}

func TestCluster_Join_MovedNodeIsFoundAtItsNewAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		leader := c.Leader()
		moved := (leader + 1) % 3
		c.Stop(moved)
		c.Move(moved, "elsewhere:1")
		c.Start(moved)
		c.Eventually("the configuration has the new address", func() bool {
			for _, s := range c.Node(leader).Status().Servers {
				if s.Address == "elsewhere:1" {
					return s.Voter
				}
			}
			return false
		})
		if _, err := c.Propose(t.Context(), moved, newKey(1)); err != nil {
			t.Error(err)
		}
	})
}

func TestCluster_Remove_NodeIsGoneEvenTheLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 4)
		defer c.Close()
		leader := c.Leader()
		dead := (leader + 1) % 4
		asked := (leader + 2) % 4
		c.Kill(dead)
		c.Forget(dead)
		if err := c.Node(asked).RemoveServer(t.Context(), fmt.Sprintf("n%d", dead), cluster.RemoveOptions{}); err != nil {
			t.Fatalf("removing a dead node: %v", err)
		}
		if err := c.Node(asked).RemoveServer(t.Context(), fmt.Sprintf("n%d", dead),
			cluster.RemoveOptions{}); fsm.CodeOf(err) != fsm.CodeNotFound {
			t.Errorf("removing it again: %v, want CodeNotFound", err)
		}
		leader = c.Leader()
		if err := c.Node(leader).RemoveServer(t.Context(), fmt.Sprintf("n%d", leader), cluster.RemoveOptions{}); err != nil {
			t.Fatalf("removing the leader: %v", err)
		}
		c.Forget(leader)
		next := c.Leader()
		c.Eventually("two are left", func() bool { return len(c.Node(next).Status().Servers) == 2 })
		// The removed node knows it and does not come back by itself.
		time.Sleep(30 * time.Second)
		if n := len(c.Node(next).Status().Servers); n != 2 {
			t.Errorf("%d members after a while", n)
		}
		c.Kill(leader)
	})
}

func TestCluster_Stop_HandsLeadershipOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		for range 10 {
			leader := c.Leader()
			c.Stop(leader)
			stopped := time.Now()
			if _, err := c.Propose(t.Context(), (leader+1)%3, newKey(int(stopped.UnixMilli()%1e9))); err != nil {
				t.Fatal(err)
			}
			// An election after a silence takes HeartbeatTimeout at least.
			if took := time.Since(stopped); took >= cluster.DefaultConfig().HeartbeatTimeout {
				t.Errorf("a write after an orderly stop took %v", took)
			}
			c.Start(leader)
			c.Settle()
		}
	})
}

func TestCluster_Restart_AllNodesInAnyOrderKeepTheState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Leader()
		for round := range 6 {
			for i := range 10 {
				if _, err := c.Propose(t.Context(), i%3, newKey(round*10+i)); err != nil {
					t.Fatal(err)
				}
			}
			for _, i := range rand.Perm(3) {
				c.Kill(i)
			}
			for _, i := range rand.Perm(3) {
				c.Start(i)
				time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
			}
			c.Settle()
			if keys := len(c.Store(0).View().APIKeys()); keys != (round+1)*10 {
				t.Errorf("round %d: %d keys, want %d", round, keys, (round+1)*10)
			}
		}
	})
}

func TestNode_Members_SayHowTheyAre(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Settle()
		leader := c.Leader()
		away := (leader + 1) % 3
		c.Kill(away)
		members := c.Node(leader).Members(t.Context())
		if len(members) != 3 {
			t.Fatalf("members: %+v", members)
		}
		for i, m := range members {
			if (m.Error != "") != (i == away) {
				t.Errorf("%s: error %q", m.Name, m.Error)
			}
			if i != away && (m.KnownVersion != fsm.ProtocolVersion || m.AppliedIndex == 0 || m.State == "") {
				t.Errorf("%s: %+v", m.Name, m)
			}
		}
	})
}
