package cluster_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/clustertest"
)

// leads runs Lead on every node and checks that no two functions believe in
// one term, nor run at once on one node.
type leads struct {
	t      *testing.T
	stop   context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	terms  map[uint64]int // node by term
	inside [3]atomic.Int64
	begun  atomic.Int64
}

func leadAll(t *testing.T, c *clustertest.Cluster, linger time.Duration) *leads {
	l := &leads{t: t, terms: map[uint64]int{}}
	ctx, stop := context.WithCancel(t.Context())
	l.stop = stop
	for i := range 3 {
		l.follow(ctx, c.Node(i), i, linger)
	}
	return l
}

func (l *leads) follow(ctx context.Context, n *cluster.Node, i int, linger time.Duration) {
	l.wg.Go(func() {
		err := n.Lead(ctx, func(ctx context.Context, term uint64) error {
			l.begun.Add(1)
			if l.inside[i].Add(1) != 1 {
				l.t.Errorf("n%d: two functions at once", i)
			}
			l.mu.Lock()
			if other, ok := l.terms[term]; ok && other != i {
				l.t.Errorf("term %d is led by n%d and n%d", term, other, i)
			}
			l.terms[term] = i
			l.mu.Unlock()
			if n.Status().AppliedIndex == 0 {
				l.t.Errorf("n%d leads with an empty store", i)
			}
			<-ctx.Done()
			time.Sleep(linger) // undoing takes a while
			l.inside[i].Add(-1)
			return ctx.Err()
		})
		if err != nil {
			l.t.Errorf("n%d: Lead: %v", i, err)
		}
	})
}

func TestNode_Lead_EndsWithTheTermAndBeginsWithTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		l := leadAll(t, c, 0)
		for range 10 {
			leader := c.Leader()
			c.Eventually("the leader's function runs", func() bool { return l.inside[leader].Load() == 1 })
			c.Isolate(leader)
			// The cut-off leader stops within its lease; then nobody leads twice.
			time.Sleep(2 * cluster.DefaultConfig().LeaderLeaseTimeout)
			if l.inside[leader].Load() != 0 {
				t.Errorf("n%d still works for a term it can't hold", leader)
			}
			time.Sleep(2 * time.Second)
			c.Heal()
		}
		l.stop()
		l.wg.Wait()
	})
}

func TestNode_Lead_LostAndWonAgainRunsAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		// Undoing takes so long that terms are lost and won meanwhile.
		l := leadAll(t, c, 3*time.Second)
		for range 20 {
			leader := c.Leader()
			_ = c.Node(leader).TransferLeadership(t.Context(), "")
			time.Sleep(500 * time.Millisecond)
		}
		leader := c.Leader()
		c.Eventually("the last leader's function runs in the last term", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.terms[c.Node(leader).Status().Term] == leader && l.inside[leader].Load() == 1
		})
		l.stop()
		l.wg.Wait()
		if l.begun.Load() < 3 {
			t.Errorf("only %d terms were led", l.begun.Load())
		}
	})
}

func TestNode_Lead_FailedWorkIsStartedAgainWithPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		leader := c.Leader()
		ctx, stop := context.WithCancel(t.Context())
		var runs []time.Time
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Node(leader).Lead(ctx, func(context.Context, uint64) error {
				runs = append(runs, time.Now())
				if len(runs) == 5 {
					return nil // content: not run again in this term
				}
				return errors.New("no luck")
			})
		}()
		time.Sleep(time.Minute)
		stop()
		<-done
		if len(runs) != 5 {
			t.Fatalf("ran %d times, want 5", len(runs))
		}
		for i := 1; i < len(runs); i++ {
			if pause := runs[i].Sub(runs[i-1]); pause < 10*time.Millisecond || pause > 20*time.Second {
				t.Errorf("pause %d was %v", i, pause)
			}
		}
	})
}

func TestNode_Lead_StoppingNodeWaitsForItsWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.New(t, 3)
		defer c.Close()
		l := leadAll(t, c, time.Second)
		leader := c.Leader()
		c.Eventually("the leader's function runs", func() bool { return l.inside[leader].Load() == 1 })
		c.Stop(leader)
		if l.inside[leader].Load() != 0 {
			t.Error("Run returned while the leader's function was running")
		}
		next := c.Leader()
		c.Eventually("the next leader's function runs", func() bool { return l.inside[next].Load() == 1 })
		l.stop()
		l.wg.Wait()
	})
}

// A term that ended because no majority answered within the lease is counted apart from one that
// another node ended.
func TestNode_Lead_CountsLostTermsByReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registries := make([]*prometheus.Registry, 3)
		c := clustertest.New(t, 3, func(i int, cfg *cluster.Config) {
			registries[i] = prometheus.NewRegistry()
			cfg.Registerer = registries[i]
		})
		defer c.Close()
		lost := func(i int) map[string]float64 {
			families, err := registries[i].Gather()
			if err != nil {
				t.Fatal(err)
			}
			out := map[string]float64{}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					if f.GetName() == "bivouac_raft_leadership_lost_total" {
						out[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
					}
				}
			}
			return out
		}
		check := func(i int, want map[string]float64) {
			t.Helper()
			if got := lost(i); !maps.Equal(got, want) {
				t.Errorf("n%d counts %v, want %v", i, got, want)
			}
		}
		first := c.Leader()
		check(first, map[string]float64{"lease": 0, "newer_term": 0, "other": 0})
		if err := c.Node(first).TransferLeadership(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		check(first, map[string]float64{"lease": 0, "newer_term": 1, "other": 0})
		second := c.Leader()
		before := lost(second)
		c.Isolate(second)
		time.Sleep(2 * time.Second)
		before["lease"]++
		check(second, before)
		c.Heal()
	})
}
