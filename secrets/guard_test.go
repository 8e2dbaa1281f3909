package secrets

import (
	"context"
	"errors"
	"testing"
	"time"
)

// unreadable is a store whose mark can't be read while it is denied.
type unreadable struct {
	Store
	denied bool
}

// ReadMark implements Store.
func (u *unreadable) ReadMark(ctx context.Context) (mark Mark, cas uint64, found bool, err error) {
	if u.denied {
		return Mark{}, 0, false, &DeniedError{Capability: "read", Path: "secret/data/bivouac/marker"}
	}
	return u.Store.ReadMark(ctx)
}

// While the mark can't be read, users' requests continue and nothing is collected. A node that has
// never read the mark writes nothing, because the store may be another cluster's.
func TestGuard_MarkUnreadable_UsersGoOn(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		ctx := t.Context()
		u := &unreadable{Store: s, denied: true}
		g := NewGuard(u, func() string { return aMark.Cluster }, nil)
		now := time.Now()
		g.now = func() time.Time { return now }
		denied := func(err error) bool { return errors.As(err, new(*DeniedError)) }
		if _, err := g.Write(ctx, settingsPath, map[string]string{"value": "a"}, born); !denied(err) {
			t.Errorf("never read, and a write gives %v", err)
		}
		u.denied = false
		write(t, g, settingsPath, "b")
		u.denied = true
		now = now.Add(guardTTL)
		v, err := g.Write(ctx, settingsPath, map[string]string{"value": "c"}, born)
		if err != nil {
			t.Fatalf("a user's write: %v", err)
		}
		want(t, g, settingsPath, v.Number, "c")
		if _, err := g.Collect(ctx, born, always(Unreferenced)); !denied(err) {
			t.Errorf("a collection gives %v", err)
		}
		if err := g.Delete(ctx, settingsPath); err != nil {
			t.Errorf("a user's deletion: %v", err)
		}
		// The last mark that was read counts, and another cluster's mark forbids every change.
		u.denied = false
		if err := s.WriteMark(ctx, Mark{Cluster: "another"}, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Write(ctx, settingsPath, map[string]string{"value": "d"}, born); !errors.As(err, new(*ForeignError)) {
			t.Errorf("below another cluster's mark: %v", err)
		}
		u.denied = true
		now = now.Add(guardTTL)
		if _, err := g.Write(ctx, settingsPath, map[string]string{"value": "e"}, born); err == nil {
			t.Error("another cluster's mark is forgotten because it can't be read")
		}
	})
}

// After a restore the node belongs to another cluster: the verdict for the former one does not
// count.
func TestGuard_AnotherClusterNow_LooksAgain(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		if err := s.WriteMark(t.Context(), aMark, 0); err != nil {
			t.Fatal(err)
		}
		id := "new"
		g := NewGuard(s, func() string { return id }, nil)
		if err := g.Check(t.Context()); !errors.As(err, new(*ForeignError)) {
			t.Errorf("before: %v", err)
		}
		id = aMark.Cluster
		if err := g.Check(t.Context()); err != nil {
			t.Errorf("after: %v", err)
		}
		id = "another"
		if err := g.Check(t.Context()); !errors.As(err, new(*ForeignError)) {
			t.Errorf("and another: %v", err)
		}
	})
}

// Deleted versions count, destroyed ones do not.
func TestStore_Newest(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		ctx := t.Context()
		newest := func(want int) {
			t.Helper()
			if got, err := s.Newest(ctx, settingsPath); err != nil || got != want {
				t.Errorf("newest is %d (%v), want %d", got, err, want)
			}
		}
		newest(0)
		write(t, s, settingsPath, "a")
		v := write(t, s, settingsPath, "b")
		write(t, s, settingsPath+"2", "another")
		newest(v)
		if err := s.Delete(ctx, settingsPath); err != nil {
			t.Fatal(err)
		}
		newest(0)
	})
}
