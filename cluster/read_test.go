package cluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
	"bivouac.dev/bivouac/fsm"
)

func TestNode_Read_CutOffLeaderRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		old := c.Leader()
		if _, err := c.Propose(t.Context(), old, put("ada", 1)); err != nil {
			t.Fatal(err)
		}
		c.Isolate(old)
		// In the instant of the cut the old leader does not know yet.
		_, err := c.Node(old).View(t.Context(), cluster.Linearizable)
		if fsm.CodeOf(err) != fsm.CodeNoLeader {
			t.Errorf("a cut-off leader answered a linearizable read: %v", err)
		}
		if v, err := c.Node(old).View(t.Context(), cluster.Stale); err != nil || got(v, "ada") != 1 {
			t.Errorf("stale view of a cut-off node: %d, %v", got(v, "ada"), err)
		}
		next := c.Leader()
		if next == old {
			t.Fatal("no new leader")
		}
		if _, err := c.Propose(t.Context(), next, put("ada", 2)); err != nil {
			t.Fatal(err)
		}
		c.Heal()
		v, err := c.Node(old).View(t.Context(), cluster.Linearizable)
		if err != nil || got(v, "ada") != 2 {
			t.Errorf("after healing the old leader reads %d, %v; want 2", got(v, "ada"), err)
		}
	})
}

func TestNode_Read_RefusalSaysWhenToTryAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		c.Leader()
		c.Partition([]int{0}, []int{1}, []int{2})
		for i := range 3 {
			begin := time.Now()
			_, err := c.Node(i).View(t.Context(), cluster.Linearizable)
			var e *fsm.Error
			if !asFSM(err, &e) || e.Code != fsm.CodeNoLeader || e.RetryAfter <= 0 {
				t.Errorf("n%d: got %#v, want CodeNoLeader with RetryAfter", i, err)
			}
			if took, bound := time.Since(begin), cluster.DefaultConfig().ReadTimeout; took > bound+time.Second {
				t.Errorf("n%d: refused after %v, want at most %v", i, took, bound)
			}
		}
	})
}

// TestNode_Read_NeverStaleUnderPartitions writes growing numbers and reads them
// back on all nodes while the network falls apart: no read may show less than
// what was acknowledged before it began, and reads work again after every heal.
// BIVOUAC_TEST_SEED repeats a run.
func TestNode_Read_NeverStaleUnderPartitions(t *testing.T) {
	t.Parallel()
	var reads, refused atomic.Int64
	t.Cleanup(func() {
		t.Logf("%d linearizable reads, none stale, %d refused while cut off", reads.Load(), refused.Load())
	})
	for run := range histories(2, 10) {
		seed := rand.Uint64()
		if s, err := strconv.ParseUint(os.Getenv("BIVOUAC_TEST_SEED"), 10, 64); err == nil {
			seed = s
		}
		t.Run(fmt.Sprint(run), func(t *testing.T) {
			t.Parallel()
			t.Logf("BIVOUAC_TEST_SEED=%d", seed)
			synctest.Test(t, func(t *testing.T) { partitionedReads(t, seed, &reads, &refused) })
		})
	}
}

