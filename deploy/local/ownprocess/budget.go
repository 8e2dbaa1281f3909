package ownprocess

import (
	"runtime"
	"testing"
)

// Step is one step of a hot path with its budget, for one run.
type Step struct {
	Name string
	// Allocs is how many allocations it makes, Bytes how many bytes it allocates at most.
	Allocs, Bytes int
	// Loose is by how many allocations a run may differ whose goroutines and sockets meet by chance.
	Loose int
	Run   func()
}

const (
	// budgetRuns is how often a step runs for one measurement.
	budgetRuns = 100
	// budgetTries bounds the measurements: what else the process does can only add to one.
	budgetTries = 5
)

// CheckBudget fails the test if a step allocates more than its budget, or makes fewer allocations:
// a budget with room would hide the next allocation. The test needs a process of its own, without
// garbage collection and the race detector: both change what is allocated.
func CheckBudget(t *testing.T, steps []Step) {
	t.Helper()
	for _, s := range steps {
		allocs, bytes := s.measure()
		t.Logf("%-40s %4d allocations, %6d bytes (%d and %d)", s.Name, allocs, bytes, s.Allocs, s.Bytes)
		switch {
		case allocs > s.Allocs+s.Loose:
			t.Errorf("%s makes %d allocations, %d more than its budget: do without them, or raise the budget "+
				"and say in the commit what they are spent on", s.Name, allocs, allocs-s.Allocs)
		case allocs < s.Allocs-s.Loose:
			t.Errorf("%s makes %d allocations, %d fewer than its budget: lower the budget", s.Name, allocs, s.Allocs-allocs)
		case bytes > s.Bytes:
			t.Errorf("%s allocates %d bytes, %d more than its budget: do without them, or raise the budget "+
				"and say in the commit what they are spent on", s.Name, bytes, bytes-s.Bytes)
		}
	}
}

// measure returns the least of the measurements.
func (s Step) measure() (allocs, bytes int) {
	for try := range budgetTries {
		a := int(testing.AllocsPerRun(budgetRuns, s.Run))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range budgetRuns {
			s.Run()
		}
		runtime.ReadMemStats(&after)
		b := int((after.TotalAlloc - before.TotalAlloc) / budgetRuns)
		if try == 0 {
			allocs, bytes = a, b
		}
		if allocs, bytes = min(allocs, a), min(bytes, b); allocs <= s.Allocs && bytes <= s.Bytes {
			break
		}
	}
	return allocs, bytes
}
