package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
)

func TestRaftFSM_UnknownCommandStopsTheNode(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ data, want string }{
		"unknown type": {
			`moon.fly{"id":"x","type":"moon.fly","time":"2026-01-01T00:00:00Z","body":{}}`,
			`unknown command type "moon.fly"`,
		},
		"no JSON": {`moon`, "decoding command"},
		"of a later protocol": {
			`protocol.raise{"id":"x","type":"protocol.raise","time":"2026-01-01T00:00:00Z","body":{"version":1000}}`,
			"moved to protocol version 1000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := clustertest.New(t, 3)
				defer c.Close()
				c.Leader()
				if _, err := c.Propose(t.Context(), 0, newKey(1)); err != nil {
					t.Fatal(err)
				}
				c.Settle()
				for i := range 3 {
					c.Kill(i)
				}
				// As if a newer program had written it.
				var index uint64
				for i := range 3 {
					last, err := c.Logs(i).LastIndex()
					if err != nil {
						t.Fatal(err)
					}
					var entry raft.Log
					if err := c.Logs(i).GetLog(last, &entry); err != nil {
						t.Fatal(err)
					}
					index = last + 1
					if err := c.Logs(i).StoreLog(&raft.Log{
						Index: index,
						Term:  entry.Term,
						Type:  raft.LogCommand,
						Data:  []byte(test.data),
					}); err != nil {
						t.Fatal(err)
					}
				}
				for i := range 3 {
					c.Start(i)
				}
				// The third can't commit the entry any more.
				for range 2 {
					i, err := c.Failed()
					if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("log entry %d", index)) ||
						!strings.Contains(err.Error(), test.want) {
						t.Errorf("n%d: Run returned %v, want an error that names entry %d and says %q", i, err, index, test.want)
					}
					if got := c.Store(i).Index(); got >= index {
						t.Errorf("n%d: the store went on to %d, past the entry %d", i, got, index)
					}
				}
				for i := range 3 {
					if c.Node(i) != nil {
						c.Forget(i)
						c.Kill(i)
					}
				}
			})
		})
	}
}

func TestRaftFSM_NodeThatWasAwayCatchesUpBySnapshot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3, func(_ int, cfg *cluster.Config) {
			cfg.SnapshotThreshold, cfg.SnapshotInterval, cfg.TrailingLogs = 20, time.Second, 5
		})
		defer c.Close()
		leader := c.Leader()
		away := (leader + 1) % 3
		c.Kill(away)
		for i := range 200 {
			if _, err := c.Propose(t.Context(), leader, newKey(i)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		first, err := c.Logs(leader).FirstIndex()
		if err != nil || first < 50 {
			t.Fatalf("the leader's log begins at %d (%v): no snapshot was taken", first, err)
		}
		c.Start(away)
		c.Eventually("the node has all", func() bool { return len(c.Store(away).View().APIKeys()) == 200 })
		// And from its own snapshot after a restart.
		if err := c.Node(away).Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Kill(away)
		c.Start(away)
		if _, err := c.Propose(t.Context(), away, newKey(200)); err != nil {
			t.Fatal(err)
		}
		if keys := len(c.Store(away).View().APIKeys()); keys != 201 {
			t.Errorf("%d keys, want 201", keys)
		}
	})
}

func TestRaftFSM_WipedNodeCatchesUpBySnapshotAndVotes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3, func(_ int, cfg *cluster.Config) { cfg.TrailingLogs = 0 })
		defer c.Close()
		leader := c.Leader()
		for i := range 100 {
			if _, err := c.Propose(t.Context(), leader, newKey(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Node(leader).Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		lost := (leader + 1) % 3
		c.Kill(lost)
		c.Wipe(lost)
		c.Start(lost)
		c.Eventually("it votes and has all", func() bool {
			return names(c.Node(leader)) == "n0 n1 n2" && len(c.Store(lost).View().APIKeys()) == 100
		})
	})
}
