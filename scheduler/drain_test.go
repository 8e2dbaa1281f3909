package scheduler_test

import (
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// paused waits until the sandbox is paused for its client, with desired state running.
func (w *world) pausedByClient(id, words string) {
	w.Helper()
	sb := w.reach(id, fsm.SandboxPaused, time.Minute)
	if sb.Desired != fsm.DesiredRunning || sb.Status.Reason != fsm.ReasonClient ||
		!strings.Contains(sb.Status.Detail, words) {
		w.Errorf("%s wants %s: %+v", id, sb.Desired, sb.Status)
	}
}

// A drain pauses what runs on the client, gracefully. What is resumed meanwhile shows what it
// waits for. All of it is resumed when the client takes jobs again. Other sandboxes are not
// affected, and no user's pause is undone.
func TestDrain_PausesGracefullyAndResumes(t *testing.T) {
	t.Parallel()
	inWorld(t, onTwoClients(), func(w *world) {
		for _, id := range []string{"cut-a", "cut-b", "cut-c", "else"} {
			w.create(id)
			w.reach(id, fsm.SandboxRunning, time.Second)
		}
		for _, id := range []string{"cut-b", "cut-c"} {
			w.pause(id)
			w.reach(id, fsm.SandboxPaused, time.Minute)
		}
		w.nomad.Use("cut-a", true)
		w.nomad.PauseTakes(3 * time.Second)
		if n := w.nomad.Calls("pause all and resume"); n != 0 {
			t.Errorf("%d pauses of a user let runs go on by themselves", n)
		}
		asked, stops := w.nomad.Calls("pause all"), w.nomad.Calls("stop")
		w.nomad.Drain("cut-off", scheduler.ClientDraining)
		w.elapse(2 * time.Second)
		if w.nomad.Live("cut-a") != 1 || w.nomad.Calls("stop") != stops {
			t.Error("stopped while its conversation was being paused")
		}
		if st := w.cluster.Sandbox("cut-a").Status; st.State != fsm.SandboxRunning ||
			!strings.Contains(st.Detail, "is draining; the sandbox is being paused") {
			t.Errorf("while it is paused: %+v", st)
		}
		w.pausedByClient("cut-a", "its client cut-off is draining")
		if n := w.nomad.Calls("pause all") - asked; n != 1 {
			t.Errorf("asked to pause %d times", n)
		}
		if n := w.nomad.Calls("pause all and resume"); n != 1 {
			t.Errorf("a drain lets runs go on by themselves %d times", n)
		}
		w.resume("cut-b")
		w.pausedByClient("cut-b", "its client cut-off is draining")
		// The drain is over, the client does not take jobs yet, and there is another leader.
		w.nomad.Drain("cut-off", scheduler.ClientClosed)
		w.step()
		w.lead()
		starts := w.nomad.Calls("start")
		w.elapse(time.Hour)
		w.pausedByClient("cut-a", "its client cut-off is closed")
		if n := w.nomad.Calls("start") - starts; n != 0 {
			t.Errorf("%d starts on a client that takes no jobs", n)
		}
		if sb := w.cluster.Sandbox("else"); sb.State() != fsm.SandboxRunning {
			t.Errorf("on another client: %+v", sb.Status)
		}
		w.nomad.Drain("cut-off", "")
		for _, id := range []string{"cut-a", "cut-b"} {
			w.reach(id, fsm.SandboxRunning, 2*time.Second)
		}
		if sb := w.cluster.Sandbox("cut-c"); sb.State() != fsm.SandboxPaused || sb.Status.Reason != "" {
			t.Errorf("what a user paused: %+v", sb.Status)
		}
		// A second drain is graceful, too.
		asked = w.nomad.Calls("pause all")
		w.nomad.Drain("cut-off", scheduler.ClientDraining)
		w.pausedByClient("cut-a", "is draining")
		w.pausedByClient("cut-b", "is draining")
		if n := w.nomad.Calls("pause all") - asked; n != 2 {
			t.Errorf("the second time %d were asked to pause", n)
		}
	})
}

// What runs on a client that is only closed continues until it stops.
func TestDrain_ClosedClient_RunsOnAndSaysWhyNothingResumes(t *testing.T) {
	t.Parallel()
	inWorld(t, onTwoClients(), func(w *world) {
		w.create("cut-a")
		w.reach("cut-a", fsm.SandboxRunning, time.Second)
		w.nomad.Drain("cut-off", scheduler.ClientClosed)
		w.elapse(time.Hour)
		w.reach("cut-a", fsm.SandboxRunning, time.Second)
		w.pause("cut-a")
		w.reach("cut-a", fsm.SandboxPaused, time.Minute)
		w.resume("cut-a")
		w.pausedByClient("cut-a", "its client cut-off is closed; the sandbox is resumed when")
		w.nomad.Drain("cut-off", "")
		w.reach("cut-a", fsm.SandboxRunning, 2*time.Second)
	})
}

// A drain whose deadline came without a leader, or before the pause was over.
func TestDrain_Deadline(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(w *world){
		"while nobody led": func(w *world) {
			w.step()
			w.nomad.Drain("cut-off", scheduler.ClientDraining)
			w.nomad.Evict("cut-off")
			w.nomad.Drain("cut-off", scheduler.ClientClosed)
			w.lead()
		},
		"during the pause": func(w *world) {
			w.nomad.PauseTakes(time.Hour)
			w.nomad.Drain("cut-off", scheduler.ClientDraining)
			w.elapse(time.Second)
			w.nomad.Evict("cut-off")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, onTwoClients(), func(w *world) {
				w.create("cut-a")
				w.reach("cut-a", fsm.SandboxRunning, time.Second)
				act(w)
				w.pausedByClient("cut-a", "its client cut-off is")
				w.nomad.Drain("cut-off", "")
				w.reach("cut-a", fsm.SandboxRunning, 2*time.Second)
			})
		})
	}
}

