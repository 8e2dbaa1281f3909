package secrets

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

var aMark = Mark{
	Cluster: "c1",
	History: "h1",
	Epoch:   1,
	Nonce:   "n1",
	Index:   7,
	Time:    time.Date(2026, 11, 22, 3, 0, 0, 5, time.UTC),
}

func TestStore_Mark_IsWrittenByCheckAndSet(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		ctx := t.Context()
		if m, cas, found, err := s.ReadMark(ctx); m != (Mark{}) || cas != 0 || found || err != nil {
			t.Fatal(m, cas, found, err)
		}
		if err := s.WriteMark(ctx, Mark{}, 0); !errors.Is(err, ErrInvalid) {
			t.Errorf("a mark without a cluster: %v", err)
		}
		mark := aMark
		for i := range 3 {
			_, cas, _, err := s.ReadMark(ctx)
			if err != nil {
				t.Fatal(err)
			}
			mark.Index += uint64(i)
			if err := s.WriteMark(ctx, mark, cas); err != nil {
				t.Fatal(err)
			}
			// A process that read before, such as a deposed leader, gets ErrConflict.
			lost := mark
			lost.Index = 1
			if err := s.WriteMark(ctx, lost, cas); !errors.Is(err, ErrConflict) {
				t.Errorf("a lost check-and-set: %v", err)
			}
			got, after, found, err := s.ReadMark(ctx)
			if err != nil || !found || got != mark || after <= cas {
				t.Errorf("%+v, %d after %d, %t, %v; want %+v", got, after, cas, found, err, mark)
			}
		}
		// The mark is no secret, and Collect skips it.
		setGrace(s, time.Nanosecond)
		setRetention(s, time.Nanosecond)
		for range 3 {
			if c, err := s.Collect(ctx, born, always(Unreferenced)); err != nil || c.Deleted+c.Destroyed != 0 {
				t.Errorf("%+v, %v", c, err)
			}
		}
		if got, _, found, err := s.ReadMark(ctx); err != nil || !found || got != mark {
			t.Errorf("%+v, %t, %v", got, found, err)
		}
	})
}

func TestVault_Mark_DeletedOrUnreadable(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server, s := sharedVault(t), newStore(t)
	if err := s.WriteMark(ctx, aMark, 0); err != nil {
		t.Fatal(err)
	}
	at := "secret/data/" + s.markAt()
	if err := server.Do(ctx, http.MethodDelete, at, nil, nil); err != nil {
		t.Fatal(err)
	}
	_, cas, found, err := s.ReadMark(ctx)
	if err != nil || found || cas != 1 {
		t.Fatalf("a deleted mark: version %d, %t, %v", cas, found, err)
	}
	if err := s.WriteMark(ctx, aMark, cas); err != nil {
		t.Fatal(err)
	}
	body := map[string]any{"data": map[string]string{markMember: "{"}, "options": map[string]int{"cas": 2}}
	if err := server.Do(ctx, http.MethodPost, at, body, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, found, err := s.ReadMark(ctx); found || !errors.Is(err, ErrUnavailable) ||
		!strings.Contains(err.Error(), s.markAt()) {
		t.Errorf("a mark nobody can read: %t, %v", found, err)
	}
	if err := NewGuard(s, func() string { return "c1" }, nil).Check(ctx); !errors.Is(err, ErrUnavailable) {
		t.Errorf("and the guard: %v", err)
	}
}

func TestGuard_AnotherClustersPrefix_NothingIsWritten(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		ctx := t.Context()
		v := write(t, s, settingsPath, "theirs")
		if err := s.WriteMark(ctx, aMark, 0); err != nil {
			t.Fatal(err)
		}
		id := ""
		g := NewGuard(s, func() string { return id }, nil)
		now := time.Now()
		g.now = func() time.Time { return now }
		changes := func(wantErr func(error) bool) {
			t.Helper()
			_, werr := g.Write(ctx, "users/u2/settings/x", map[string]string{"value": "ours"}, Birth{})
			_, cerr := g.Collect(ctx, born, always(Unreferenced))
			for what, err := range map[string]error{
				"write": werr, "collect": cerr, "delete": g.Delete(ctx, settingsPath),
				"undelete": g.Undelete(ctx, settingsPath, v), "mark": g.WriteMark(ctx, Mark{Cluster: "c2"}, 1),
			} {
				if !wantErr(err) {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
		changes(func(err error) bool { return errors.Is(err, ErrUnavailable) }) // no cluster yet
		id = "c2"
		changes(func(err error) bool {
			var foreign *ForeignError
			return errors.As(err, &foreign) && foreign.Cluster == "c1" && errors.Is(err, ErrUnavailable) &&
				strings.Contains(err.Error(), s.Place()+" belongs to cluster c1")
		})
		want(t, g, settingsPath, v, "theirs")
		if err := g.Health(ctx); err != nil {
			t.Error(err)
		}

		// Its own cluster writes. A mark that another cluster takes over is noticed after a while.
		id = "c1"
		now = now.Add(foreignTTL)
		if err := g.Check(ctx); err != nil {
			t.Fatal(err)
		}
		if err := s.WriteMark(ctx, Mark{Cluster: "c3"}, 1); err != nil {
			t.Fatal(err)
		}
		if err := g.Check(ctx); err != nil {
			t.Errorf("it asks each time: %v", err)
		}
		now = now.Add(guardTTL)
		if err := g.Check(ctx); !errors.Is(err, ErrUnavailable) {
			t.Errorf("another cluster's mark is not seen: %v", err)
		}
	})
}

func TestGuard_StoreAway_NothingIsWritten(t *testing.T) {
	t.Parallel()
	server := ownVault(t)
	g := NewGuard(run(t, config(t, server, local.AppRoleOptions{})), func() string { return "c1" }, nil)
	write(t, g, settingsPath, "a")
	if err := server.Seal(context.Background()); err != nil {
		t.Fatal(err)
	}
	g.until = time.Time{}
	if _, err := g.Write(t.Context(), settingsPath, map[string]string{"value": "b"},
		born); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}
