package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// leastGarbage is how much the heap may grow before a collection, however small it is.
	// Without it a node with little state collects dozens of times a second under load, which
	// takes a tenth of its time.
	leastGarbage = 128 << 20
	// usualPercent is Go's default growth, in percent of the live heap.
	usualPercent = 100
	// mostPercent bounds the setting for a nearly empty heap.
	mostPercent = 2000
)

// paceCollector adjusts GOGC after each collection: the next one runs when the heap has
// doubled, but not before it has grown by leastGarbage. If GOGC is set in the environment, it
// does nothing.
func paceCollector() {
	if os.Getenv("GOGC") != "" {
		return
	}
	followHeap(new(generation))
}

// generation becomes garbage at each collection; its finalizer reports the collection's end.
type generation struct{ _ [16]byte }

func followHeap(g *generation) {
	alive := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(alive)
	debug.SetGCPercent(pacePercent(alive[0].Value.Uint64()))
	runtime.SetFinalizer(g, followHeap)
}

// pacePercent returns the GOGC at which a heap grows by leastGarbage.
func pacePercent(alive uint64) int {
	return int(min(max(usualPercent, leastGarbage*100/max(alive, 1)), mostPercent))
}
