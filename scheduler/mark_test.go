package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// secretMarks gives the world a secret store that keeps marks.
func (w *world) secretMarks() *nomadtest.Nomad {
	w.step()
	store := nomadtest.NewNomad(w.T, options(), w.secrets, nil)
	w.cfg.SecretMarks, w.cfg.SecretPlace = store, "the secret store in /here"
	w.lead()
	w.until("the first marks", 5*time.Second, func() bool {
		return w.view().Marked(fsm.StoreNomad) && w.view().Marked(fsm.StoreVault)
	})
	return store
}

// found reports whether the hold has a finding of the kind for the store.
func (w *world) found(kind, store string) bool {
	h := w.view().Hold()
	if h == nil {
		return false
	}
	for _, f := range h.Findings {
		if f.Kind == kind && f.Store == store && f.Detail != "" {
			return true
		}
	}
	return false
}

// The first mark is written as soon as the cluster keeps marks: a store that is emptied a moment
// after is noticed.
func TestMark_TheFirst_AtOnce(t *testing.T) {
	t.Parallel()
	inWorldOf(t, options(), nomadtest.NewOldCluster, func(w *world) {
		w.elapse(1500 * time.Millisecond)
		w.cluster.Must(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion}, "")
		w.until("the first mark", 100*time.Millisecond, func() bool { return w.view().Marked(fsm.StoreNomad) })
	})
}

// A store whose mark is of this history, but older than one that was written there, went back in
// time: in one term, and across leaders.
func TestMark_StoreWentBack_Holds(t *testing.T) {
	t.Parallel()
	for name, nextLeader := range map[string]bool{"within a term": false, "found by the next leader": true} {
		for _, store := range []string{fsm.StoreNomad, fsm.StoreVault} {
			t.Run(store+" "+name, func(t *testing.T) {
				inWorld(t, options(), func(w *world) {
					keeper := w.secretMarks()
					if store == fsm.StoreNomad {
						keeper = w.nomad
					}
					old := *keeper.Mark()
					w.create("a")
					w.reach("a", fsm.SandboxRunning, time.Second)
					w.until("a mark soon after the start", 2*time.Second, func() bool { return keeper.Mark().Index > old.Index })
					if nextLeader {
						w.step()
						w.cluster.NextTerm()
						w.lead()
						w.elapse(2 * time.Second)
						w.step()
					}
					keeper.SetMark(old)
					if nextLeader {
						w.cluster.NextTerm()
						w.lead()
					}
					w.until("a hold", 2*time.Minute, func() bool { return w.found(fsm.FindingMarkBehind, store) })
					w.elapse(5 * time.Minute)
					if got := keeper.Mark(); got.Index != old.Index {
						t.Errorf("the mark was moved under the hold: %+v", got)
					}
					w.release()
					w.until("the mark of the new history", 2*time.Minute, func() bool { return keeper.Mark().Index > old.Index })
					w.step()
					w.cluster.NextTerm()
					w.lead()
					w.elapse(10 * time.Minute)
					if w.view().Hold() != nil {
						t.Errorf("held again: %+v", w.view().Hold())
					}
				})
			})
		}
	}
}

// The store's mark went back to before the release of a hold.
func TestMark_OfAFormerHistory_AfterALaterOne_Holds(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		keeper := w.secretMarks()
		old := *keeper.Mark()
		w.cluster.Must(&fsm.HoldBeginBody{
			At:       w.view().Index(),
			Findings: []fsm.Finding{{Kind: fsm.FindingRestored, Detail: "test"}},
		}, "")
		w.release()
		w.until("the mark of the new history", 2*time.Minute,
			func() bool { return keeper.Mark().History == w.view().History().ID })
		w.elapse(time.Second)
		w.step()
		keeper.SetMark(old)
		w.lead()
		w.until("a hold", 2*time.Minute, func() bool { return w.found(fsm.FindingMarkBehind, fsm.StoreVault) })
	})
}

