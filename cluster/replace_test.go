package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

// A removal that would leave no majority of living voters is refused, whichever
// node it names, and the cluster goes on.
func TestCluster_Remove_RefusedWhereTheOthersAreNoMajority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Settle()
		leader := c.Leader()
		dead, living := (leader+1)%3, (leader+2)%3
		c.Kill(dead)
		for _, target := range []int{living, leader} {
			err := c.Node(living).RemoveServer(t.Context(), fmt.Sprintf("n%d", target), cluster.RemoveOptions{})
			if fsm.CodeOf(err) != fsm.CodeConflict {
				t.Errorf("removing n%d while n%d is dead: %v, want CodeConflict", target, dead, err)
			}
		}
		if _, err := c.Propose(t.Context(), living, newKey(1)); err != nil {
			t.Errorf("a write afterwards: %v", err)
		}
		if got := names(c.Node(leader)); got != "n0 n1 n2" {
			t.Errorf("members are %s", got)
		}
		if err := c.Node(living).RemoveServer(t.Context(), fmt.Sprintf("n%d", dead), cluster.RemoveOptions{}); err != nil {
			t.Errorf("removing the dead one: %v", err)
		}
		c.Forget(dead)
	})
}

// A member that votes already takes nobody's place: the cluster of three would be one
// of two, which tolerates no failure.
func TestCluster_Replace_RefusedWhereTheNewOneVotesAlready(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Settle()
		err := c.Node(0).ReplaceServer(t.Context(), "n1", "n2", cluster.RemoveOptions{})
		if fsm.CodeOf(err) != fsm.CodeConflict || !strings.Contains(err.Error(), "votes already") {
			t.Errorf("replacing n1 by n2, which both vote: %v, want CodeConflict", err)
		}
		if got := names(c.Node(0)); got != "n0 n1 n2" {
			t.Errorf("members are %s", got)
		}
	})
}

// n0 dies and n3 joins under a new name. It does not vote beside the dead one,
// and takes its place when that has been silent for long; then another may die.
func TestCluster_DeadVoter_IsReplacedByANewcomer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const deadAfter = time.Minute
		c := clustertest.New(t, 3, func(_ int, cfg *cluster.Config) { cfg.DeadAfter = deadAfter })
		defer c.Close()
		c.Settle()
		dead := c.Follower()
		c.Kill(dead)
		killed := time.Now()
		newcomer := c.Join()
		leader := c.Leader()
		time.Sleep(deadAfter / 2)
		if s := names(c.Node(leader)); s != "n0 n1 n2 [n3]" {
			t.Errorf("half a minute later the members are %s", s)
		}
		want := ""
		for i := range 4 {
			if i != dead {
				want += fmt.Sprintf(" n%d", i)
			}
		}
		c.Eventually("the newcomer votes in the dead one's place", func() bool { return " "+names(c.Node(leader)) == want })
		if took := time.Since(killed); took < deadAfter {
			t.Errorf("it took %v only", took)
		}
		c.Forget(dead)
		second := 0
		for second == dead || second == leader {
			second++
		}
		c.Kill(second)
		if _, err := c.Propose(t.Context(), newcomer, newKey(1)); err != nil {
			t.Errorf("a write after the next death: %v", err)
		}
	})
}

// With nobody to take its place a dead voter stays a member, and so it does where
// nothing is removed of the leader's own accord.
func TestCluster_DeadVoter_Stays(t *testing.T) {
	t.Parallel()
	for name, deadAfter := range map[string]time.Duration{"without a newcomer": time.Minute, "switched off": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := clustertest.New(t, 3, func(_ int, cfg *cluster.Config) { cfg.DeadAfter = deadAfter })
				defer c.Close()
				c.Settle()
				dead := c.Follower()
				c.Kill(dead)
				want := "n0 n1 n2"
				if deadAfter == 0 {
					c.Join()
					want += " [n3]"
				}
				time.Sleep(3 * time.Minute)
				if got := names(c.Node(c.Leader())); got != want {
					t.Errorf("members are %s, want %s", got, want)
				}
			})
		})
	}
}

// The operator does not wait: the newcomer takes the dead one's place at once, or a
// living one's, the leader's too.
func TestCluster_Replace_TakesThePlace(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"dead", "living", "leader"} {
		t.Run(who, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { replaceOne(t, who) })
		})
	}
}

