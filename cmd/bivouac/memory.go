package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// leastGarbage is how much a node's heap may grow before it is collected,
	// however little is in it. A node with little state would collect dozens of
	// times a second under load, a tenth of its time.
	leastGarbage = 128 << 20
	// usualPercent is the growth, in percent of what is alive, that Go itself has
	// for its default.
	usualPercent = 100
	// mostPercent bounds the setting for a heap with next to nothing in it.
	mostPercent = 2000
)

// paceCollector keeps the collector's pace: it runs when the heap has doubled, as
// usual, but not before leastGarbage has come. Whoever sets GOGC has decided
// otherwise. The pace follows what is alive after each collection.
func paceCollector() {
	if os.Getenv("GOGC") != "" {
		return
	}
	followHeap(new(generation))
}

// generation becomes garbage once a collection; its finalizer is how the end of
// one is heard of.
type generation struct{ _ [16]byte }

func followHeap(g *generation) {
	alive := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(alive)
	debug.SetGCPercent(pacePercent(alive[0].Value.Uint64()))
	runtime.SetFinalizer(g, followHeap)
}

// pacePercent gives the growth at which leastGarbage have come to a heap.
func pacePercent(alive uint64) int {
	return int(min(max(usualPercent, leastGarbage*100/max(alive, 1)), mostPercent))
}
