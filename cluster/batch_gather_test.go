package cluster

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster/raftfsm"
	"bivouac.dev/bivouac/deploy/local/ownprocess"
)

// Commands whose senders are ready to run when a batch could leave are in it:
// the answers to one batch wake all of its senders at once.
func TestBatcher_Gather_TakesThoseWhoAreReady(t *testing.T) {
	if !ownprocess.Enter(t, "GOMAXPROCS=1") {
		return
	}
	var goroutines, senders sync.WaitGroup
	var batches atomic.Int64
	b := batcher{maxInFlight: 2, spawn: goroutines.Go}
	b.run = func(batch []*proposal, _ func()) {
		batches.Add(1)
		for _, p := range batch {
			p.resolve(outcome{status: committed})
		}
	}
	gate := make(chan struct{})
	for range 300 {
		senders.Go(func() {
			<-gate
			if a := b.send(context.Background(), &proposal{}); a.status != committed {
				t.Errorf("certainty %v", a.status)
			}
		})
	}
	runtime.Gosched()
	close(gate)
	senders.Wait()
	goroutines.Wait()
	if n := batches.Load(); n > 30 {
		t.Errorf("300 commands made %d batches", n)
	}
}

// BenchmarkBatcher_Gather measures the commands of a batch when each of 64 proposers waits for its
// answer before it proposes again. A batch costs one disk sync. On two cores a batch has 54
// commands; with gatherYields 0 it has 32, and a command takes 1.3 to 2 times as long.
func BenchmarkBatcher_Gather(b *testing.B) {
	const proposers = 64
	disk, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	defer disk.Close()
	var goroutines, senders sync.WaitGroup
	var batches atomic.Int64
	batched := batcher{maxInFlight: 1, spawn: goroutines.Go}
	batched.run = func(batch []*proposal, _ func()) {
		batches.Add(1)
		if _, err := disk.Write(make([]byte, 128*len(batch))); err != nil {
			b.Error(err)
		}
		if err := disk.Sync(); err != nil {
			b.Error(err)
		}
		for _, p := range batch {
			p.resolve(outcome{status: committed})
		}
	}
	var next atomic.Int64
	b.ResetTimer()
	for range proposers {
		senders.Go(func() {
			for next.Add(1) <= int64(b.N) {
				batched.send(context.Background(), &proposal{})
			}
		})
	}
	senders.Wait()
	goroutines.Wait()
	b.ReportMetric(float64(b.N)/float64(batches.Load()), "commands/batch")
}

// TestBatcher_Batches: never more than its lanes at a time, in order, within the
// bounds, one leader's at a time, and none lost.
func TestBatcher_Batches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		var mu sync.Mutex
		var order []int
		var sizes []int
		busy, most := 0, 0
		b := batcher{maxInFlight: 2, spawn: goroutines.Go}
		b.run = func(batch []*proposal, release func()) {
			mu.Lock()
			busy++
			most = max(most, busy)
			bytes, before := 0, len(order)
			for _, p := range batch {
				order = append(order, p.slot)
				if p.slot != batch[0].slot+len(order)-before-1 {
					t.Errorf("slot %d out of order", p.slot)
				}
				bytes += len(p.data)
				if p.leader != batch[0].leader {
					t.Error("commands for two leaders in one batch")
				}
			}
			if len(batch) > 1 && bytes > raftfsm.MaxBatchBytes || len(batch) > raftfsm.MaxBatch {
				t.Errorf("%d commands, %d bytes", len(batch), bytes)
			}
			sizes = append(sizes, len(batch))
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
			busy--
			mu.Unlock()
			release()
			release() // more than once is no harm
			time.Sleep(5 * time.Millisecond)
			for _, p := range batch {
				p.resolve(outcome{status: committed, index: uint64(p.slot)})
			}
		}
		one, other := &leadership{}, &leadership{}
		const count = 2000
		answers := make(chan slotOutcome, count)
		for i := range count {
			p := &proposal{data: make([]byte, 1+i%700), slot: i, done: answers, leader: one}
			if i > 1500 {
				p.leader = other
			}
			if i == 700 {
				p.data = make([]byte, raftfsm.MaxBatchBytes+1)
			}
			b.add(p)
		}
		goroutines.Wait()
		if len(order) != count || most != 2 || len(sizes) > 20 {
			t.Errorf("%d carried, %d at a time, batches %v", len(order), most, sizes)
		}
		for range count {
			if d := <-answers; d.index != uint64(d.slot) {
				t.Errorf("slot %d got the answer of %d", d.slot, d.index)
			}
		}
	})
}

// slowBatcher has one lane, on which each batch takes a minute.
func slowBatcher(spawn func(func())) *batcher {
	return &batcher{maxInFlight: 1, spawn: spawn, run: func(batch []*proposal, _ func()) {
		time.Sleep(time.Minute)
		for _, p := range batch {
			p.resolve(outcome{status: committed})
		}
	}}
}

func TestBatcher_Send_WhoGivesUpKnowsWhetherItLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		b := slowBatcher(goroutines.Go)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var callers sync.WaitGroup
		var first, second outcome
		callers.Go(func() { first = b.send(ctx, &proposal{}) })
		synctest.Wait()
		callers.Go(func() { second = b.send(ctx, &proposal{}) })
		callers.Wait()
		if first.status != maybeCommitted || second.status != notCommitted {
			t.Errorf("on its way: %v; still waiting: %v", first.status, second.status)
		}
		if patient := b.send(t.Context(), &proposal{}); patient.status != committed {
			t.Errorf("the next: %v", patient.status)
		}
		goroutines.Wait()
	})
}

func TestBatcher_Send_EndsWithTheLeaderItIsFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		b := slowBatcher(goroutines.Go)
		begin := time.Now()
		l := &leadership{}
		l.ctx, l.end = context.WithTimeout(context.Background(), time.Second)
		defer l.end()
		if lost := b.send(t.Context(), &proposal{leader: l}); lost.status != maybeCommitted ||
			time.Since(begin) != time.Second {
			t.Errorf("%v after %v", lost.status, time.Since(begin))
		}
		goroutines.Wait()
	})
}
