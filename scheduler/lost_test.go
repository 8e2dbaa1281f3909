package scheduler_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// lose makes a sandbox on the client "a", which is then lost, so that it comes back on "b" from its copy.
// It returns the volume that "a" still has, and ends the mark.
func (w *world) lose(c *carrying, id string) (former string) {
	w.Helper()
	w.create(id)
	w.reach(id, fsm.SandboxRunning, time.Minute)
	w.pause(id)
	w.until("a copy", time.Minute, func() bool { return w.cluster.Sandbox(id).Copy != nil })
	w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: fsm.ClientLost}, "operator")
	w.resume(id)
	w.onB(c, id)
	volumes, _ := c.ListWorkspaces(w.Context(), scheduler.Job{SandboxID: id})
	former = volumes[0].ID
	o := w.lost(former)
	if o == nil || o.Owner != w.cluster.Sandbox(id).UserID || o.Client != "a" || o.Sandbox != id {
		w.Fatalf("on record is %+v", o)
	}
	c.mu.Lock()
	c.content[former] = "of " + id + ", and what was written after the copy"
	c.mu.Unlock()
	w.cluster.Must(&fsm.ClientMarkBody{ID: "a", Mark: ""}, "operator")
	return former
}

func (w *world) lost(volume string) *fsm.Orphan {
	return w.cluster.Store.View().Orphan(fsm.OrphanLost, volume)
}

// remove deletes a sandbox and waits for the end of its row.
func (w *world) remove(id string) {
	w.Helper()
	w.delete(id)
	w.gone(id, 10*time.Minute)
}

func (w *world) restart(cfg func(*scheduler.Config)) {
	w.Helper()
	cfg(&w.cfg)
	w.step()
	w.lead()
}

// What a lost client still has is on record, with its owner. No later move, no later leader and no deletion of
// its sandbox deletes it. It ends with its retention, when an operator deletes it, and with its owner.
func TestLost_IsOnRecord(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"retention", "operator", "purge"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			inCarryingWorld(t, func(w *world, c *carrying) {
				w.restart(func(cfg *scheduler.Config) { cfg.LostRetention, cfg.OrphanRetention = 8*time.Hour, time.Hour })
				w.cluster.Must(&fsm.APIKeyCreateBody{Lookup: "u1u1u1u1u1u1", Hash: strings.Repeat("1", 64), UserID: "u1"},
					"operator")
				former := w.lose(c, "sb")
				// A third home: the former client of b is no longer the lost one.
				c.moveTo("a")
				w.cluster.Must(&fsm.ClientMarkBody{ID: "b", Mark: fsm.ClientDraining}, "operator")
				w.until("it is moved again", 10*time.Minute, func() bool {
					return c.client("sb") == "a" &&
						w.cluster.Sandbox("sb").State() == fsm.SandboxRunning
				})
				w.cluster.Must(&fsm.ClientMarkBody{ID: "b", Mark: ""}, "operator")
				w.step()
				w.cluster.NextTerm()
				w.lead()
				w.elapse(2 * time.Hour)
				if c.contentOf(former) == "" || w.lost(former) == nil {
					t.Fatal("it was removed by a later move")
				}
				w.remove("sb")
				w.elapse(4 * time.Hour)
				if c.contentOf(former) == "" || w.lost(former) == nil {
					t.Fatalf("the deletion of its sandbox removed it: %q, %+v", c.contentOf(former), w.lost(former))
				}
				if list := w.cluster.Store.View().Orphans(); len(list) != 1 {
					t.Errorf("on record are %d orphans", len(list))
				}
				switch end {
				case "retention":
					w.elapse(2 * time.Hour)
				case "operator":
					w.cluster.Must(&fsm.OrphanDeleteBody{Kind: fsm.OrphanLost, Sandbox: former}, "operator")
				case "purge":
					w.cluster.Must(&fsm.UserDeleteBody{UserID: "u1"}, "operator")
				}
				w.until("it is gone", 10*time.Minute, func() bool { return w.lost(former) == nil })
				if c.contentOf(former) != "" {
					t.Errorf("left is %q", c.contentOf(former))
				}
			})
		})
	}
}

