package cluster

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"bivouac.dev/bivouac/deploy/local/ownprocess"
)

// Calls that are ready to run when a round could start are in it, and not in
// hundreds of rounds of their own.
func TestReadBatcher_Gather_TakesThoseWhoAreReady(t *testing.T) {
	if !ownprocess.Enter(t, "GOMAXPROCS=1") {
		return
	}
	var goroutines, callers sync.WaitGroup
	var runs atomic.Int64
	r := readBatcher{spawn: goroutines.Go, run: func() (uint64, error) { return uint64(runs.Add(1)), nil }}
	gate := make(chan struct{})
	for range 300 {
		callers.Go(func() {
			<-gate
			if index, err := r.join(context.Background(), context.Background()); err != nil || index == 0 {
				t.Errorf("index %d, %v", index, err)
			}
		})
	}
	runtime.Gosched()
	close(gate)
	callers.Wait()
	goroutines.Wait()
	if n := runs.Load(); n > 30 {
		t.Errorf("300 calls made %d rounds", n)
	}
}

// A round starts though calls never stop to come: a new one before each look.
func TestReadBatcher_Gather_EndsUnderAnyLoad(t *testing.T) {
	if !ownprocess.Enter(t, "GOMAXPROCS=1") {
		return
	}
	var goroutines sync.WaitGroup
	var ran atomic.Bool
	r := readBatcher{spawn: goroutines.Go, run: func() (uint64, error) { ran.Store(true); return 1, nil }}
	gone, leave := context.WithCancel(context.Background())
	leave()
	for calls := 0; !ran.Load(); calls++ {
		if calls == 10_000 {
			t.Error("10,000 calls came and no round began")
			break
		}
		_, _ = r.join(gone, context.Background())
		runtime.Gosched()
	}
	goroutines.Wait()
}
