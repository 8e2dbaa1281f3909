package scheduler_test

import (
	"context"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// counts says how often agent servers were asked each question on the way to RUNNING.
func (w *world) counts() map[string]int {
	now := map[string]int{}
	for _, op := range []string{"health", "init state", "init", "prove", "upload"} {
		now[op] = w.nomad.Calls(op)
	}
	return now
}

// A claim makes only the calls it needs, all to the member's agent server. The leader has read
// the keys before.
func TestClaim_NeedsTheAgentServerAlone(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(1)
		w.full(1, time.Second)
		before := w.counts()
		w.secrets.Seal(true)
		id := w.claim("x").ID
		w.reach(id, fsm.SandboxRunning, 10*time.Millisecond)
		for op, n := range w.counts() {
			want := before[op]
			if op == "init" || op == "prove" || op == "upload" {
				want++
			}
			if n != want {
				t.Errorf("%s: asked %d times, then %d", op, before[op], n)
			}
		}
		w.secrets.Seal(false)
		if !w.hasItsKey(id) {
			t.Error("RUNNING without its key")
		}
	})
}

// The next leader can't use what this one has read before the claim, and reads it itself. So does
// this one where the member's server was restarted meanwhile.
func TestClaim_WithoutWhatWasRead(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(2)
		w.full(2, time.Second)
		w.step()
		w.secrets.Seal(true)
		w.lead()
		w.elapse(time.Second)
		w.secrets.Seal(false)
		id := w.claim("x").ID
		w.reach(id, fsm.SandboxRunning, time.Second)
		if !w.hasItsKey(id) {
			t.Error("RUNNING without its key")
		}
		w.full(2, 5*time.Second)
		for _, m := range w.ready() {
			w.nomad.Restart(m)
		}
		id = w.claim("y").ID
		w.reach(id, fsm.SandboxRunning, time.Second)
		if !w.hasItsKey(id) {
			t.Error("RUNNING without its key after a restart")
		}
	})
}

// Two nodes that believe they lead give a member the same key: it has only one.
func TestClaim_TwoLeaders_OneKey(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(4)
		w.full(4, 5*time.Second)
		cfg := w.cfg
		cfg.Registerer = nil
		other, err := scheduler.New(cfg, w.cluster.Store, w.cluster, w.nomad, w.nomad, w.secrets)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(w.Context())
		done := make(chan error, 1)
		go func() { done <- other.Run(ctx, w.term) }()
		w.elapse(time.Second)
		before := w.nomad.Calls("init")
		owned := map[string]bool{}
		for range 4 {
			sb := w.claim("cold")
			if owned[sb.ID] || !sb.Claimed {
				t.Fatalf("%s was given twice, or was not warm", sb.ID)
			}
			owned[sb.ID] = true
		}
		for id := range owned {
			w.reach(id, fsm.SandboxRunning, 50*time.Millisecond)
			if !w.hasItsKey(id) {
				t.Errorf("%s has another key than its own", id)
			}
		}
		if n := w.nomad.Calls("init") - before; n != 2*len(owned) {
			t.Errorf("%d sandboxes were initialised %d times: were there two leaders?", len(owned), n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// New members wait for the starts that claim the old ones, but not without end.
func TestPool_RefillLetsClaimsGoFirst(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(3)
		w.full(3, time.Second)
		adds := w.cluster.Count(fsm.PoolAdd)
		for range 3 {
			w.claim("x")
			w.elapse(50 * time.Millisecond)
		}
		if n := w.cluster.Count(fsm.PoolAdd); n != adds {
			t.Errorf("%d members were added between claims", n-adds)
		}
		w.full(3, time.Second)
		// Claims without end: the pool is filled all the same.
		end := time.Now().Add(10 * time.Second)
		adds = w.cluster.Count(fsm.PoolAdd)
		for i := 0; time.Now().Before(end); i++ {
			if w.cluster.Store.View().ClaimableMember(specID, "u1", nil) != nil {
				w.claim("x")
			}
			w.elapse(60 * time.Millisecond)
		}
		if n := w.cluster.Count(fsm.PoolAdd) - adds; n < 6 {
			t.Errorf("%d members were added in ten seconds of claims", n)
		}
	})
}

// Nothing of a pool's members stays in the secret store once they are gone.
func TestPool_MembersLeaveNoSecrets(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(3)
		w.full(3, time.Second)
		kept := w.claim("x").ID
		w.full(3, time.Second)
		gone := w.ready()
		w.pool(0)
		for _, id := range gone {
			w.gone(id, 5*time.Second)
			if w.secrets.Has("sandboxes/" + id + "/init") {
				t.Errorf("what %s was to be initialised with is left", id)
			}
		}
		if !w.secrets.Has("sandboxes/"+kept+"/init") || !w.hasItsKey(kept) {
			t.Error("a claimed sandbox lost its secrets")
		}
	})
}