func partitionedReads(t *testing.T, seed uint64, reads, refused *atomic.Int64) {
	const rounds = 30
	rng := rand.New(rand.NewPCG(seed, 0))
	c := clustertest.New(t, 3)
	defer c.Close()
	c.Leader()
	ctx, stop := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	var acked, proposed atomic.Int64
	for i := range 3 {
		workers.Go(func() { // the writers take turns at the numbers
			for ctx.Err() == nil {
				number := proposed.Add(1)
				if _, err := c.Propose(ctx, i, put(fmt.Sprintf("u%d", i), int(number))); err == nil {
					storeMax(&acked, number)
				}
				pauseFor(ctx, time.Duration(20+i)*time.Millisecond)
			}
		})
		for range 3 {
			workers.Go(func() {
				for ctx.Err() == nil {
					want := acked.Load()
					v, err := c.Node(i).View(ctx, cluster.Linearizable)
					if err != nil {
						refused.Add(1)
						continue
					}
					reads.Add(1)
					newest := max(got(v, "u0"), got(v, "u1"), got(v, "u2"))
					if int64(newest) < want {
						t.Errorf("n%d: stale read: %d, but %d was acknowledged before", i, newest, want)
					}
					pauseFor(ctx, 12*time.Millisecond)
				}
			})
		}
	}
	for range rounds {
		switch rng.IntN(4) {
		case 0:
			c.Isolate(rng.IntN(3))
		case 1:
			c.Partition([]int{0}, []int{1}, []int{2})
		case 2:
			_ = c.Node(rng.IntN(3)).TransferLeadership(ctx, "")
		case 3:
			c.Heal()
		}
		time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
		if rng.IntN(2) == 0 {
			c.Heal()
			time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
		}
	}
	c.Heal()
	c.Leader()
	for i := range 3 {
		if _, err := c.Node(i).View(ctx, cluster.Linearizable); err != nil {
			t.Errorf("n%d: read after healing: %v", i, err)
		}
	}
	stop()
	workers.Wait()
}

// Each of a term's first reads needs an index the store really reaches.
func TestNode_Read_WorksRightAfterEveryElection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		for round := range 40 {
			leader := c.Leader()
			if round%2 == 0 {
				if err := c.Node(leader).TransferLeadership(t.Context(), ""); err != nil {
					t.Logf("transfer: %v", err)
				}
			} else {
				c.Isolate(leader)
				time.Sleep(time.Second)
				c.Heal()
			}
			c.Leader()
			for i := range 3 {
				begin := time.Now()
				if _, err := c.Node(i).View(t.Context(), cluster.Linearizable); err != nil {
					t.Fatalf("round %d: n%d: %v", round, i, err)
				}
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("round %d: n%d took %v", round, i, took)
				}
			}
		}
	})
}

func TestNode_Read_ManyShareFewRounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		follower := c.Follower()
		calls := &atomic.Int64{}
		c.SetFault(func(from, to, call string) bool {
			if call == "index" {
				calls.Add(1)
			}
			return false
		})
		const readers = 1000
		var wg sync.WaitGroup
		for range readers {
			wg.Go(func() {
				if _, err := c.Node(follower).View(t.Context(), cluster.Linearizable); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := calls.Load(); n == 0 || n > 5 {
			t.Errorf("%d reads at one time made %d rounds, want 1 to 5", readers, n)
		}
	})
}

func storeMax(a *atomic.Int64, n int64) {
	for {
		old := a.Load()
		if old >= n || a.CompareAndSwap(old, n) {
			return
		}
	}
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// What a follower says of itself saves the leader a question: with three voters
// a read on a follower is one call, and one on the leader too.
func TestNode_Read_AsksNobodyMoreThanItTakes(t *testing.T) {
	t.Parallel()
	for count, want := range map[int][2]int64{3: {0, 1}, 5: {2, 2}} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := clustertest.New(t, count)
				defer c.Close()
				leader, follower := c.Leader(), c.Follower()
				time.Sleep(5 * time.Second)
				var calls atomic.Int64
				c.SetFault(func(_, _, call string) bool {
					if call == "term" {
						calls.Add(1)
					}
					return false
				})
				for i, node := range []int{follower, leader} {
					calls.Store(0)
					for range 10 {
						if _, err := c.Node(node).View(t.Context(), cluster.Linearizable); err != nil {
							t.Fatal(err)
						}
					}
					if got := calls.Load(); got != 10*want[i] {
						t.Errorf("ten reads on n%d (the leader is n%d) asked %d voters, want %d", node, leader, got, 10*want[i])
					}
				}
				// The one that is asked first is gone: the other is asked, and first from then on.
				c.SetFault(nil)
				for gone := range count {
					if gone == leader {
						continue
					}
					c.Kill(gone)
					for range 3 {
						if _, err := c.Node(leader).View(t.Context(), cluster.Linearizable); err != nil {
							t.Errorf("without n%d: %v", gone, err)
						}
					}
					c.Start(gone)
					c.Eventually("it is back", func() bool { return c.Node(gone).Ready() == nil })
				}
			})
		})
	}
}
