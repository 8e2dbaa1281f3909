package fsm

import (
	"bytes"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestChangesSince: between any two Views it names each sandbox whose row differs, unless only by its
// use, each whose policy differs, and each whose record as an orphan differs.
func TestChangesSince(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s := NewStore()
		views := []*View{s.View()}
		for batch := range slices.Chunk(recodeAll(t, genHistory(60).Draw(r, "log")), 3) {
			s.ApplyBatch(batch)
			views = append(views, s.View())
		}
		from := rapid.IntRange(0, len(views)-1).Draw(r, "from")
		old, now := views[from], views[rapid.IntRange(from, len(views)-1).Draw(r, "to")]
		c := now.ChangesSince(old)
		if c.All {
			r.Fatal("All without a restore")
		}
		for id, is := range facts(t, now) {
			if was := facts(t, old)[id]; is.row != was.row && !slices.Contains(c.Sandboxes, id) {
				r.Fatalf("sandbox %s differs and is not among %q", id, c.Sandboxes)
			} else if is.policy != was.policy && !c.Policies && !slices.Contains(c.Sandboxes, id) {
				r.Fatalf("the policy of sandbox %s differs, not announced", id)
			}
		}
		for id := range facts(t, old) {
			if now.SandboxAny(id) == nil && !slices.Contains(c.Sandboxes, id) {
				r.Fatalf("sandbox %s is gone and not among %q", id, c.Sandboxes)
			}
		}
		orphans := maps.Collect(func(yield func(*Orphan, bool) bool) {
			for _, o := range slices.Concat(old.Orphans(), now.Orphans()) {
				yield(o, true)
			}
		})
		for o := range orphans {
			differs := slices.Contains(old.Orphans(), o) != slices.Contains(now.Orphans(), o)
			if differs && !slices.Contains(c.Sandboxes, o.Sandbox) {
				r.Fatalf("the orphan of %s differs and is not among %q", o.Sandbox, c.Sandboxes)
			}
		}
	})
}

// sandboxFacts are what the leader acts on: the row without its last use, as text, and the policy.
type sandboxFacts struct {
	row    string
	policy Policy
}

func facts(t testing.TB, v *View) map[string]sandboxFacts {
	all := map[string]sandboxFacts{}
	for sb := range v.AllSandboxes() {
		row := *sb
		row.Status.LastActive = row.CreatedAt
		all[sb.ID] = sandboxFacts{asJSON(t, row), v.PolicyOf(sb)}
	}
	return all
}

// TestChangesSince_Restore: after a restore any row may differ, whatever came after it.
func TestChangesSince_Restore(t *testing.T) {
	t.Parallel()
	s := NewStore()
	older := s.View()
	if err := s.Restore(bytes.NewReader(persist(t, NewStore()))); err != nil {
		t.Fatal(err)
	}
	s.SetIndex(s.Index() + 1)
	if c := s.View().ChangesSince(older); !c.All {
		t.Errorf("after a restore: %+v", c)
	}
	if c := s.View().ChangesSince(s.View()); c.All {
		t.Errorf("of the same view: %+v", c)
	}
	if c := older.ChangesSince(s.View()); !c.All {
		t.Errorf("of a newer view: %+v", c)
	}
}

// TestChangesSince_Policies: a change of a user's or the installation's policy names no sandbox.
func TestChangesSince_Policies(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &APIKeyCreateBody{Lookup: "0123456789ab", Hash: sha("key"), Name: "k", UserID: "ada"})
	f.sandbox("ada", "sb")
	policy := Policy{IdleTimeout: time.Hour}
	for _, body := range []Body{
		&UserConfigureBody{UserID: "ada", Policy: &policy},
		&InstallationConfigureBody{Installation: Installation{Policy: policy}},
	} {
		before := f.store.View()
		f.do("", body)
		if c := f.store.View().ChangesSince(before); !c.Policies || len(c.Sandboxes) > 0 || c.All {
			t.Errorf("%s: %+v", body.CommandType(), c)
		}
	}
}
