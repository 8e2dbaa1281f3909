package scheduler_test

import (
	"os"
	"runtime"
	"testing"
)

// TestMain gives the tests one processor. All timers of a bubble share one context of the race
// detector, and two processors that run such timers at once break it (golang/go#78156). Unordered
// accesses are found on one processor, too.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}
