package cluster_test

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
)

// saved gives the state that a file made of the snapshot holds.
func saved(t testing.TB, s *fsm.Snapshot) *fsm.View {
	scratch, err := raftstore.NewScratch(t.TempDir())
	if err != nil {
		t.Error(err)
		return s.View()
	}
	defer scratch.Close()
	p, err := snapshotfile.Pack(context.Background(), snapshotfile.Info{Created: time.Now()}, s, scratch)
	if err != nil {
		t.Error(err)
		return s.View()
	}
	r, w := io.Pipe()
	go func() {
		_, err := p.WriteTo(w)
		w.CloseWithError(err)
	}()
	_, trial, err := snapshotfile.Load(r)
	if err != nil {
		t.Error(err)
		return s.View()
	}
	return trial.View
}

// TestNode_StateSnapshot_OfAFollowerThatLags: it waits until it has what was
// acknowledged before the snapshot was asked for.
func TestNode_StateSnapshot_OfAFollowerThatLags(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		follower := c.Follower()
		c.Isolate(follower)
		leader := c.Leader()
		for i := range 50 {
			if _, err := c.Propose(t.Context(), leader, put("ada", i+1)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Node(follower).StateSnapshot(t.Context(), cluster.Linearizable); fsm.CodeOf(err) != fsm.CodeNoLeader {
			t.Errorf("cut off it gave a snapshot: %v", err)
		}
		if s, err := c.Node(follower).StateSnapshot(t.Context(), cluster.Stale); err != nil || got(saved(t, s), "ada") != 0 {
			t.Errorf("a stale one: %v", err)
		}
		c.Heal()
		c.Eventually("the follower gives a snapshot", func() bool {
			s, err := c.Node(follower).StateSnapshot(t.Context(), cluster.Linearizable)
			if err != nil {
				return false
			}
			if n := got(saved(t, s), "ada"); n != 50 {
				t.Errorf("the snapshot has write %d, 50 were acknowledged before it", n)
			}
			return true
		})
	})
}

// TestNode_StateSnapshot_WhileLeadersDie: while writes go on and leaders are
// killed, every snapshot of every node loads and has all that was acknowledged
// before it was asked for.
func TestNode_StateSnapshot_WhileLeadersDie(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Leader()
		ctx, stop := context.WithCancel(t.Context())
		var work sync.WaitGroup
		var acked, proposed, taken, refused atomic.Int64
		work.Go(func() {
			for ctx.Err() == nil {
				n := proposed.Add(1)
				if _, err := c.Propose(ctx, int(n)%3, put("ada", int(n))); err == nil {
					storeMax(&acked, n)
				}
				pauseFor(ctx, 40*time.Millisecond)
			}
		})
		for i := range 3 {
			work.Go(func() {
				for ; ctx.Err() == nil; pauseFor(ctx, 400*time.Millisecond) {
					node, want := c.Node(i), acked.Load()
					if node == nil {
						continue
					}
					s, err := node.StateSnapshot(ctx, cluster.Linearizable)
					if err != nil {
						refused.Add(1)
						continue
					}
					taken.Add(1)
					if v := saved(t, s); int64(got(v, "ada")) < want || v.Index() != s.Index() {
						t.Errorf("n%d: the snapshot at %d has write %d, %d was acknowledged before", i, v.Index(), got(v, "ada"), want)
					}
				}
			})
		}
		for range 3 {
			leader := c.Leader()
			c.Kill(leader)
			pauseFor(ctx, 2*time.Second)
			c.Start(leader)
			pauseFor(ctx, time.Second)
		}
		stop()
		work.Wait()
		t.Logf("%d snapshots, %d refused, %d writes acknowledged", taken.Load(), refused.Load(), acked.Load())
		if taken.Load() < 10 {
			t.Errorf("only %d snapshots", taken.Load())
		}
	})
}
