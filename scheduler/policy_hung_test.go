package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// Servers that are well but do not answer idle questions delay no other sandbox's pause.
func TestPolicy_HungServersHoldUpNobodysPause(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what    string
		numbers []int
		hang    func(w *world)
	}{
		{"servers that do not say what they do", []int{0, 1000}, func(w *world) {
			w.nomad.HangCalls(func(call, sandbox string) bool {
				return call == "server info" &&
					strings.HasPrefix(sandbox, "hung-")
			})
		}},
		{"servers that do not say what runs", []int{300}, func(w *world) {
			w.nomad.HangCalls(func(call, sandbox string) bool { return call == "busy" && strings.HasPrefix(sandbox, "hung-") })
		}},
	} {
		for _, n := range c.numbers {
			n /= scale()
			t.Run(fmt.Sprintf("%d %s", n, c.what), func(t *testing.T) {
				inWorld(t, options(), func(w *world) {
					w.scaled()
					w.under(fsm.Policy{IdleTimeout: 5 * time.Minute})
					for i := range n {
						w.create(fmt.Sprintf("hung-%d", i))
					}
					for i := range n {
						w.reach(fmt.Sprintf("hung-%d", i), fsm.SandboxRunning, time.Minute)
					}
					c.hang(w)
					w.elapse(10 * time.Minute)
					w.create("a")
					w.reach("a", fsm.SandboxRunning, time.Minute)
					begin := time.Now()
					w.eventually("a paused", 30*time.Minute, func() bool { return w.cluster.State("a") == fsm.SandboxPaused })
					took := w.cluster.Sandbox("a").Status.Since.Sub(begin)
					calls := w.nomad.Calls("hung")
					w.elapse(10 * time.Minute)
					asked := w.nomad.Calls("hung") - calls
					t.Logf("beside %d %s an idle sandbox is paused after %s; they were asked %d times in 10 minutes", n, c.what,
						took, asked)
					if took > 5*time.Minute+10*time.Second {
						t.Errorf("beside %d %s an idle sandbox is paused only after %s", n, c.what, took)
					}
					if asked > 4*n {
						t.Errorf("%d %s were asked %d times in 10 minutes", n, c.what, asked)
					}
					for i := range n {
						if st := w.cluster.State(fmt.Sprintf("hung-%d", i)); st != fsm.SandboxRunning {
							t.Fatalf("hung-%d is %s although nobody knows whether it is idle", i, st)
						}
					}
				})
			})
		}
	}
}
