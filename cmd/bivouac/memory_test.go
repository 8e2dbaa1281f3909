package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"

	"bivouac.dev/bivouac/deploy/local/ownprocess"
)

func TestPacePercent(t *testing.T) {
	for alive, want := range map[uint64]int{
		0: mostPercent, 1 << 20: mostPercent, 16 << 20: 800, 64 << 20: 200, 128 << 20: usualPercent, 10 << 30: usualPercent,
	} {
		if got := pacePercent(alive); got != want {
			t.Errorf("%d bytes alive: %d %%, want %d %%", alive, got, want)
		}
	}
}

// The pace is set at once and follows the heap at each collection.
func TestPaceCollector_FollowsTheHeap(t *testing.T) {
	if !ownprocess.Enter(t, "GOGC=") {
		return
	}
	paceCollector()
	percent := func() int {
		p := debug.SetGCPercent(usualPercent)
		debug.SetGCPercent(p)
		return p
	}
	if p := percent(); p <= usualPercent {
		t.Fatalf("the heap of a test may grow by %d %%", p)
	}
	large := make([]byte, 2*leastGarbage)
	eventually(t, "a large heap has the usual pace", func() error {
		runtime.GC()
		if p := percent(); p != usualPercent {
			return fmt.Errorf("%d %%", p)
		}
		return nil
	})
	runtime.KeepAlive(large)
}
