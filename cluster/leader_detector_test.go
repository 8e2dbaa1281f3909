package cluster_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
)

// TestLeaderDetector_LeaderKilled_ElectsBeforeTheHeartbeatTimeout: where a process is
// gone, nobody waits for its heartbeats. hashicorp/raft by itself waits for the
// last follower of a majority to look, which takes it nearly twice that at the
// median; half of the turns is asked for, because a candidate whose log is behind
// loses its first try.
func TestLeaderDetector_LeaderKilled_ElectsBeforeTheHeartbeatTimeout(t *testing.T) {
	t.Parallel()
	for _, count := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			c := clustertest.New(t, count)
			defer c.Close()
			var took []time.Duration
			for i := range 9 {
				leader := c.Leader()
				if _, err := c.Propose(t.Context(), leader, put("ada", i)); err != nil {
					t.Fatal(err)
				}
				c.Settle()
				leader = c.Leader()
				begin := time.Now()
				c.Kill(leader)
				if _, err := c.Propose(t.Context(), (leader+1)%count, put("ada", i)); err != nil {
					t.Fatal(err)
				}
				took = append(took, time.Since(begin))
				c.Settle()
			}
			slices.Sort(took)
			t.Logf("%d nodes: the next write took %s", count, took)
			if median := took[len(took)/2]; median >= cluster.DefaultConfig().HeartbeatTimeout {
				t.Errorf("%d nodes: the next write took %s at the median", count, median)
			}
		})
	}
}
