package cluster_test

import (
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster/clustertest"
)

// TestReplication_PeerIsBack_GetsEntriesAtOnce: a follower that was away for
// long is part of the majority as soon as it is back. hashicorp/raft's own pause
// before it tries such a peer again grows to 10 s.
func TestReplication_PeerIsBack_GetsEntriesAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		away, back func(c *clustertest.Cluster, i int)
	}{
		{"killed", (*clustertest.Cluster).Kill, (*clustertest.Cluster).Start},
		{"cut off", (*clustertest.Cluster).Isolate, func(c *clustertest.Cluster, _ int) { c.Heal() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { peerIsBack(t, c.away, c.back) })
		})
	}
}

func peerIsBack(t *testing.T, away, back func(c *clustertest.Cluster, i int)) {
	c := clustertest.New(t, 3)
	defer c.Close()
	for turn := range 2 {
		leader := c.Leader()
		first, second := (leader+1)%3, (leader+2)%3
		write := func(what string) time.Duration {
			begin := time.Now()
			if _, err := c.Propose(t.Context(), leader, put("ada", turn)); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			return time.Since(begin)
		}
		away(c, first)
		time.Sleep(14 * time.Second) // the pause of 10.24 s began after 10.24 s
		write("one follower away")
		back(c, first)
		c.Kill(second)
		if took := write("it is back, the other away"); took > 2*time.Second {
			t.Errorf("the write took %s", took)
		}
		c.Settle()
	}
}
