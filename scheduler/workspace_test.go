package scheduler_test

import (
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

func TestWorkspace_KeptOverTwentyPauses(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		first := w.reach("a", fsm.SandboxRunning, time.Second)
		if first.Status.Workspace == "" || first.Status.Workspace == fsm.WorkspaceUnmarked {
			t.Fatalf("no marker: %+v", first.Status)
		}
		for i := range 20 {
			w.pause("a")
			w.reach("a", fsm.SandboxPaused, 2*time.Second)
			if i%2 == 0 {
				w.nomad.CollectGarbage()
			}
			w.resume("a")
			if sb := w.reach("a", fsm.SandboxRunning, 2*time.Second); sb.Status.Workspace != first.Status.Workspace {
				t.Fatalf("the marker changed: %+v", sb.Status)
			}
		}
	})
}

func TestWorkspace_EmptyOrAnothers_IsAnErrorAndStopped(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(w *world){
		"empty":     func(w *world) { w.nomad.EmptyVolume("a") },
		"another's": func(w *world) { w.nomad.SwapVolumes("a", "b") },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				for _, id := range []string{"a", "b"} {
					w.create(id)
					w.reach(id, fsm.SandboxRunning, time.Second)
				}
				w.pause("a")
				w.reach("a", fsm.SandboxPaused, 2*time.Second)
				act(w)
				w.resume("a")
				sb := w.reach("a", fsm.SandboxError, 2*time.Second)
				if sb.Status.Reason != fsm.ReasonWorkspace || !strings.Contains(sb.Status.Detail, ".bivouac/sandbox") {
					t.Errorf("status %+v", sb.Status)
				}
				w.until("the job stopped", 5*time.Second, func() bool { return w.nomad.Live("a") == 0 })
				// The result is the same however often it is tried, and by any leader.
				w.step()
				w.lead()
				w.resume("a")
				w.until("tried again", time.Minute, func() bool { return w.nomad.Live("a") == 1 })
				w.reach("a", fsm.SandboxError, 2*time.Second)
				w.until("the job stopped again", 5*time.Second, func() bool { return w.nomad.Live("a") == 0 })
				w.elapse(10 * time.Minute)
				if st := w.cluster.Sandbox("a").Status; st.Reason != fsm.ReasonWorkspace || w.nomad.Live("a") != 0 {
					t.Errorf("not at rest: %+v", st)
				}
				w.delete("a")
				w.gone("a", 2*time.Second)
			})
		})
	}
}

// While the ERROR can't be written to the row the job stays: once it is stopped, a pass over the
// old row would plan a start.
func TestWorkspace_ErrorHeldUp_IsNotStartedAgain(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.emptied("a")
		starts := w.nomad.Calls("start")
		w.cluster.Refuse(refuseError)
		w.resume("a")
		w.elapse(5 * time.Second)
		if w.nomad.Live("a") != 1 || w.cluster.State("a") != fsm.SandboxStarting {
			t.Error("stopped before it was said why;", w.describe())
		}
		w.cluster.Refuse(nil)
		w.atRestWithoutWorkspace("a", starts+1)
	})
}

// A leader that ends between the ERROR and the stop leaves the stop to the next.
func TestWorkspace_LeaderEndsBeforeTheStop_TheNextStops(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.emptied("a")
		starts := w.nomad.Calls("start")
		w.nomad.Before(func(call string, _ scheduler.Job) error {
			if call == "stop" {
				return fsm.Errorf(fsm.CodeScheduler, "cut off")
			}
			return nil
		})
		w.resume("a")
		w.reach("a", fsm.SandboxError, 2*time.Second)
		w.step()
		w.nomad.Before(nil)
		w.lead()
		w.atRestWithoutWorkspace("a", starts+1)
	})
}

// emptied makes a sandbox that is paused and has lost its workspace.
func (w *world) emptied(id string) {
	w.Helper()
	w.create(id)
	w.reach(id, fsm.SandboxRunning, time.Second)
	w.pause(id)
	w.reach(id, fsm.SandboxPaused, 2*time.Second)
	w.nomad.EmptyVolume(id)
}

