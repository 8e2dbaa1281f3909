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

// TestCluster_Chaos_KeepsItsPromises throws everything at a cluster at once:
// crashes, orderly stops, partitions, lost answers, snapshots, handovers. Every
// command that was acknowledged is there once, one whose outcome was unknown at
// most once, one that was refused not at all. BIVOUAC_TEST_SEED repeats a run's
// faults.
func TestCluster_Chaos_KeepsItsPromises(t *testing.T) {
	t.Parallel()
	for run := range histories(2, 8) {
		seed := rand.Uint64()
		if s, err := strconv.ParseUint(os.Getenv("BIVOUAC_TEST_SEED"), 10, 64); err == nil {
			seed = s
		}
		t.Run(fmt.Sprint(run), func(t *testing.T) {
			t.Parallel()
			t.Logf("BIVOUAC_TEST_SEED=%d", seed)
			synctest.Test(t, func(t *testing.T) { chaos(t, seed) })
		})
	}
}

// fate is what Propose said of a command.
type fate int

const (
	acknowledged fate = iota
	unknown
	refused
)

func chaos(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	count := 3 + 2*rng.IntN(2)
	c := clustertest.New(t, count, func(_ int, cfg *cluster.Config) {
		cfg.SnapshotThreshold, cfg.SnapshotInterval, cfg.TrailingLogs = 100, 5*time.Second, 10
	})
	defer c.Close()
	c.Leader()

	w := &writers{c: c, fates: map[string]fate{}}
	ctx, stop := context.WithCancel(t.Context())
	for i := range count {
		for range 2 { // so that commands meet and travel together
			w.wg.Go(func() { w.write(ctx, t, i) })
		}
	}
	down := map[int]bool{}
	for range 60 {
		w.disturb(rng, count, down)
		time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond)
	}
	c.SetFault(nil)
	c.Heal()
	stop()
	w.wg.Wait()
	c.Settle()
	w.check(t)
}

// writers propose and keep account.
type writers struct {
	c    *clustertest.Cluster
	wg   sync.WaitGroup
	next atomic.Int64

	mu    sync.Mutex
	fates map[string]fate // by lookup
}

func (w *writers) write(ctx context.Context, t *testing.T, i int) {
	for ctx.Err() == nil {
		pauseFor(ctx, 60*time.Millisecond)
		if w.c.Node(i) == nil {
			continue
		}
		cmd := newKey(int(w.next.Add(1)))
		_, err := w.c.Propose(ctx, i, cmd)
		f := acknowledged
		switch fsm.CodeOf(err) {
		case "":
		case fsm.CodeOutcomeUnknown:
			f = unknown
		case fsm.CodeNoLeader, fsm.CodeTimeout, fsm.CodeShuttingDown:
			f = refused
		default:
			t.Errorf("Propose: %v", err)
		}
		w.mu.Lock()
		w.fates[cmd.Body.(*fsm.APIKeyCreateBody).Lookup] = f
		w.mu.Unlock()
	}
}

func (w *writers) disturb(rng *rand.Rand, count int, down map[int]bool) {
	c, i := w.c, rng.IntN(count)
	switch what := rng.IntN(8); what {
	case 0, 1:
		if down[i] {
			c.Start(i)
			delete(down, i)
			return
		}
		if what == 0 {
			c.Kill(i)
		} else {
			c.Stop(i)
		}
		down[i] = true
	case 2:
		c.Isolate(i)
	case 3:
		c.Partition([]int{i}, []int{(i + 1) % count})
	case 4:
		c.Heal()
	case 5:
		c.SetFault(func(_, _, call string) bool { return call == "apply" && rand.IntN(3) == 0 })
	case 6:
		c.SetFault(nil)
	case 7:
		if n := c.Node(i); n != nil {
			_ = n.TransferLeadership(context.Background(), "")
		}
	}
	for i := range down { // never leave everything dead for long
		if rng.IntN(3) == 0 {
			c.Start(i)
			delete(down, i)
		}
	}
}

func (w *writers) check(t *testing.T) {
	t.Helper()
	there := map[string]int{}
	for _, k := range w.c.Store(0).View().APIKeys() {
		there[k.Lookup]++
	}
	counts := map[fate]int{}
	for lookup, f := range w.fates {
		counts[f]++
		n := there[lookup]
		switch {
		case n > 1, f == acknowledged && n != 1, f == refused && n != 0:
			t.Errorf("%s: fate %d, there %d times", lookup, f, n)
		}
	}
	t.Logf("%d acknowledged, %d unknown, %d refused", counts[acknowledged], counts[unknown], counts[refused])
	if counts[acknowledged] < 50 {
		t.Errorf("only %d writes were acknowledged", counts[acknowledged])
	}
}
