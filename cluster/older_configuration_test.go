package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
)

// replaceMember has a newcomer take a member's place. The member's process goes on.
func replaceMember(t *testing.T, c *clustertest.Cluster, old int) {
	t.Helper()
	former, next := fmt.Sprintf("n%d", old), fmt.Sprintf("n%d", c.Join())
	c.Forget(old)
	c.Eventually(next+" takes the place of "+former, func() bool {
		return c.Node(c.Leader()).ReplaceServer(t.Context(), former, next, cluster.RemoveOptions{Force: true}) == nil
	})
}

// replaceAway has n0 away while n1 and n2 become n3 and n4, and returns when that is done. running
// keeps the processes of n1 and n2, which are no members any more.
func replaceAway(t *testing.T, c *clustertest.Cluster, running bool) {
	t.Helper()
	c.Settle()
	c.Kill(0)
	for old := 1; old <= 2; old++ {
		replaceMember(t, c, old)
		if !running {
			c.Kill(old)
		}
	}
	if _, err := c.Propose(t.Context(), 3, newKey(7)); err != nil {
		t.Fatal(err)
	}
}

// TestCluster_OlderConfiguration_CatchesUp: n0 was away while the other members became others. Those
// that it knows are no members any more, and tell it who the members are.
func TestCluster_OlderConfiguration_CatchesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		replaceAway(t, c, true)
		c.Start(0)
		c.Eventually("n0 catches up", func() bool {
			return len(c.Store(0).View().APIKeys()) == 1 &&
				c.Node(0).Ready() == nil
		})
		if got := names(c.Node(0)); got != "n0 n3 n4" {
			t.Errorf("n0 knows the members %s", got)
		}
		c.Kill(1)
		c.Kill(2)
	})
}

// TestCluster_OlderConfiguration_OneMemberIsLeft: n0 knows one of the members, who tells of the other,
// whichever of the two leads.
func TestCluster_OlderConfiguration_OneMemberIsLeft(t *testing.T) {
	t.Parallel()
	for _, leads := range []string{"n2", "n3"} {
		t.Run(leads, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := clustertest.New(t, 3)
				defer c.Close()
				c.Settle()
				c.Kill(0)
				replaceMember(t, c, 1)
				c.Kill(1)
				c.Eventually("it leads", func() bool {
					l := c.Leader()
					return fmt.Sprintf("n%d", l) == leads || c.Node(l).TransferLeadership(t.Context(), leads) == nil
				})
				c.Start(0)
				c.Eventually("n0 catches up", func() bool { return names(c.Node(0)) == "n0 n2 n3" && c.Node(0).Ready() == nil })
			})
		})
	}
}

// TestCluster_OlderConfiguration_NobodyIsLeft: n0 says which node to ask, and follows it when an
// operator has confirmed it.
func TestCluster_OlderConfiguration_NobodyIsLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3, func(i int, cfg *cluster.Config) {
			if i == 0 {
				cfg.DataDir = dir
			}
		})
		defer c.Close()
		replaceAway(t, c, false)
		c.Start(0)
		leader := c.Leader()
		id := c.Node(leader).Status().ID
		c.Eventually("n0 says whom to ask", func() bool {
			err := c.Node(0).Ready()
			return err != nil && strings.Contains(err.Error(), id) &&
				strings.Contains(err.Error(), "write "+id+" to "+filepath.Join(dir, "trusted-leader"))
		})
		time.Sleep(time.Minute)
		if keys := len(c.Store(0).View().APIKeys()); keys > 0 {
			t.Fatal("n0 believed a node that nobody whom it knows told of")
		}
		if err := os.WriteFile(filepath.Join(dir, "trusted-leader"), []byte(id+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Eventually("n0 catches up", func() bool { return names(c.Node(0)) == "n0 n3 n4" && c.Node(0).Ready() == nil })
	})
}

// TestCluster_Deposed_FollowsTheLeaderOfAnOlderConfiguration: a former leader has a configuration in
// its log that was never committed, and that lacks a voter of the next leader.
func TestCluster_Deposed_FollowsTheLeaderOfAnOlderConfiguration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Settle()
		former := c.Leader()
		c.Isolate(former)
		// It appends a change of members that nobody gets.
		go func() {
			_ = c.Node(former).RemoveServer(t.Context(), fmt.Sprintf("n%d", (former+1)%3), cluster.RemoveOptions{Force: true})
		}()
		c.Eventually("another leads", func() bool {
			for i := 1; i <= 2; i++ {
				if c.Node((former+i)%3).Status().State == cluster.StateLeader {
					return true
				}
			}
			return false
		})
		c.Heal()
		c.Settle()
		if got := names(c.Node(former)); got != "n0 n1 n2" {
			t.Errorf("the former leader knows the members %s", got)
		}
	})
}
