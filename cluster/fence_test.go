package cluster_test

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

// TestNode_StaleRead_ShowsWhatItsNodeAcknowledged: a follower answers a write that its own store does
// not have yet, and a stale read there waits for it.
func TestNode_StaleRead_ShowsWhatItsNodeAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		slow := c.Follower()
		node := c.Node(slow)
		c.Withhold(slow)
		result, err := node.Propose(t.Context(), put("ada", 1))
		if err != nil {
			t.Fatal(err)
		}
		if c.Store(slow).Index() >= result.Index {
			t.Fatal("the entry was not withheld")
		}
		read := make(chan int, 1)
		go func() {
			v, err := node.View(t.Context(), cluster.Stale)
			if err != nil {
				t.Error(err)
			}
			read <- got(v, "ada")
		}()
		synctest.Wait()
		select {
		case n := <-read:
			t.Fatalf("a stale read shows %d and does not wait for the write", n)
		default:
		}
		c.Withhold(-1)
		if n := <-read; n != 1 {
			t.Errorf("a stale read shows %d, want 1", n)
		}
	})
}

// TestNode_StaleRead_OfANodeThatIsCutOff: its reads wait for a bounded time after the acknowledgement,
// all together, however little patience each has.
func TestNode_StaleRead_OfANodeThatIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		slow := c.Follower()
		node := c.Node(slow)
		if _, err := c.Propose(t.Context(), slow, put("ada", 1)); err != nil {
			t.Fatal(err)
		}
		c.Withhold(slow)
		if _, err := node.Propose(t.Context(), put("ada", 2)); err != nil {
			t.Fatal(err)
		}
		all := cluster.DefaultConfig().ProposeTimeout
		for _, want := range []time.Duration{time.Second, all - time.Second, 0} {
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(want, all))
			begin := time.Now()
			v, err := node.View(ctx, cluster.Stale)
			cancel()
			if took := time.Since(begin); err != nil || took != want || got(v, "ada") != 1 {
				t.Errorf("a stale read took %v, want %v, and shows %d, %v", took, want, got(v, "ada"), err)
			}
		}
		c.Withhold(-1)
		c.Eventually("the node catches up", func() bool { return got(c.Store(slow).View(), "ada") == 2 })
	})
}

// TestNode_ProposeHere_TheStoreHasIt: such a command returns without an error only when its node's store
// has it, also beside stale reads that gave up.
func TestNode_ProposeHere_TheStoreHasIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		slow := c.Follower()
		node := c.Node(slow)
		limit := cluster.DefaultConfig().ProposeTimeout
		propose := func(n int) error {
			result, err := node.ProposeHere(t.Context(), put("ada", n))
			if at := c.Store(slow).Index(); err == nil && at < result.Index {
				t.Errorf("write %d is at index %d, and the store at %d", n, result.Index, at)
			}
			return err
		}
		if err := propose(1); err != nil {
			t.Fatal(err)
		}
		c.Withhold(slow)
		begin := time.Now()
		if err := propose(2); fsm.CodeOf(err) != fsm.CodeOutcomeUnknown || time.Since(begin) < limit {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		if _, err := node.View(t.Context(), cluster.Stale); err != nil {
			t.Error(err)
		}
		done := make(chan error, 1)
		go func() { done <- propose(3) }()
		time.Sleep(limit / 2)
		c.Withhold(-1)
		if err := <-done; err != nil || got(c.Store(slow).View(), "ada") != 3 {
			t.Errorf("the store shows %d: %v", got(c.Store(slow).View(), "ada"), err)
		}
	})
}

// TestReal_StaleRead_AfterAWrite: beside writes through all nodes, each of a hundred stale reads shows
// the write that was acknowledged just before it.
func TestReal_StaleRead_AfterAWrite(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	r.startAll()
	r.put(0, 1)
	done := make(chan struct{})
	var load sync.WaitGroup
	for i := range r.nodes {
		for w := range 2 {
			load.Go(func() {
				for n := 1; ; n++ {
					select {
					case <-done:
						return
					default:
					}
					if _, err := r.nodes[i].node.Propose(t.Context(), put(fmt.Sprintf("load%d-%d", i, w), n)); err != nil {
						t.Errorf("a write beside the reads: %v", err)
						return
					}
				}
			})
		}
	}
	var clients sync.WaitGroup
	for i, n := range r.nodes {
		clients.Go(func() {
			user := fmt.Sprintf("user%d", i)
			for want := range 100 {
				if _, err := n.node.Propose(t.Context(), put(user, want+1)); err != nil {
					t.Error(err)
					return
				}
				v, err := n.node.View(t.Context(), cluster.Stale)
				if err != nil || got(v, user) != want+1 {
					t.Errorf("n%d shows %d after write %d: %v", i, got(v, user), want+1, err)
					return
				}
			}
		})
	}
	clients.Wait()
	close(done)
	load.Wait()
}
