package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// hung are sandboxes named "hung-N"; those named "cut-N" are on a client that is cut off, and all
// others on another.
func onTwoClients() nomadtest.Options {
	o := options()
	o.Client = func(id string) string {
		if strings.HasPrefix(id, "cut-") {
			return "cut-off"
		}
		return "well"
	}
	return o
}

// besideHung starts a sandbox beside n sandboxes whose agent servers accept calls and answer
// none, and returns how long it took.
func besideHung(t *testing.T, n int, prefix string, wereRunning bool) (took time.Duration) {
	t.Helper()
	inWorld(t, onTwoClients(), func(w *world) {
		w.scaled()
		hang := func() { w.nomad.Hang(func(id, _ string) bool { return strings.HasPrefix(id, prefix) }) }
		if !wereRunning {
			hang()
		}
		for i := range n {
			w.create(fmt.Sprintf("%s%d", prefix, i))
		}
		if wereRunning {
			for i := range n {
				w.reach(fmt.Sprintf("%s%d", prefix, i), fsm.SandboxRunning, time.Minute)
			}
			hang()
		}
		w.elapse(time.Minute)
		begin := time.Now()
		w.create("healthy")
		w.reach("healthy", fsm.SandboxRunning, 5*time.Minute)
		took = time.Since(begin)
	})
	return took
}

func TestProbes_HungSandboxesStarveNoStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, prefix string
		wereRunning  bool
		numbers      []int
	}{
		{"images that hang, on the same client", "hung-", false, []int{0, 300, 1000, 3000}},
		{"a client that was cut off", "cut-", true, []int{0, 300, 1000}},
	} {
		t.Run(c.what, func(t *testing.T) {
			for _, n := range c.numbers {
				n /= scale()
				took := besideHung(t, n, c.prefix, c.wereRunning)
				t.Logf("a healthy start beside %4d hung sandboxes (%s): %s", n, c.what, took.Round(time.Millisecond))
				if took > 300*time.Millisecond {
					t.Errorf("a healthy start took %s beside %d hung sandboxes", took, n)
				}
			}
		})
	}
}

func TestProbes_HungSandboxesAreAskedLessAndLess(t *testing.T) {
	t.Parallel()
	inWorld(t, onTwoClients(), func(w *world) {
		for i := range 20 {
			w.create(fmt.Sprintf("cut-%d", i))
		}
		for i := range 20 {
			w.reach(fmt.Sprintf("cut-%d", i), fsm.SandboxRunning, time.Second)
		}
		w.nomad.Hang(func(_, client string) bool { return client == "cut-off" })
		for i := range 20 {
			w.reach(fmt.Sprintf("cut-%d", i), fsm.SandboxError, time.Minute)
		}
		w.elapse(10 * time.Minute)
		before := w.nomad.Calls("hung")
		w.elapse(time.Hour)
		n := w.nomad.Calls("hung") - before
		t.Logf("20 hung sandboxes were asked %d times in an hour", n)
		if n > 20*60 {
			t.Errorf("20 hung sandboxes were asked %d times in an hour", n)
		}
		// The client is back: the first answer makes all others be probed.
		w.nomad.Hang(nil)
		begin := time.Now()
		for i := range 20 {
			w.reach(fmt.Sprintf("cut-%d", i), fsm.SandboxRunning, maxRest)
		}
		t.Logf("all are RUNNING again %s after their client was back", time.Since(begin))
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("all were RUNNING again only %s after their client was back", took)
		}
	})
}

// maxRest is the longest pause between probes of a server that fails.
const maxRest = time.Minute