// Leaders that fail anywhere between writing a mark and recording it, that lose the
// check-and-set, that are released from holds: no mark seems to have gone back.
func TestMark_NeverBehind_WhileStoresOnlyGoForward(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		inWorld(t, options(), func(w *world) {
			keeper := w.secretMarks()
			var failWrite, failNote, late atomic.Bool
			w.cluster.Refuse(func(c fsm.Command) error {
				if c.Type == fsm.MarkNote && failNote.Load() {
					return fsm.Errorf(fsm.CodeScheduler, "the leader is gone")
				}
				return nil
			})
			for _, n := range []*nomadtest.Nomad{w.nomad, keeper} {
				n.Before(func(call string, _ scheduler.Job) error {
					if call == "write mark" && late.Load() {
						w.elapse(3 * time.Second) // something else happens meanwhile
					}
					if call == "write mark" && failWrite.Load() {
						return fsm.Errorf(fsm.CodeScheduler, "no answer")
					}
					return nil
				})
			}
			for range 60 {
				switch rng.IntN(6) {
				case 0:
					failWrite.Store(rng.IntN(2) == 0)
				case 1:
					failNote.Store(rng.IntN(2) == 0)
				case 2:
					late.Store(rng.IntN(2) == 0)
				case 3:
					w.step()
					w.cluster.NextTerm()
					w.lead()
				case 4:
					w.cluster.Must(&fsm.HoldBeginBody{
						At:       w.view().Index(),
						Findings: []fsm.Finding{{Kind: fsm.FindingRestored, Detail: "test"}},
					}, "")
					w.elapse(time.Duration(rng.IntN(5)) * time.Second)
					w.release()
				default: // another leader was faster, and its entries are here
					if mark, ok := w.view().Mark(time.Now()); ok && rng.IntN(2) == 0 {
						keeper.SetMark(mark)
					}
				}
				w.elapse(time.Duration(rng.IntN(90)) * time.Second)
				if h := w.view().Hold(); h != nil {
					t.Fatalf("seed %d: %+v", seed, h)
				}
			}
		})
	}
}

// lateAnswers reads a mark and returns it late.
type lateAnswers struct {
	*nomadtest.Nomad
	by func() time.Duration
}

// ReadMark implements scheduler.Marks.
func (n lateAnswers) ReadMark(ctx context.Context) (fsm.Mark, uint64, bool, error) {
	mark, cas, found, err := n.Nomad.ReadMark(ctx)
	select {
	case <-time.After(n.by()):
	case <-ctx.Done():
	}
	return mark, cas, found, err
}

// A listing reads the mark while the leader writes a newer one. The mark it gets is older than
// the one written since, and nothing went back.
func TestMark_WrittenBesideAListing_IsNotBehind(t *testing.T) {
	t.Parallel()
	// Each world is small: a listing and the probes cost as many calls as there are sandboxes.
	for seed := range uint64(80) {
		inWorld(t, options(), func(w *world) {
			var mu sync.Mutex
			rng := rand.New(rand.NewPCG(seed, 4))
			w.step()
			w.backend = lateAnswers{w.nomad, func() time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(rng.IntN(2000)) * time.Millisecond
			}}
			w.lead()
			for i := range 50 {
				w.create(fmt.Sprintf("s%d", i))
				w.elapse(time.Duration(500+i%7*300) * time.Millisecond)
				if h := w.view().Hold(); h != nil {
					t.Fatalf("seed %d, sandbox %d: %+v", seed, i, h)
				}
			}
		})
	}
}

// While the mark in Nomad can't be read, users' requests are carried out, and the leader stops,
// removes or expires nothing on its own.
func TestMark_Unreadable_UsersGoOn(t *testing.T) {
	t.Parallel()
	inWorld(t, options(), func(w *world) {
		w.under(fsm.Policy{MaxRunning: time.Hour})
		for _, id := range []string{"a", "b", "c", "old"} {
			w.create(id)
			w.reach(id, fsm.SandboxRunning, time.Second)
		}
		w.elapse(time.Minute)
		w.step()
		var unreadable atomic.Bool
		unreadable.Store(true)
		w.nomad.Before(func(call string, _ scheduler.Job) error {
			if call == "read mark" && unreadable.Load() {
				return errors.New("the keyring is not ready")
			}
			return nil
		})
		w.nomad.AddBorn("orphan", clusterID, w.birth())
		w.nomad.Declare("orphan")
		w.cluster.NextTerm()
		// Requests to the former leader, and to this one.
		w.pause("a")
		w.lead()
		w.reach("a", fsm.SandboxPaused, 5*time.Second)
		w.pause("b")
		w.reach("b", fsm.SandboxPaused, 5*time.Second)
		w.resume("b")
		w.reach("b", fsm.SandboxRunning, 5*time.Second)
		w.delete("c")
		w.gone("c", 10*time.Second)
		w.create("d")
		w.reach("d", fsm.SandboxRunning, 5*time.Second)

		w.elapse(2 * time.Hour)
		if !w.nomad.Has("orphan") || w.cluster.State("old") != fsm.SandboxRunning || w.nomad.Live("old") != 1 {
			t.Errorf("orphan %v, old %s", w.nomad.Has("orphan"), w.cluster.State("old"))
		}
		if w.view().Hold() != nil {
			t.Errorf("a mark that can't be read began a hold: %+v", w.view().Hold())
		}
		unreadable.Store(false)
		w.until("the orphan gone", 2*time.Minute, func() bool { return !w.nomad.Has("orphan") })
		w.reach("old", fsm.SandboxPaused, time.Minute)
	})
}
