package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// rotate gives the sandbox another key, as the API does.
func (w *world) rotate(id string) *fsm.Sandbox {
	w.Helper()
	sb := w.cluster.Sandbox(id)
	key := fmt.Sprintf("key %d of %s", sb.Rotations+2, id)
	ref, err := w.secrets.Write(w.Context(), fsm.SandboxKeyPath(id), map[string]string{fsm.MemberKey: key})
	if err != nil {
		w.Fatal(err)
	}
	return w.cluster.Must(&fsm.SandboxRotateKeyBody{ID: id, KeyRef: ref, KeyHash: access.Hash(key)}, "u1").Sandbox
}

// expectRotated waits until the sandbox runs with its newest key, and checks that no start had
// none.
func (w *world) expectRotated(id string) {
	w.Helper()
	got := w.reach(id, fsm.SandboxRunning, time.Minute)
	if !w.hasItsKey(id) || w.nomad.Live(id) != 1 || !got.Status.Job.Registered || !got.FormerKeyRef.IsZero() {
		w.Errorf("key %q, %d live, %+v", w.nomad.Key(id), w.nomad.Live(id), got)
	}
}

func TestRotate_RunningSandbox_PausesItsConversationsAndStartsWithTheNewKey(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.nomad.PauseTakes(2 * time.Second)
		w.create("a")
		was := w.reach("a", fsm.SandboxRunning, time.Second)
		w.nomad.Use("a", true)
		w.rotate("a")
		if got := w.cluster.State("a"); got != fsm.SandboxStarting {
			t.Errorf("%s right after the rotation", got)
		}
		w.elapse(time.Second)
		if w.nomad.Calls("stop") != 0 || w.nomad.Live("a") != 1 {
			t.Error("it was stopped before its conversations were paused")
		}
		w.expectRotated("a")
		if n := w.nomad.Calls("pause all"); n != 1 {
			t.Errorf("the conversations were paused %d times", n)
		}
		if now := w.cluster.Sandbox("a"); now.Status.Workspace != was.Status.Workspace ||
			now.Status.Placement.AllocID == was.Status.Placement.AllocID {
			t.Errorf("before %+v\nthen %+v", was.Status, now.Status)
		}
		// A pause and a resume use the version that has the new key.
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, 5*time.Second)
		w.resume("a")
		w.expectRotated("a")
	})
}

func TestRotate_PausedSandbox_ResumesWithTheNewKey(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.pause("a")
		w.reach("a", fsm.SandboxPaused, 5*time.Second)
		w.rotate("a")
		starts := w.nomad.Calls("start")
		w.reach("a", fsm.SandboxPaused, time.Second)
		w.elapse(time.Minute)
		if w.nomad.Calls("start") != starts || w.nomad.Live("a") != 0 {
			t.Error("a rotation started a paused sandbox")
		}
		w.resume("a")
		w.expectRotated("a")
	})
}

// While it is being paused the conversations are still paused with the key that it has.
func TestRotate_WhilePausing(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.nomad.PauseTakes(2 * time.Second)
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.nomad.Use("a", true)
		w.pause("a")
		w.elapse(time.Second)
		w.rotate("a")
		w.reach("a", fsm.SandboxPaused, 10*time.Second)
		if w.nomad.HasBusy("a") {
			t.Error("stopped in the middle of a conversation")
		}
		w.resume("a")
		w.expectRotated("a")
	})
}

// A member of a warm pool was given its key after its start.
func TestRotate_ClaimedMember(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(1)
		w.full(1, time.Second)
		id := w.claim("x").ID
		w.reach(id, fsm.SandboxRunning, time.Second)
		w.rotate(id)
		w.expectRotated(id)
	})
}

// The marker that is written again while it runs is the one that the next start looks for.
func TestRotate_TheWorkspaceStaysIts(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.rotate("a")
		w.expectRotated("a")
		w.elapse(2 * w.cfg.MarkerInterval)
		w.nomad.Fail("a", crash())
		w.reach("a", fsm.SandboxError, time.Second)
		w.resume("a")
		w.reach("a", fsm.SandboxRunning, time.Minute)
	})
}

// Repeated rotations, and leaders that end at any moment between, come to the newest key.
func TestRotate_LeadersThatEnd(t *testing.T) {
	t.Parallel()
	for _, between := range []time.Duration{
		0,
		time.Millisecond,
		50 * time.Millisecond,
		150 * time.Millisecond,
		320 * time.Millisecond,
		500 * time.Millisecond,
	} {
		t.Run(between.String(), func(t *testing.T) {
			inWorld(t, options(), func(w *world) {
				w.create("a")
				w.reach("a", fsm.SandboxRunning, time.Second)
				for range 8 {
					w.rotate("a")
					w.elapse(between)
					w.step()
					w.lead()
				}
				w.expectRotated("a")
			})
		})
	}
}

// The start that was under way when the key was replaced has the former key.
func TestRotate_DuringAStart(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		done := false
		w.nomad.Before(func(call string, _ scheduler.Job) error {
			if call == "start" && !done {
				done = true
				w.rotate("a")
			}
			return nil
		})
		w.create("a")
		w.expectRotated("a")
		if w.nomad.Calls("stop") == 0 {
			t.Error("the start did not have the former key: the test does not show what it should")
		}
	})
}

func TestRotate_TheFormerKeyIsDeletedOnceItRuns(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.secrets.Birth = func() fsm.Birth { return w.cluster.Store.View().Birth() }
		w.create("a")
		w.reach("a", fsm.SandboxRunning, time.Second)
		w.elapse(nomadtest.Grace + w.cfg.CollectInterval)
		w.rotate("a")
		w.expectRotated("a")
		w.elapse(nomadtest.Grace + w.cfg.CollectInterval + time.Second)
		path := fsm.SandboxKeyPath("a")
		if !w.secrets.Deleted(path, 1) || w.secrets.Deleted(path, 2) {
			t.Errorf("deleted: the first key %v, the second %v", w.secrets.Deleted(path, 1), w.secrets.Deleted(path, 2))
		}
		w.delete("a")
		w.gone("a", time.Minute)
	})
}
