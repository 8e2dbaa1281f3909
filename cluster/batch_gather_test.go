package cluster

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

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