// The members of a warm pool on a drained client are replaced on other clients.
func TestDrain_MembersAreReplacedElsewhere(t *testing.T) {
	t.Parallel()
	o, home := options(), map[string]string{}
	client := "one"
	o.Client = func(id string) string {
		if home[id] == "" {
			home[id] = client
		}
		return home[id]
	}
	inWorld(t, o, func(w *world) {
		w.pool(3)
		w.full(3, 2*time.Second)
		client = "two"
		w.nomad.Drain("one", scheduler.ClientDraining)
		w.until("three members on the other client", 10*time.Second, func() bool {
			ready := w.ready()
			for _, m := range ready {
				if w.cluster.Sandbox(m).Status.Placement.NodeID != "two" {
					return false
				}
			}
			return len(ready) == 3
		})
		if n := w.nomad.Calls("pause all"); n != 0 {
			t.Errorf("%d members were asked to pause conversations", n)
		}
	})
}

// A member on a client that is being drained is not given to a user while it stops: the user's
// sandbox would be paused at once.
func TestDrain_MemberThatStopsIsNotClaimed(t *testing.T) {
	t.Parallel()
	o, home, client := options(), map[string]string{}, "one"
	o.StopAfter = 10 * time.Second
	o.Client = func(id string) string {
		if home[id] == "" {
			home[id] = client
		}
		return home[id]
	}
	inWorld(t, o, func(w *world) {
		w.pool(1)
		w.full(1, 2*time.Second)
		member := w.ready()[0]
		client = "two"
		w.nomad.Drain("one", scheduler.ClientDraining)
		w.until("the drain observed", time.Second, func() bool {
			return w.cluster.Sandbox(member).Status.Reason == fsm.ReasonClient
		})
		// At once, and when its pool has dropped it.
		for range 2 {
			if m := w.cluster.Store.View().ClaimableMember(specID, "u1", nil); m != nil && m.ID == member {
				w.Errorf("a claim would get %s: %+v", m.ID, m.Status)
			}
			w.elapse(200 * time.Millisecond)
		}
	})
}