func replaceOne(t *testing.T, who string) {
	c := clustertest.New(t, 3)
	defer c.Close()
	c.Settle()
	leader := c.Leader()
	former := (leader + 1) % 3
	if who == "leader" {
		former = leader
	}
	if who == "dead" {
		c.Kill(former)
	}
	asked := c.Node((leader + 2) % 3)
	name := fmt.Sprintf("n%d", former)
	if err := asked.ReplaceServer(t.Context(), name, "n3", cluster.RemoveOptions{}); fsm.CodeOf(err) != fsm.CodeNotFound {
		t.Errorf("before it has joined: %v, want CodeNotFound", err)
	}
	newcomer := c.Join()
	c.Eventually("the newcomer is there", func() bool { return c.Node(newcomer).Ready() == nil })
	c.Eventually("it takes the place", func() bool {
		return asked.ReplaceServer(t.Context(), name, "n3", cluster.RemoveOptions{}) == nil
	})
	c.Forget(former)
	want := ""
	for i := range 4 {
		if i != former {
			want += fmt.Sprintf(" n%d", i)
		}
	}
	next := c.Leader()
	c.Eventually("the members are"+want, func() bool { return " "+names(c.Node(next)) == want })
	if _, err := c.Propose(t.Context(), newcomer, newKey(1)); err != nil {
		t.Error(err)
	}
	if err := asked.ReplaceServer(t.Context(), "n3", "n3", cluster.RemoveOptions{}); fsm.CodeOf(err) != fsm.CodeInvalid {
		t.Errorf("by itself: %v", err)
	}
}

func TestCluster_TransferLeadership_ToANamedVoter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Settle()
		for range 5 {
			leader := c.Leader()
			next := (leader + 1) % 3
			name := fmt.Sprintf("n%d", next)
			if err := c.Node((leader+2)%3).TransferLeadership(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			c.Eventually(name+" leads", func() bool { return c.Leader() == next })
			if err := c.Node(leader).TransferLeadership(t.Context(), name); err != nil {
				t.Errorf("to the leader: %v", err)
			}
			if err := c.Node(leader).TransferLeadership(t.Context(), "n9"); fsm.CodeOf(err) != fsm.CodeNotFound {
				t.Errorf("to nobody: %v", err)
			}
		}
	})
}

// A voter that never told what it knows holds the protocol version up until it is
// dead, and no longer.
func TestCluster_DeadVoter_DoesNotHoldUpTheVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const deadAfter = time.Minute
		c := clustertest.NewStopped(t, 3, func(_ int, cfg *cluster.Config) { cfg.DeadAfter = deadAfter })
		defer c.Close()
		// Its answers are lost from the moment the cluster is formed.
		c.SetFault(func(_, to, call string) bool {
			return to == "n2" && call == "hello" && len(c.Node(0).Status().Servers) > 0
		})
		for i := range 3 {
			c.Start(i)
		}
		leader := c.Leader()
		c.Kill(2)
		if leader == 2 {
			leader = c.Leader()
		}
		version := func() int { return c.Store(leader).View().ProtocolVersion() }
		time.Sleep(deadAfter / 2)
		if v := version(); v == fsm.ProtocolVersion {
			t.Errorf("the version is %d although n2 has not said what it knows", v)
		}
		c.Eventually("the version rises", func() bool { return version() == fsm.ProtocolVersion })
	})
}

// A nonvoter that is silent for long is removed, like a voter, and not before.
func TestCluster_DeadNonvoter_IsRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const deadAfter = time.Minute
		c := clustertest.New(t, 3, func(_ int, cfg *cluster.Config) { cfg.DeadAfter = deadAfter })
		defer c.Close()
		c.Settle()
		silent := c.Follower()
		c.Kill(silent) // so that the newcomer does not vote
		spare := c.Join()
		leader := c.Leader()
		c.Eventually("the spare is there", func() bool { return names(c.Node(leader)) == "n0 n1 n2 [n3]" })
		c.Kill(spare)
		c.Forget(spare)
		killed := time.Now()
		c.Start(silent)
		time.Sleep(deadAfter / 2)
		if got := names(c.Node(leader)); got != "n0 n1 n2 [n3]" {
			t.Errorf("half a minute later the members are %s", got)
		}
		c.Eventually("it is removed", func() bool { return names(c.Node(leader)) == "n0 n1 n2" })
		if took := time.Since(killed); took < deadAfter || took > deadAfter+5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// Each leader counts a silence anew: a dead member goes late, never early.
func TestCluster_DeadMember_IsCountedAnewByEachLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const deadAfter = 2 * time.Minute
		c := clustertest.New(t, 5, func(_ int, cfg *cluster.Config) { cfg.DeadAfter, cfg.Voters = deadAfter, 3 })
		defer c.Close()
		c.Settle()
		dead := c.Follower()
		c.Kill(dead)
		c.Forget(dead)
		for range 3 {
			time.Sleep(25 * time.Second)
			former := c.Leader()
			if err := c.Node(former).TransferLeadership(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			c.Eventually("another leads", func() bool { return c.Leader() != former })
		}
		led, leader, gone := time.Now(), c.Leader(), fmt.Sprintf("n%d", dead)
		time.Sleep(deadAfter - 5*time.Second)
		if got := names(c.Node(leader)); !strings.Contains(got, gone) {
			t.Errorf("members are %s already", got)
		}
		c.Eventually("the dead one is removed", func() bool { return !strings.Contains(names(c.Node(leader)), gone) })
		if took := time.Since(led); took > deadAfter+10*time.Second {
			t.Errorf("it took %v, want %v", took, deadAfter)
		}
	})
}
