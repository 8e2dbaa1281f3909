package scheduler_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// cleared makes a RUNNING sandbox in whose workspace an agent has run `git clean -fdx`: the
// marker is gone, the workspace is the sandbox's.
func (w *world) cleared(id string) {
	w.Helper()
	w.create(id)
	w.reach(id, fsm.SandboxRunning, time.Second)
	w.nomad.EmptyVolume(id)
}

// staysRunning checks that the sandbox is RUNNING for a while and was not stopped.
func (w *world) staysRunning(id string, d time.Duration) {
	w.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); w.elapse(time.Second) {
		if w.cluster.State(id) != fsm.SandboxRunning || w.nomad.Live(id) != 1 || w.nomad.Calls("stop") != 0 {
			w.Fatalf("not running, or stopped (%d stops); %s", w.nomad.Calls("stop"), w.describe())
		}
	}
}

func TestWorkspace_MarkerCleared_TheNextLeaderWritesItAgain(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.cleared("a")
		w.step()
		w.lead()
		w.staysRunning("a", time.Minute)
		// The marker is there for the next check.
		w.nomad.Fail("a", crash())
		w.reach("a", fsm.SandboxError, time.Second)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, 2*time.Second)
	})
}

// A sandbox that failed for another reason is still the one that ran in this placement.
func TestWorkspace_MarkerClearedAndServerSilent_TheNextLeaderWritesItAgain(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.cleared("a")
		w.nomad.Answer("a", false)
		w.reach("a", fsm.SandboxError, 5*time.Minute)
		w.step()
		w.nomad.Answer("a", true)
		w.lead()
		w.reach("a", fsm.SandboxRunning, time.Minute)
		w.staysRunning("a", time.Minute)
	})
}

// The marker is there again before something unexpected ends the task.
func TestWorkspace_MarkerCleared_IsRenewedWhileTheSandboxRuns(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.cleared("a")
		w.staysRunning("a", 10*time.Minute)
		w.nomad.Fail("a", crash())
		w.reach("a", fsm.SandboxError, time.Second)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, 2*time.Second)
	})
}

// lostMarker makes a sandbox in ERROR, because its task was replaced before the marker could be
// written again.
func (w *world) lostMarker(id string) {
	w.Helper()
	w.cleared(id)
	w.nomad.Fail(id, crash())
	w.reach(id, fsm.SandboxError, time.Second)
	w.resume(id)
	w.until("ERROR for the workspace", 5*time.Second, func() bool {
		st := w.cluster.Sandbox(id).Status
		return st.State == fsm.SandboxError && st.Reason == fsm.ReasonWorkspace
	})
}

func TestWorkspace_Accepted_RunsAgainAndOnlyOnce(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]*fsm.SandboxAcceptWorkspaceBody{
		"by its owner": {ID: "a"}, "by an operator": {ID: "a", Operator: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				w.lostMarker("a")
				w.cluster.Must(body, map[bool]string{false: "u1", true: "ops"}[body.Operator])
				w.resume("a")
				w.reach("a", fsm.SandboxRunning, 5*time.Second)
				// The next loss is an ERROR again.
				w.nomad.EmptyVolume("a")
				w.nomad.Fail("a", crash())
				w.reach("a", fsm.SandboxError, time.Second)
				w.resume("a")
				w.reach("a", fsm.SandboxError, 5*time.Second)
				if st := w.cluster.Sandbox("a").Status; st.Reason != fsm.ReasonWorkspace {
					t.Errorf("the acceptance held for a later loss: %+v", st)
				}
			})
		})
	}
}

// A sandbox's owner must not get another sandbox's workspace by accepting it.
func TestWorkspace_AnothersMarker_OnlyAnOperatorAccepts(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		for _, id := range []string{"a", "b"} {
			w.create(id)
			w.reach(id, fsm.SandboxRunning, time.Second)
			w.pause(id)
			w.reach(id, fsm.SandboxPaused, 2*time.Second)
		}
		w.nomad.SwapVolumes("a", "b")
		w.resume("a")
		w.reach("a", fsm.SandboxError, 5*time.Second)
		w.cluster.Must(&fsm.SandboxAcceptWorkspaceBody{ID: "a"}, "u1")
		w.resume("a")
		if sb := w.reach("a", fsm.SandboxError, 5*time.Second); sb.Status.Reason != fsm.ReasonWorkspace {
			t.Errorf("status %+v", sb.Status)
		}
		w.cluster.Must(&fsm.SandboxAcceptWorkspaceBody{ID: "a", Operator: true}, "ops")
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, 5*time.Second)
	})
}
