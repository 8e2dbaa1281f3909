package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"bivouac.dev/bivouac/fsm"
)

func (w *world) pool(size int) { w.cluster.Must(&fsm.SpecPoolBody{ID: specID, Size: size}, "operator") }

// ready returns the members that can be claimed.
func (w *world) ready() []string {
	var ids []string
	for _, m := range w.cluster.Store.View().PoolMembers(specID) {
		if m.State() == fsm.SandboxRunning {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

func (w *world) full(size int, limit time.Duration) {
	w.Helper()
	w.until(fmt.Sprintf("%d members ready", size), limit, func() bool { return len(w.ready()) == size })
}

// claim starts a sandbox: a member of the pool, or a cold one of that id where there is none.
func (w *world) claim(id string) *fsm.Sandbox {
	w.Helper()
	if w.cluster.Store.View().ClaimableMember(specID, "u1", nil) != nil {
		return w.cluster.Must(&fsm.SandboxCreateBody{SpecID: specID, Warm: true}, "u1").Sandbox
	}
	w.create(id)
	return w.cluster.Sandbox(id)
}

// hasItsKey reports whether the agent server of a sandbox accepts the sandbox's key.
func (w *world) hasItsKey(id string) bool {
	w.Helper()
	ref := w.cluster.Sandbox(id).KeyRef
	entry, err := w.secrets.Read(w.Context(), ref)
	return err == nil && entry["key"] != "" && w.nomad.Key(id) == entry["key"]
}

func TestPool_FilledClaimedAndRefilled(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(3)
		w.full(3, 2*time.Second)
		if w.nomad.Calls("init") != 0 || w.nomad.Calls("upload") != 0 {
			t.Error("a member was touched before it was claimed")
		}
		begin := time.Now()
		sb := w.claim("x")
		if !sb.Claimed {
			t.Fatal("started cold although a member was ready")
		}
		got := w.reach(sb.ID, fsm.SandboxRunning, time.Second)
		if took := time.Since(begin); took > 20*time.Millisecond {
			t.Errorf("RUNNING after %s", took)
		}
		if !w.hasItsKey(sb.ID) || got.Status.Workspace == "" || got.Status.Job.Registered {
			t.Errorf("key %q, status %+v", w.nomad.Key(sb.ID), got.Status)
		}
		w.full(3, 2*time.Second)
		w.pool(0)
		w.until("the members gone", 5*time.Second, func() bool { return len(w.nomad.Running()) == 1 })
		cold := w.claim("y")
		if cold.Claimed {
			t.Error("claimed a member that is gone")
		}
		w.reach("y", fsm.SandboxRunning, time.Second)
		const want = `
			# HELP bivouac_pool_claims_total First starts of sandboxes whose spec has a warm pool, by outcome: hit (a member was claimed) or miss.
			# TYPE bivouac_pool_claims_total counter
			bivouac_pool_claims_total{outcome="hit"} 1
			bivouac_pool_claims_total{outcome="miss"} 0
		`
		if err := testutil.GatherAndCompare(w.reg, strings.NewReader(want), "bivouac_pool_claims_total"); err != nil {
			t.Error(err)
		}
	})
}

func TestPool_ClaimedSandbox_LivesLikeAnyOther(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(1)
		w.full(1, time.Second)
		id := w.claim("x").ID
		marked := w.reach(id, fsm.SandboxRunning, time.Second).Status.Workspace

		// Restarted in place it is dormant again, and gets its key again.
		w.nomad.Restart(id)
		if w.nomad.Key(id) != "" {
			t.Fatal("the fake forgot nothing")
		}
		w.until("bound again", 15*time.Second, func() bool { return w.hasItsKey(id) })

		for range 3 {
			w.pause(id)
			w.reach(id, fsm.SandboxPaused, 2*time.Second)
			w.resume(id)
			if sb := w.reach(id, fsm.SandboxRunning, 2*time.Second); sb.Status.Workspace != marked || !sb.Status.Job.Registered {
				t.Errorf("status %+v", sb.Status)
			}
			if !w.hasItsKey(id) {
				t.Error("came back without its key")
			}
		}
		inits := w.nomad.Calls("init")
		w.nomad.Restart(id)
		w.elapse(time.Minute)
		if w.nomad.Calls("init") != inits {
			t.Error("one that has its key was initialised")
		}
		w.pause(id)
		w.reach(id, fsm.SandboxPaused, 2*time.Second)
		w.nomad.LoseVolume(id)
		w.resume(id)
		if sb := w.reach(id, fsm.SandboxError, 2*time.Second); sb.Status.Reason != fsm.ReasonWorkspace {
			t.Errorf("status %+v", sb.Status)
		}
		w.delete(id)
		w.gone(id, 2*time.Second)
		if w.secrets.Has("sandboxes/" + id + "/init") {
			t.Error("what it was initialised with is left")
		}
	})
}

