package cluster_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
)

// Nodes' clocks differ, and the leader learns it from their hellos: while a majority
// is not within a minute of its own, it says so.
func TestNode_ClocksAgree(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		// ahead are the clocks of the leader and the two others.
		ahead [3]time.Duration
		want  string
	}{
		"all right":                      {[3]time.Duration{}, ""},
		"a little apart":                 {[3]time.Duration{0, 59 * time.Second, -59 * time.Second}, ""},
		"one follower ahead":             {[3]time.Duration{0, 2 * time.Minute, 0}, ""},
		"one follower behind":            {[3]time.Duration{0, 0, -time.Hour}, ""},
		"the leader":                     {[3]time.Duration{61 * time.Second, 0, 0}, "is off by -1m1s"},
		"both followers":                 {[3]time.Duration{0, 90 * time.Second, 90 * time.Second}, "is off by 1m30s"},
		"both followers, and apart":      {[3]time.Duration{0, 24 * time.Hour, -24 * time.Hour}, "1 of 3 voters"},
		"all by the same":                {[3]time.Duration{time.Hour, time.Hour, time.Hour}, ""},
		"the leader and one of the rest": {[3]time.Duration{-time.Hour, -time.Hour, 0}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ahead [3]atomic.Int64 // by node
				c := clustertest.New(t, 3, func(i int, cfg *cluster.Config) {
					cfg.Clock = func() time.Time { return time.Now().Add(time.Duration(ahead[i].Load())) }
				})
				defer c.Close()
				c.Settle()
				leader := c.Leader()
				for i := range ahead {
					ahead[(leader+i)%3].Store(int64(test.ahead[i]))
				}
				time.Sleep(3 * time.Second)
				if err := c.Node(leader).ClocksAgree(t.Context()); (err == nil) != (test.want == "") ||
					err != nil && !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want %q", err, test.want)
				}
				for i := range ahead {
					ahead[i].Store(0)
				}
				time.Sleep(3 * time.Second)
				if err := c.Node(leader).ClocksAgree(t.Context()); err != nil {
					t.Errorf("after they were set right: %v", err)
				}
			})
		})
	}
}

// A member that the leader has not heard in its term says nothing for the clocks.
func TestNode_ClocksAgree_OnlyWhoWasHeard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Settle()
		c.SetFault(func(_, _, call string) bool { return call == "hello" })
		former := c.Leader()
		if err := c.Node(former).TransferLeadership(t.Context(), fmt.Sprintf("n%d", (former+1)%3)); err != nil {
			t.Fatal(err)
		}
		c.Eventually("another leads", func() bool { return c.Leader() != former })
		time.Sleep(3 * time.Second)
		if err := c.Node(c.Leader()).ClocksAgree(t.Context()); err == nil {
			t.Error("a leader that heard nobody says that the clocks agree")
		}
		c.SetFault(nil)
		time.Sleep(3 * time.Second)
		if err := c.Node(c.Leader()).ClocksAgree(t.Context()); err != nil {
			t.Errorf("once it has heard them: %v", err)
		}
	})
}
