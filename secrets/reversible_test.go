package secrets

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// history is a judge like a leader's: its references, and what its history contains.
type history struct {
	cluster string
	nonces  map[string]uint64 // the last index of each term
	refs    map[string]int
}

func (h history) judge(e Entry) Verdict {
	if v, ok := h.refs[e.Path]; ok && v == e.Version {
		return Keep
	}
	if last, ok := h.nonces[e.Birth.Nonce]; ok && e.Birth.Cluster == h.cluster && e.Birth.Index <= last {
		return Unreferenced
	}
	return Stranger
}

const sandboxPath = "sandboxes/0f8fad5b/session"

// TestStore_Collect_OfAnEmptyClusterTouchesNothing: three nodes with empty data directories use the
// prefix of a live cluster.
func TestStore_Collect_OfAnEmptyClusterTouchesNothing(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		a, k := write(t, s, settingsPath, "a"), write(t, s, sandboxPath, "key")
		if err := s.Delete(t.Context(), "users/u1/custom/gone"); err != nil {
			t.Fatal(err)
		}
		setGrace(s, time.Second)
		setRetention(s, time.Nanosecond)
		empty := history{cluster: "c2", nonces: map[string]uint64{"n9": 1 << 40}}
		// An older state of the same cluster knows neither the term nor the row.
		older := history{cluster: born.Cluster, nonces: map[string]uint64{"n0": 1 << 40, born.Nonce: born.Index - 1}}
		for _, h := range []history{empty, older} {
			c := collect(t, s, h.judge, func(c Collected) error {
				if c.Strangers < 2 {
					return fmt.Errorf("%d strangers so far", c.Strangers)
				}
				return nil
			})
			if c.Deleted+c.Destroyed+c.Undeleted+c.Stamped != 0 ||
				!slices.Equal(c.StrangerPaths, []string{sandboxPath, settingsPath}) {
				t.Errorf("%+v", c)
			}
		}
		forget(s, settingsPath, a)
		forget(s, sandboxPath, k)
		want(t, s, settingsPath, a, "a")
		want(t, s, sandboxPath, k, "key")
	})
}

// forget removes a version from the cache of a store, so that the next read reaches the store.
func forget(s Store, path string, version int) {
	switch s := s.(type) {
	case *Vault:
		s.cache.forget(path, []int{version})
	case *Guard:
		forget(s.Store, path, version)
	}
}

func TestStore_Collect_DeletesUndeletesAndDestroysAfterTheRetention(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		ctx := t.Context()
		v := writeAt(t, s, settingsPath, "a", born)
		read := func() error {
			forget(s, settingsPath, v.Number)
			_, err := s.Read(ctx, settingsPath, v.Number, v.Created)
			return err
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		deleted := func(c Collected) error {
			if c.Deleted == 0 {
				return errors.New("it is not deleted")
			}
			return nil
		}
		setGrace(s, time.Second)
		collect(t, s, always(Unreferenced), deleted)
		if err := read(); !errors.Is(err, ErrDeleted) || !errors.Is(err, ErrNotFound) ||
			!strings.Contains(err.Error(), "undelete it") {
			t.Errorf("reading a deleted version: %v", err)
		}
		must(s.Undelete(ctx, settingsPath, v.Number))
		must(read())
		must(s.Undelete(ctx, settingsPath, v.Number)) // twice is not an error

		// A pass that finds it referenced undeletes it.
		collect(t, s, always(Unreferenced), deleted)
		if c, err := s.Collect(ctx, born, always(Keep)); err != nil || c.Undeleted != 1 || c.Stamped != 0 {
			t.Errorf("%+v, %v; want one undeleted", c, err)
		}
		must(read())

		// Reading it through a guard undeletes it too.
		collect(t, s, always(Unreferenced), deleted)
		forget(s, settingsPath, v.Number)
		log := &logBuffer{}
		want(t, NewGuard(s, nil, log.logger()), settingsPath, v.Number, "a")
		if !strings.Contains(log.String(), settingsPath) {
			t.Errorf("log: %s", log)
		}

		// It is destroyed after the retention, and only while it is unreferenced.
		collect(t, s, always(Unreferenced), deleted)
		if c, err := s.Collect(ctx, born, always(Unreferenced)); err != nil || c.Destroyed != 0 {
			t.Errorf("within the retention: %+v, %v", c, err)
		}
		setRetention(s, time.Second)
		due := func(c Verdict, dues *[]Due) func(Entry) Verdict {
			return func(e Entry) Verdict { *dues = append(*dues, e.Due); return c }
		}
		eventually(t, "the end of the retention", func() error {
			var dues []Due
			c, err := s.Collect(ctx, born, due(Leave, &dues))
			if c.Destroyed+c.Deleted+c.Undeleted+c.Strangers != 0 {
				t.Fatalf("what is to be left was touched: %+v", c)
			}
			if err == nil && !slices.Equal(dues, []Due{DueDestroy}) {
				err = fmt.Errorf("due is %v", dues)
			}
			return err
		})
		must(s.Undelete(ctx, settingsPath, v.Number)) // not destroyed by Leave
		must(read())
		total := collect(t, s, always(Unreferenced), func(c Collected) error {
			if c.Destroyed == 0 {
				return errors.New("it is not destroyed")
			}
			return nil
		})
		if total.Deleted != 1 || total.Destroyed != 1 {
			t.Errorf("%+v", total)
		}
		if err := s.Undelete(ctx, settingsPath, v.Number); !errors.Is(err, ErrNotFound) {
			t.Errorf("undeleting what is destroyed: %v", err)
		}
		if err := read(); !errors.Is(err, ErrNotFound) || errors.Is(err, ErrDeleted) {
			t.Errorf("reading what is destroyed: %v", err)
		}
	})
}

