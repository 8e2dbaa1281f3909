package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

// proposeTogether has every node propose many commands at once, half of them
// twice with the same id through two nodes, and checks each answer.
func proposeTogether(t *testing.T, c *clustertest.Cluster, first, count int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range count {
		cmd := newKey(first + i)
		for again := range 1 + i%2 {
			wg.Go(func() {
				result, err := c.Propose(t.Context(), (i+again)%3, cmd)
				if err != nil || result.APIKey == nil || result.APIKey.Lookup != cmd.Body.(*fsm.APIKeyCreateBody).Lookup {
					t.Errorf("command %d: %+v, %v", i, result, err)
				}
			})
		}
	}
	wg.Wait()
}

// commandEntries counts the commands' entries of a node's log, and those with
// the mark of several commands.
func commandEntries(t *testing.T, logs raft.LogStore) (entries, batches int) {
	t.Helper()
	first, err := logs.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := logs.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := logs.GetLog(i, &l); err != nil {
			t.Fatal(err)
		}
		if l.Type == raft.LogCommand {
			entries++
			if bytes.HasPrefix(l.Data, []byte{1}) {
				batches++
			}
		}
	}
	return entries, batches
}

func TestNode_Propose_CommandsThatMeetShareAnEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		leader := c.Leader()
		c.Eventually("the cluster knows batches", func() bool { return c.Store(leader).View().ProtocolVersion() >= 2 })
		const count = 400
		proposeTogether(t, c, 0, count)
		c.Settle()
		if keys := len(c.Store(0).View().APIKeys()); keys != count {
			t.Errorf("%d keys, want %d", keys, count)
		}
		if entries, batches := commandEntries(t, c.Logs(leader)); entries >= count || batches == 0 {
			t.Errorf("%d commands made %d entries, %d of them batches", count, entries, batches)
		}
		// The log can be read again.
		for i := range 3 {
			c.Kill(i)
		}
		c.Settle()
		if keys := len(c.Store(0).View().APIKeys()); keys != count {
			t.Errorf("%d keys after a restart, want %d", keys, count)
		}
	})
}

// A node of an older program would stop at an entry with several commands: until
// every node is known to be new enough there is none.
func TestNode_Propose_NoBatchesBelowTheirVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.NewStopped(t, 3)
		defer c.Close()
		var deaf atomic.Bool
		deaf.Store(true)
		// The leader does not learn what the others know.
		c.SetFault(func(from, to, call string) bool {
			return deaf.Load() && call == "hello" && c.Node(0).Status().Leader == from
		})
		for i := range 3 {
			c.Start(i)
		}
		leader := c.Leader()
		const count = 100
		proposeTogether(t, c, 0, count)
		if v := c.Store(leader).View().ProtocolVersion(); v != 1 {
			t.Fatalf("version %d: the test proves nothing", v)
		}
		if entries, batches := commandEntries(t, c.Logs(leader)); entries < count || batches > 0 {
			t.Errorf("%d commands made %d entries, %d of them batches", count, entries, batches)
		}
		deaf.Store(false)
		c.Eventually("the version rises", func() bool { return c.Store(leader).View().ProtocolVersion() >= 2 })
		proposeTogether(t, c, count, count)
		if _, batches := commandEntries(t, c.Logs(leader)); batches == 0 {
			t.Error("no batches at version 2")
		}
		c.Settle()
		if keys := len(c.Store(0).View().APIKeys()); keys != 2*count {
			t.Errorf("%d keys, want %d", keys, 2*count)
		}
	})
}

// Commands of many callers wait for each other in a batch, but not longer than
// each caller wants to.
func TestNode_Propose_ACallerThatLeavesDisturbsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		leader := c.Leader()
		c.Eventually("the cluster knows batches", func() bool { return c.Store(leader).View().ProtocolVersion() >= 2 })
		var wg sync.WaitGroup
		var left, unknown atomic.Int64
		const count = 300
		for i := range count {
			wg.Go(func() {
				ctx, cancel := t.Context(), func() {}
				if i%3 == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(i)*20*time.Microsecond)
				}
				defer cancel()
				_, err := c.Propose(ctx, i%3, newKey(i))
				switch {
				case err == nil:
				case i%3 != 0:
					t.Errorf("command %d: %v", i, err)
				case fsm.CodeOf(err) == fsm.CodeTimeout:
					left.Add(1)
				case fsm.CodeOf(err) == fsm.CodeOutcomeUnknown:
					unknown.Add(1)
				default:
					t.Errorf("command %d, left alone: %v", i, err)
				}
			})
		}
		wg.Wait()
		c.Settle()
		keys := int64(len(c.Store(0).View().APIKeys()))
		if keys > count-left.Load() || keys < count-left.Load()-unknown.Load() {
			t.Errorf("%d keys of %d commands, %d refused, %d unknown", keys, count, left.Load(), unknown.Load())
		}
		if left.Load()+unknown.Load() == 0 {
			t.Error("nobody left: the test proves nothing")
		}
		t.Log(fmt.Sprint(left.Load(), " left before, ", unknown.Load(), " after"))
	})
}