// atRestWithoutWorkspace checks that the sandbox ends in ERROR for its workspace, is stopped, and
// was started at most that often.
func (w *world) atRestWithoutWorkspace(id string, starts int) {
	w.Helper()
	w.reach(id, fsm.SandboxError, 5*time.Second)
	w.until("the job stopped", 5*time.Second, func() bool { return w.nomad.Live(id) == 0 })
	w.elapse(time.Minute)
	sb := w.cluster.Sandbox(id)
	if sb.State() != fsm.SandboxError || sb.Status.Reason != fsm.ReasonWorkspace || w.nomad.Live(id) != 0 {
		w.Error("not at rest;", w.describe())
	}
	if n := w.nomad.Calls("start"); n != starts {
		w.Errorf("%d starts, want %d", n, starts)
	}
}

// refuseError makes the cluster refuse observations of an ERROR.
func refuseError(c fsm.Command) error {
	if b, ok := c.Body.(*fsm.SandboxObserveBody); ok && b.Observations[0].Status.State == fsm.SandboxError {
		return fsm.Errorf(fsm.CodeNoLeader, "no leader")
	}
	return nil
}

// A marker that a user deletes while the sandbox runs is written again at the pause.
func TestWorkspace_MarkerClearedByTheUser_IsNoLoss(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.nomad.EmptyVolume("a")
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, 2*time.Second)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, 2*time.Second)
	})
}

// A marker whose sandbox was not yet shown as RUNNING is written again.
func TestWorkspace_FormerLeaderWroteTheMarker_IsFine(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.cluster.Refuse(func(c fsm.Command) error {
			if b, ok := c.Body.(*fsm.SandboxObserveBody); ok && b.Observations[0].Status.State == fsm.SandboxRunning {
				return fsm.Errorf(fsm.CodeNoLeader, "no leader")
			}
			return nil
		})
		w.create("a")
		w.until("the marker", time.Second, func() bool { return w.nomad.Calls("upload") > 0 })
		w.step()
		w.cluster.Refuse(nil)
		w.lead()
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, 2*time.Second)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, 2*time.Second)
	})
}

func TestWorkspace_ServerWithoutFiles_IsNotMarked(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.nomad.NoFiles()
		w.create("a")
		if sb := w.reach("a", fsm.SandboxRunning, time.Second); sb.Status.Workspace != fsm.WorkspaceUnmarked {
			t.Errorf("status %+v", sb.Status)
		}
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, 2*time.Second)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, 2*time.Second)
	})
}

func TestPause_ConversationsArePausedFirst(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.nomad.Use("a", true)
		w.nomad.PauseTakes(3 * time.Second)
		w.pause("a")
		w.elapse(2 * time.Second)
		if w.nomad.Live("a") != 1 || w.nomad.Calls("stop") != 0 {
			t.Error("stopped while its conversation was being paused")
		}
		w.until("paused politely", 2*time.Second, func() bool { return w.nomad.Live("a") == 0 || !w.nomad.HasBusy("a") })
		w.reach("a", fsm.SandboxPaused, 2*time.Second)
		if n := w.nomad.Calls("pause all"); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

func TestPause_GoesOnWhateverTheServerSays(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(w *world){
		"takes for ever": func(w *world) { w.nomad.PauseTakes(time.Hour) },
		"silent":         func(w *world) { w.nomad.Answer("a", false) },
		"sealed":         func(w *world) { w.secrets.Seal(true) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				w.create("a")
				w.reach("a", fsm.SandboxRunning, time.Second)
				act(w)
				begin := time.Now()
				w.pause("a")
				w.reach("a", fsm.SandboxPaused, time.Minute)
				if took := time.Since(begin); took > w.cfg.PauseGrace+2*time.Second {
					t.Errorf("paused after %s", took)
				}
				w.secrets.Seal(false)
			})
		})
	}
}

func TestScheduler_NobodyToAsk_NomadsWordIsEnough(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.cluster.Must(&fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "mock", Position: 1, Template: fsm.Template{
			Driver: fsm.DriverMock, WorkingDir: "project", CPU: 1, Memory: 10, Readiness: fsm.ReadinessAllocation,
			Ports: map[string]int{fsm.PortAgentServer: 0},
		}}}}, "operator")
		w.cluster.Create("m", "mock", 1)
		w.reach("m", fsm.SandboxRunning, time.Second)
		w.cluster.Must(&fsm.SandboxPauseBody{ID: "m"}, "u1")
		w.reach("m", fsm.SandboxPaused, time.Second)
		if w.nomad.Calls("health")+w.nomad.Calls("pause all") != 0 {
			t.Error("an agent server was asked")
		}
		w.delete("m")
		w.until("gone", time.Second, func() bool { return w.cluster.Sandbox("m") == nil })
	})
}