// TestStore_Collect_TellsVersionsOfOneEntryApart: an entry has versions of two histories, one of
// which the leader does not know, and versions without a birth.
func TestStore_Collect_TellsVersionsOfOneEntryApart(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		at := func(nonce string, index uint64) Birth { return Birth{Cluster: "c1", Nonce: nonce, Index: index} }
		old := writeAt(t, s, settingsPath, "old", Birth{}).Number
		a := writeAt(t, s, settingsPath, "a", at("n1", 5)).Number
		b := writeAt(t, s, settingsPath, "b", at("n1", 9)).Number
		lost := writeAt(t, s, settingsPath, "lost", at("lost", 12)).Number
		now := writeAt(t, s, settingsPath, "now", at("n2", 12)).Number
		setGrace(s, time.Second)
		h := history{cluster: "c1", nonces: map[string]uint64{"n1": 10, "n2": 20}, refs: map[string]int{settingsPath: now}}
		c := collect(t, s, h.judge, func(c Collected) error {
			if c.Deleted < 2 || c.Strangers < 2 {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
		if c.Deleted != 2 || c.Strangers != 2 || !slices.Equal(c.StrangerPaths, []string{settingsPath}) {
			t.Errorf("%+v", c)
		}
		for version, value := range map[int]string{old: "old", a: "", b: "", lost: "lost", now: "now"} {
			forget(s, settingsPath, version)
			want(t, s, settingsPath, version, value)
		}
	})
}

// TestStore_Collect_StampsWhatIsReferencedAndHasNoBirth: secrets from before births were recorded
// get one.
func TestStore_Collect_StampsWhatIsReferencedAndHasNoBirth(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		ctx := t.Context()
		var versions []int
		for _, value := range []string{"a", "b", "c"} {
			versions = append(versions, writeAt(t, s, settingsPath, value, Birth{}).Number)
		}
		birth := Birth{Cluster: "c1", Nonce: "n2", Index: 30}
		seen := map[int]Birth{}
		look := func(e Entry) Verdict { seen[e.Version] = e.Birth; return Leave }
		setGrace(s, time.Second)
		eventually(t, "the grace period", func() error {
			_, err := s.Collect(ctx, birth, look)
			if err == nil && len(seen) < 3 {
				err = fmt.Errorf("%v", seen)
			}
			return err
		})
		keepsTwo := but(func(_ string, version int) bool { return version == versions[1] })
		for i := range 2 {
			c, err := s.Collect(ctx, birth, func(e Entry) Verdict {
				if keepsTwo(e) == Keep {
					return Keep
				}
				return Stranger
			})
			if err != nil || c.Stamped != 1-i || c.Strangers != 2 {
				t.Errorf("pass %d: %+v, %v", i, c, err)
			}
		}
		d := write(t, s, settingsPath, "d") // born is another birth
		if _, err := s.Collect(ctx, birth, look); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the grace period", func() error {
			if _, err := s.Collect(ctx, birth, look); err != nil || seen[d] == born {
				return err
			}
			return fmt.Errorf("%v", seen)
		})
		for version, want := range map[int]Birth{versions[0]: {}, versions[1]: birth, versions[2]: {}, d: born} {
			if seen[version] != want {
				t.Errorf("version %d: birth %v, want %v", version, seen[version], want)
			}
		}
		// The zero birth stamps nothing: the cluster does not record births yet.
		if c, err := s.Collect(ctx, Birth{}, always(Keep)); err != nil || c.Stamped != 0 {
			t.Errorf("%+v, %v", c, err)
		}
	})
}

func TestStore_Read_ChecksWhenTheVersionWasWritten(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		v := writeAt(t, s, settingsPath, "a", born)
		if v.Created.IsZero() || v.Created.Location() != time.UTC {
			t.Errorf("created %v", v.Created)
		}
		for range 2 { // from the store and from the cache
			if data, err := s.Read(t.Context(), settingsPath, v.Number, v.Created); err != nil || data["value"] != "a" {
				t.Errorf("%v, %v", data, err)
			}
			_, err := s.Read(t.Context(), settingsPath, v.Number, v.Created.Add(time.Microsecond))
			if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "rolled back") {
				t.Errorf("another time: %v", err)
			}
		}
	})
}

func TestBirth_Text(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "a", "a/b", "a/b/c", "/b/1", "a//1", "a/b/-1", "a/b/1/2", unknownBirth} {
		if b, ok := ParseBirth(text); ok {
			t.Errorf("%q: %v", text, b)
		}
	}
	if b, ok := ParseBirth(born.String()); !ok || b != born || born.String() != "c1/n1/7" {
		t.Errorf("%q: %v, %t", born, b, ok)
	}
	for _, bad := range []Birth{
		{Cluster: "a/b", Nonce: "n"},
		{Cluster: "a"},
		{Nonce: strings.Repeat("n", 300), Cluster: "a"},
	} {
		if err := checkBirth(bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
