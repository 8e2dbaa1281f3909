package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// A server that hangs is asked again at once, in the late slots. That is one failure.
func TestProbes_HungProbeCountsOnce(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
		t.Run(timeout.String(), func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				w.step()
				w.cfg.ProbeTimeout, w.cfg.HealthGrace = timeout, time.Millisecond
				w.lead()
				w.create("a")
				w.reach("a", fsm.SandboxRunning, time.Second)
				w.elapse(time.Minute) // it is asked as one that runs
				w.nomad.Hang(func(string, string) bool { return true })
				w.until("the first probe that hangs", time.Minute, func() bool { return w.nomad.Calls("hung") > 0 })
				begin := time.Now()
				w.reach("a", fsm.SandboxError, time.Minute)
				// Three failures, each a timeout long, and the pauses between them.
				took, want := time.Since(begin), 3*timeout+2*w.cfg.HealthInterval/4*9/10
				t.Logf("three failures with a time-out of %s took %s", timeout, took)
				if took < want {
					t.Errorf("three failures with a time-out of %s took %s, less than %s", timeout, took, want)
				}
				w.nomad.Hang(nil)
			})
		})
	}
}

// beside starts a sandbox beside n others that hang as trouble says, and returns how long it
// took.
func beside(t *testing.T, n int, trouble func(w *world)) (took time.Duration) {
	t.Helper()
	inWorld(t, options(), func(w *world) {
		w.scaled()
		trouble(w)
		for i := range n {
			w.create(fmt.Sprintf("hung-%d", i))
		}
		w.elapse(time.Minute)
		begin := time.Now()
		w.create("healthy")
		w.reach("healthy", fsm.SandboxRunning, 5*time.Minute)
		took = time.Since(begin)
	})
	return took
}

// A new leader proves everything that runs again. While it waits for the keys it probes the
// health of the others.
func TestProbes_SecretStoreHangs_TheOthersAreAsked(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		const n = 300
		for i := range n {
			w.create(fmt.Sprintf("hung-%d", i))
		}
		w.create("a")
		for i := range n {
			w.reach(fmt.Sprintf("hung-%d", i), fsm.SandboxRunning, time.Minute)
		}
		w.reach("a", fsm.SandboxRunning, time.Minute)
		w.step()
		w.lead()
		w.secrets.Hang(func(path string) bool { return strings.Contains(path, "hung-") })
		w.elapse(time.Minute)
		w.nomad.Answer("a", false)
		begin := time.Now()
		w.reach("a", fsm.SandboxError, 5*time.Minute)
		took := time.Since(begin)
		t.Logf("beside %d sandboxes whose keys are not to be had one that answers no more is ERROR after %s", n, took)
		if took > 30*time.Second {
			t.Errorf("one that answers no more is ERROR only after %s", took)
		}
		for i := range n {
			if st := w.cluster.State(fmt.Sprintf("hung-%d", i)); st != fsm.SandboxRunning {
				t.Fatalf("hung-%d is %s for want of its key", i, st)
			}
		}
		w.secrets.Hang(nil)
	})
}

func TestProbes_NothingThatHangsStarvesStarts(t *testing.T) {
	t.Parallel()
	for what, trouble := range map[string]func(w *world){
		"servers that are up and hang when they are to prove themselves": func(w *world) {
			w.nomad.HangCalls(func(call, sandbox string) bool { return call == "prove" && strings.HasPrefix(sandbox, "hung-") })
		},
		"keys that the secret store does not give": func(w *world) {
			w.secrets.Hang(func(path string) bool { return strings.Contains(path, "hung-") })
		},
	} {
		t.Run(what, func(t *testing.T) {
			for _, n := range []int{0, 30, 100, 1000} {
				n /= scale()
				took := beside(t, n, trouble)
				t.Logf("a healthy start beside %4d of %s: %s", n, what, took.Round(time.Millisecond))
				if took > 300*time.Millisecond {
					t.Errorf("a healthy start beside %d of %s took %s", n, what, took)
				}
			}
		})
	}
}
