package cluster

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// Commands whose senders are ready to run when a batch could leave are in it:
// the answers to one batch wake all of its senders at once.
func TestBatcher_Gather_TakesThoseWhoAreReady(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var goroutines, senders sync.WaitGroup
	var batches atomic.Int64
	b := batcher{lanes: 2, spawn: goroutines.Go}
	b.carry = func(batch []*parcel, _ func()) {
		batches.Add(1)
		for _, p := range batch {
			p.deliver(attempt{certainty: done})
		}
	}
	gate := make(chan struct{})
	for range 300 {
		senders.Go(func() {
			<-gate
			if a := b.send(context.Background(), &parcel{}); a.certainty != done {
				t.Errorf("certainty %v", a.certainty)
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