// Paused before it was bound, and before it was first marked.
func TestPool_ClaimedAndPausedAtOnce(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(1)
		w.full(1, time.Second)
		id := w.claim("x").ID
		w.pause(id)
		w.reach(id, fsm.SandboxPaused, time.Minute)
		w.resume(id)
		w.reach(id, fsm.SandboxRunning, 2*time.Second)
		if !w.hasItsKey(id) {
			t.Error("came back without its key")
		}
	})
}

func TestPool_NextLeaderBinds(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(2)
		w.full(2, time.Second)
		w.step()
		id := w.claim("x").ID
		w.lead()
		w.reach(id, fsm.SandboxRunning, time.Second)
		// Bound, and the leader gone before it could report that.
		w.cluster.Refuse(func(c fsm.Command) error {
			if c.Type == fsm.SandboxObserve {
				return fsm.Errorf(fsm.CodeNoLeader, "no leader")
			}
			return nil
		})
		id = w.claim("y").ID
		w.until("bound", time.Second, func() bool { return w.hasItsKey(id) })
		w.step()
		w.cluster.Refuse(nil)
		w.lead()
		w.reach(id, fsm.SandboxRunning, time.Second)
		w.full(2, 2*time.Second)
	})
}

func TestPool_SpecChangesOrGoes(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(2)
		w.full(2, time.Second)
		old := w.ready()
		spec := *w.cluster.Store.View().Spec(specID)
		spec.Template.Memory *= 2
		w.cluster.Must(&fsm.SpecApplyBody{Specs: []fsm.Spec{spec}}, "operator")
		w.until("others", 5*time.Second, func() bool {
			now := w.ready()
			return len(now) == 2 && len(w.nomad.Running()) == 2 && now[0] != old[0] && now[1] != old[1] && now[0] != old[1] &&
				now[1] != old[0]
		})
		w.cluster.Must(&fsm.SpecDeleteBody{ID: specID}, "operator")
		w.until("nothing left", 5*time.Second, func() bool { return len(w.nomad.Running()) == 0 })
		for sb := range w.cluster.Store.View().AllSandboxes() {
			w.gone(sb.ID, 5*time.Second)
		}
	})
}

func TestPool_MembersThatFail_AreReplacedWithPatience(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(1)
		w.full(1, time.Second)
		w.nomad.Fail(w.ready()[0], crash())
		w.until("the failed one gone", time.Second, func() bool { return len(w.ready()) == 0 })
		w.full(1, 5*time.Second)
		begin, adds := time.Now(), w.cluster.Count(fsm.PoolAdd)
		for time.Since(begin) < time.Hour {
			for _, id := range w.ready() {
				w.nomad.Fail(id, crash())
			}
			w.elapse(100 * time.Millisecond)
		}
		// Each was ready for a moment, which counts as success: there is no back-off. But a
		// member that never gets ready delays the next one.
		if w.cluster.Count(fsm.PoolAdd) == adds {
			t.Error("the pool was given up")
		}
	})
}

func TestPool_MembersThatNeverGetReady_AreRare(t *testing.T) {
	t.Parallel()
	o := options()
	o.AnswerAfter = 24 * time.Hour
	inWorld(t, o, func(w *world) {
		w.pool(1)
		w.elapse(2 * time.Hour)
		if n := w.cluster.Count(fsm.PoolAdd); n < 5 || n > 60 {
			t.Errorf("%d members in two hours", n)
		}
		if n := w.cluster.Store.View().PoolMembers(specID); len(n) > 1 {
			t.Errorf("%d members in a pool of one", len(n))
		}
	})
}

func TestPool_ServerThatCantBeDormant_IsSaidSo(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(1)
		w.until("a member", time.Second, func() bool { return len(w.nomad.Running()) == 1 })
		id := w.nomad.Running()[0]
		w.nomad.NotDeferred(id)
		w.until("its words", 3*time.Minute, func() bool {
			sb := w.cluster.Sandbox(id)
			return sb == nil || strings.Contains(sb.Status.Detail, "no deferred initialisation")
		})
	})
}

func TestPool_SecretStoreAway_FillsWhenItIsBack(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.secrets.Seal(true)
		w.pool(2)
		w.elapse(30 * time.Second)
		if w.cluster.Count(fsm.PoolAdd) != 0 {
			t.Error("a member without a secret")
		}
		w.secrets.Seal(false)
		w.full(2, 2*time.Minute)
		synctest.Wait()
	})
}

// The job of a member gives way to users' starts until it is claimed.
func TestPool_ClaimedMember_GivesWayNoMore(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.pool(1)
		w.full(1, 5*time.Second)
		if n := w.nomad.Calls("raise"); n != 0 {
			t.Errorf("a member's priority was raised %d times", n)
		}
		sb := w.claim("cold")
		w.reach(sb.ID, fsm.SandboxRunning, 5*time.Second)
		w.until("the raise", 5*time.Second, func() bool { return w.nomad.Calls("raise") == 1 })
		w.elapse(time.Minute)
		if n := w.nomad.Calls("raise"); n != 1 || w.cluster.State(sb.ID) != fsm.SandboxRunning {
			t.Errorf("raised %d times; %s", n, w.describe())
		}
	})
}