// In a hold nothing of it is removed by itself, a purge's neither, and the limit of removals counts it.
func TestLost_HoldsAndLimits(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"retention", "purge"} {
		inCarryingWorld(t, func(w *world, c *carrying) {
			w.restart(func(cfg *scheduler.Config) { cfg.LostRetention, cfg.RemovalsPerHour = 4*time.Hour, 1 })
			w.cluster.Must(&fsm.APIKeyCreateBody{Lookup: "u1u1u1u1u1u1", Hash: strings.Repeat("1", 64), UserID: "u1"},
				"operator")
			var former []string
			for i := range 3 {
				former = append(former, w.lose(c, fmt.Sprint("sb", i)))
			}
			left := func() (n int) {
				for _, volume := range former {
					if c.contentOf(volume) != "" && w.lost(volume) != nil {
						n++
					}
				}
				return n
			}
			w.cluster.Must(&fsm.HoldBeginBody{
				Findings: []fsm.Finding{{Kind: fsm.FindingStranger, Store: fsm.StoreNomad, ID: "x", Detail: "seen"}},
			}, "operator")
			if by == "purge" {
				w.cluster.Must(&fsm.UserDeleteBody{UserID: "u1"}, "operator")
			} else {
				w.elapse(4 * time.Hour)
			}
			w.elapse(2 * time.Hour)
			if n := left(); n != 3 {
				t.Errorf("%s: %d of 3 are left in a hold", by, n)
			}
			w.cluster.Must(&fsm.HoldReleaseBody{}, "operator")
			w.elapse(10 * time.Minute)
			if n := left(); n != 2 {
				t.Errorf("%s: %d of 3 are left where one may be removed in an hour", by, n)
			}
			w.until("all are gone", 6*time.Hour, func() bool { return left() == 0 })
		})
	}
}

// An operator brings it back as a sandbox, also after its own is gone. The first tries fail at each step,
// and one is another leader's.
func TestLost_IsRestored(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"", "new", "export", "import"} {
		t.Run("fails at "+step, func(t *testing.T) {
			t.Parallel()
			inCarryingWorld(t, func(w *world, c *carrying) {
				former := w.lose(c, "sb")
				whole := c.contentOf(former)
				w.remove("sb")
				c.setFails(func(at string) error {
					if at == step {
						return errors.New("the client does not answer")
					}
					return nil
				})
				c.mu.Lock()
				c.owners = map[string]string{"again": whole}
				c.mu.Unlock()
				ref, err := w.secrets.Write(t.Context(), fsm.SandboxKeyPath("again"), map[string]string{fsm.MemberKey: "k"})
				if err != nil {
					t.Fatal(err)
				}
				w.cluster.Must(&fsm.OrphanRestoreBody{Volume: former, ID: "again", KeyRef: ref, KeyHash: strings.Repeat("a", 64)},
					"operator")
				if step != "" {
					w.until("it says why", 10*time.Minute, func() bool {
						return strings.Contains(w.cluster.Sandbox("again").Status.Detail, "the last try failed: "+
							"the client does not answer")
					})
					if n := len(c.startsOf("again")); n != 0 {
						t.Errorf("it was started %d times without its workspace", n)
					}
					w.step()
					w.cluster.NextTerm()
					w.lead()
					c.setFails(nil)
				}
				w.reach("again", fsm.SandboxRunning, 20*time.Minute)
				sb := w.cluster.Sandbox("again")
				if sb.UserID != "u1" || sb.Home == nil || c.contentOf(sb.Home.Volume) != whole {
					t.Errorf("%+v has %q", sb, c.contentOf(sb.Home.Volume))
				}
				if c.contentOf(former) != whole || w.lost(former) == nil {
					t.Error("what it came from is gone")
				}
				list, _ := c.ListWorkspaces(t.Context(), scheduler.Job{SandboxID: "again"})
				if len(list) != 1 {
					t.Errorf("left of the tries is %v", list)
				}
			})
		})
	}
}
