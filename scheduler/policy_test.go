package scheduler_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// under gives the installation a policy.
func (w *world) under(p fsm.Policy) {
	w.Helper()
	w.until("the first configuration", time.Second, func() bool { return w.view().Configured() })
	w.cluster.Must(&fsm.InstallationConfigureBody{Installation: fsm.Installation{Policy: p}}, "")
	// Deadlines are checked in a separate term.
	w.step()
	w.lead()
}

func TestPolicy_IdleSandboxIsPaused(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.under(fsm.Policy{IdleTimeout: 10 * time.Minute})
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		begin := time.Now()
		sb := w.reach("a", fsm.SandboxPaused, 11*time.Minute)
		if took := time.Since(begin); took < 10*time.Minute || took > 10*time.Minute+5*time.Second {
			t.Errorf("paused after %s", took)
		}
		if sb.PausedBy != fsm.PausedByIdle {
			t.Errorf("paused by %q", sb.PausedBy)
		}
	})
}

func TestPolicy_UseKeepsItRunning(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// use is done every minute; none stops after an hour.
		use func(w *world, last bool)
	}{
		"a conversation runs": {func(w *world, last bool) { w.nomad.Use("a", !last) }},
		"somebody calls it":   {func(w *world, _ bool) { w.nomad.Use("a", false) }},
		"traffic at the door": {func(w *world, _ bool) {
			w.cluster.Must(&fsm.SandboxTouchBody{Touches: []fsm.Touch{{ID: "a", At: time.Now()}}}, "")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				w.under(fsm.Policy{IdleTimeout: 10 * time.Minute})
				w.create("a")
				w.reach("a", fsm.SandboxRunning, time.Second)
				for i := range 60 {
					c.use(w, i == 59)
					if i%20 == 0 {
						w.step()
						w.lead()
					}
					w.elapse(time.Minute)
					if w.cluster.State("a") != fsm.SandboxRunning {
						t.Fatalf("after %d minutes: %s", i, w.describe())
					}
				}
				w.reach("a", fsm.SandboxPaused, 11*time.Minute)
			})
		})
	}
}

// An agent that works for long does not count as idle, even without calls.
func TestPolicy_AgentAtWork(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.under(fsm.Policy{IdleTimeout: 5 * time.Minute})
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.nomad.Use("a", true)
		w.elapse(3 * time.Hour)
		if w.cluster.State("a") != fsm.SandboxRunning {
			t.Fatal(w.describe())
		}
		touches := w.cluster.Count(fsm.SandboxTouch)
		if touches > 3*60+10 {
			t.Errorf("%d commands for three hours of work", touches)
		}
		w.nomad.Use("a", false)
		w.reach("a", fsm.SandboxPaused, 6*time.Minute)
	})
}

func TestPolicy_MaxRunningAndDeletion_SurviveLeaders(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.under(fsm.Policy{MaxRunning: time.Hour, DeletePausedAfter: 24 * time.Hour})
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.nomad.Use("a", true)
		for range 6 {
			w.elapse(9 * time.Minute)
			w.step()
			w.elapse(30 * time.Second)
			w.lead()
		}
		sb := w.reach("a", fsm.SandboxPaused, 6*time.Minute)
		if sb.PausedBy != fsm.PausedByMaxRunning || w.nomad.HasBusy("a") {
			t.Errorf("paused by %q", sb.PausedBy)
		}
		// There is no leader when the deadline passes.
		w.elapse(23 * time.Hour)
		w.step()
		w.elapse(2 * time.Hour)
		if w.cluster.Sandbox("a") == nil {
			t.Fatal("deleted by nobody")
		}
		w.lead()
		w.until("the sandbox gone", 5*time.Second, func() bool { return w.cluster.Sandbox("a") == nil })
		if w.nomad.Has("a") || !w.nomad.HasVolume("a") {
			t.Errorf("job %v, workspace %v after a policy's deletion", w.nomad.Has("a"), w.nomad.HasVolume("a"))
		}
		w.expectOrphan("a", fsm.OrphanWorkspace, fsm.OrphanPolicy)
		w.nomad.Declare("a")
		w.eventually("its workspace gone", w.cfg.OrphanRetention+time.Hour, func() bool { return !w.nomad.HasVolume("a") })
	})
}

// The workspace that a policy left goes when its user is deleted.
func TestPolicy_APurgeTakesTheWorkspace(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.cluster.Must(&fsm.APIKeyCreateBody{Lookup: "u1u1u1u1u1u1", Hash: strings.Repeat("1", 64), UserID: "u1"}, "operator")
		w.under(fsm.Policy{DeletePausedAfter: time.Hour})
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Minute)
		w.pause("a")
		w.until("the sandbox gone", 2*time.Hour, func() bool { return w.cluster.Sandbox("a") == nil })
		w.elapse(time.Hour)
		if !w.nomad.HasVolume("a") {
			t.Fatal("a policy's deletion took the workspace")
		}
		w.nomad.Declare("a")
		w.cluster.Must(&fsm.UserDeleteBody{UserID: "u1"}, "operator")
		w.until("its workspace gone", 10*time.Minute, func() bool { return !w.nomad.HasVolume("a") })
	})
}

func TestPolicy_ManySandboxes_AskedAtABoundedRate(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		const n = 200
		w.under(fsm.Policy{IdleTimeout: time.Hour})
		for i := range n {
			w.create(fmt.Sprintf("s%d", i))
		}
		for i := range n {
			w.reach(fmt.Sprintf("s%d", i), fsm.SandboxRunning, 5*time.Second)
			w.nomad.Use(fmt.Sprintf("s%d", i), true)
		}
		asks, touches := w.nomad.Calls("server info"), w.cluster.Count(fsm.SandboxTouch)
		w.elapse(10 * time.Minute)
		if got := w.nomad.Calls("server info") - asks; got < 8*n || got > 12*n {
			t.Errorf("%d asks in ten minutes", got)
		}
		if got := w.cluster.Count(fsm.SandboxTouch) - touches; got > 650 {
			t.Errorf("%d commands in ten minutes", got)
		}
	})
}

func TestTouches_AreBatchedAndSurviveRefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := nomadtest.NewCluster(clusterID)
		c.Must(&fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: specID, Template: fsm.Template{
			Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: "/agent", WorkingDir: "project", CPU: 100,
			Memory: 64,
			Ports:  map[string]int{fsm.PortAgentServer: 0},
		}}}}, "operator")
		for i := range 600 {
			c.Create(fmt.Sprintf("s%d", i), specID, 1)
		}
		touches := scheduler.NewTouches(c, nil)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- touches.Run(ctx) }()
		time.Sleep(3 * time.Second)
		used := time.Now()
		c.Refuse(func(fsm.Command) error { return fsm.Errorf(fsm.CodeNoLeader, "no leader") })
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := range 600 {
					touches.Touched(fmt.Sprintf("s%d", i))
				}
			})
		}
		wg.Wait()
		time.Sleep(scheduler.TouchInterval)
		c.Refuse(nil)
		time.Sleep(scheduler.TouchInterval)
		if n := c.Count(fsm.SandboxTouch); n != 2 {
			t.Errorf("%d commands for 600 sandboxes", n)
		}
		for i := range 600 {
			if at := c.Sandbox(fmt.Sprintf("s%d", i)).Status.LastActive; !at.Equal(used.UTC()) {
				t.Fatalf("sandbox s%d used at %s, not %s", i, at, used)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
