package cluster_test

import (
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

// TestNode_AppendEvents_FullDisksStopEventsAlone: while a voter has no room events are refused before the
// log, and everything else goes on; a node that lacks events fetches none to a full disk.
func TestNode_AppendEvents_FullDisksStopEventsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		free := make([]atomic.Uint64, 3)
		c := clustertest.New(t, 3, func(i int, cfg *cluster.Config) {
			cfg.Free = func() (uint64, error) { return free[i].Load(), nil }
		})
		defer c.Close()
		room := func(bytes uint64, nodes ...int) {
			for _, i := range nodes {
				free[i].Store(bytes)
			}
			time.Sleep(3 * time.Second) // a node's look, and the leader's at the node
		}
		room(math.MaxInt64, 0, 1, 2)
		k := newTalking(t, c, "c1", "c2")
		ids := numbered("e", 3)
		k.add(c.Leader(), "c1", ids...)
		for _, full := range [][]int{{c.Leader()}, {c.Follower()}, {0, 1, 2}} {
			room(cluster.EventsRoom-1, full...)
			for i := range 3 {
				before := c.Node(c.Leader()).Status().CommitIndex
				_, err := k.appendTo(t.Context(), i, "c1", cluster.NoPosition, "x")
				if fsm.CodeOf(err) != fsm.CodeNoRoom || !strings.Contains(err.Error(), k.Node(full[0]).Status().Node) {
					t.Errorf("full %v: events through n%d: %v", full, i, err)
				}
				if after := c.Node(c.Leader()).Status().CommitIndex; after != before {
					t.Errorf("full %v: the log went from %d to %d", full, before, after)
				}
				if _, err := k.appendTo(t.Context(), i, "c1", cluster.NoPosition, ids[1]); err != nil {
					t.Errorf("full %v: what is there is refused: %v", full, err)
				}
			}
			k.propose("ada", &fsm.SandboxPauseBody{ID: "sb-c2"})
			k.propose("ada", &fsm.SandboxResumeBody{ID: "sb-c2"})
			for _, m := range c.Node(c.Leader()).Members(t.Context()) {
				if i := int(m.Name[1] - '0'); m.EventsFull != (free[i].Load() < cluster.EventsRoom) {
					t.Errorf("full %v: %s is full: %v", full, m.Name, m.EventsFull)
				}
			}
			if len(full) == 3 {
				k.propose("ada", &fsm.ConversationDeleteBody{ID: "c2"})
				k.have("c2", nil, 0, 1, 2)
			}
			room(math.MaxInt64, 0, 1, 2)
		}
		away := c.Follower()
		k.emptied(away, map[string]bool{k.Node(away).Status().Node: true})
		free[away].Store(1)
		time.Sleep(2 * time.Second)
		c.SetFault(nil)
		time.Sleep(time.Minute)
		if lacks := k.Node(away).Status().EventsMissing; lacks <= 0 {
			t.Errorf("with a full disk it fetched events: %d missing", lacks)
		}
		room(math.MaxInt64, away)
		k.have("c1", ids, 0, 1, 2)
	})
}
