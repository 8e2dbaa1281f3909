package secrets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"
)

// stores runs a test on both implementations.
func stores(t *testing.T, test func(t *testing.T, s Store)) {
	t.Run("vault", func(t *testing.T) {
		t.Parallel()
		test(t, newStore(t))
	})
	t.Run("sealed", func(t *testing.T) {
		t.Parallel()
		test(t, openSealed(t, t.TempDir()))
	})
}

func openSealed(t *testing.T, dir string) *Sealed {
	t.Helper()
	s, err := OpenSealed(dir, SealedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// born is the birth of what tests write.
var born = Birth{Cluster: "c1", Nonce: "n1", Index: 7}

func write(t *testing.T, s Store, path, value string) int {
	t.Helper()
	return writeAt(t, s, path, value, born).Number
}

func writeAt(t *testing.T, s Store, path, value string, birth Birth) Version {
	t.Helper()
	v, err := s.Write(t.Context(), path, map[string]string{"value": value}, birth)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// but is a judge: all versions except those for which live is true are unreferenced.
func but(live func(path string, version int) bool) func(Entry) Verdict {
	return func(e Entry) Verdict {
		if live(e.Path, e.Version) {
			return Keep
		}
		return Unreferenced
	}
}

// always is a judge with one verdict.
func always(v Verdict) func(Entry) Verdict { return func(Entry) Verdict { return v } }

// want checks the value of a version; "" means ErrNotFound.
func want(t *testing.T, s Store, path string, version int, value string) {
	t.Helper()
	data, err := s.Read(t.Context(), path, version, time.Time{})
	switch {
	case value == "" && !errors.Is(err, ErrNotFound):
		t.Errorf("%s version %d: %v, %v; want ErrNotFound", path, version, data, err)
	case value != "" && (err != nil || data["value"] != value):
		t.Errorf("%s version %d: %v, %v; want %q", path, version, data, err, value)
	}
}

const settingsPath = "users/u1/settings/llm_api_key"

func TestStore_Read_IsPinnedToItsVersion(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		for _, path := range []string{settingsPath, "sandboxes/0f8fad5b/session"} {
			a, b := write(t, s, path, "a"), write(t, s, path, "b")
			if b <= a {
				t.Errorf("versions %d, then %d", a, b)
			}
			want(t, s, path, a, "a")
			want(t, s, path, b, "b")
			want(t, s, path, b+1, "")
		}
		want(t, s, "users/u2/settings/llm_api_key", 1, "")
		if err := s.Health(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestStore_Read_GivesACopy(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		in := map[string]string{"key": "k", "secret_key": "s", "empty": "", "umlaut": "ä\n\"\x00"}
		v, err := s.Write(t.Context(), settingsPath, in, born)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			got, err := s.Read(t.Context(), settingsPath, v.Number, v.Created)
			if err != nil || !maps.Equal(got, in) {
				t.Fatalf("got %q, %v; want %q", got, err, in)
			}
			clear(got)
		}
	})
}

func TestStore_Write_AtTheSameTime_GivesEachItsVersion(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		const writers, times = 4, 5
		var mu sync.Mutex
		got := map[int]string{}
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := range times {
					value := fmt.Sprint(w, "-", i)
					made, err := s.Write(t.Context(), settingsPath, map[string]string{"value": value}, born)
					if err != nil {
						t.Error(err)
						return
					}
					v := made.Number
					mu.Lock()
					if other, taken := got[v]; taken {
						t.Errorf("version %d is both %s and %s", v, other, value)
					}
					got[v] = value
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		for v, value := range got {
			want(t, s, settingsPath, v, value)
		}
	})
}

func TestStore_Write_KeepsTheVersionInUseUnderManyOthers(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		first := write(t, s, settingsPath, "in use")
		for range 30 { // KV's default is to keep 10
			write(t, s, settingsPath, "never committed")
		}
		if v, ok := s.(*Vault); ok { // not from the cache
			v.cache.forget(settingsPath, []int{first})
		}
		want(t, s, settingsPath, first, "in use")
	})
}

func TestStore_Delete_TakesAllVersionsAndNoNumberComesBack(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		ctx := t.Context()
		const other = "users/u1/settings/llm_api_key2" // shares a prefix with the other path
		o := write(t, s, other, "other")
		a, b := write(t, s, settingsPath, "a"), write(t, s, settingsPath, "b")
		for range 2 {
			if err := s.Delete(ctx, settingsPath); err != nil {
				t.Fatal(err)
			}
		}
		want(t, s, settingsPath, a, "")
		want(t, s, settingsPath, b, "")
		want(t, s, other, o, "other")
		c := write(t, s, settingsPath, "c")
		if c <= b {
			t.Errorf("version %d again after %d was deleted", c, b)
		}
		want(t, s, settingsPath, c, "c")
		if err := s.Delete(ctx, "sandboxes/never-was/session"); err != nil {
			t.Error(err)
		}
	})
}

func TestStore_Collect_TakesWhatIsOldAndNotLive(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		const sandbox = "sandboxes/0f8fad5b/session"
		a, b, c := write(t, s, settingsPath, "a"), write(t, s, settingsPath, "b"), write(t, s, settingsPath, "c")
		k := write(t, s, sandbox, "key")
		live := func(path string, version int) bool { return path == settingsPath && version == b }
		if c, err := s.Collect(t.Context(), born, but(live)); err != nil || c.Deleted != 0 {
			t.Fatalf("collected %+v within the grace period, %v", c, err)
		}
		setGrace(s, time.Second)
		total := collect(t, s, but(live), func(c Collected) error {
			if c.Deleted < 3 {
				return fmt.Errorf("%d so far", c.Deleted)
			}
			return nil
		})
		if c, err := s.Collect(t.Context(), born, but(live)); err != nil || c.Deleted != 0 || total.Deleted != 3 ||
			total.Destroyed != 0 {
			t.Errorf("collected %+v, then %+v, %v; want 3 and none", total, c, err)
		}
		want(t, s, settingsPath, a, "")
		want(t, s, settingsPath, b, "b")
		want(t, s, settingsPath, c, "")
		want(t, s, sandbox, k, "")
		if d := write(t, s, settingsPath, "d"); d <= c {
			t.Errorf("version %d again after %d was destroyed", d, c)
		}
	})
}

// collect runs Collect until enough returns nil for the total result.
func collect(t *testing.T, s Store, judge func(Entry) Verdict, enough func(Collected) error) Collected {
	t.Helper()
	var total Collected
	eventually(t, "the collection", func() error {
		c, err := s.Collect(t.Context(), born, judge)
		total.Deleted += c.Deleted
		total.Destroyed += c.Destroyed
		total.Undeleted += c.Undeleted
		total.Stamped += c.Stamped
		total.Strangers = c.Strangers
		total.StrangerPaths = c.StrangerPaths
		if err != nil {
			return err
		}
		return enough(total)
	})
	return total
}

// setRetention sets how long deleted versions can be undeleted.
func setRetention(s Store, retention time.Duration) {
	switch s := s.(type) {
	case *Vault:
		s.cfg.Retention = retention
	case *Sealed:
		s.retention = retention
	}
}

func setGrace(s Store, grace time.Duration) {
	switch s := s.(type) {
	case *Vault:
		s.cfg.Grace = grace
	case *Sealed:
		s.grace = grace
	}
}

func TestStore_RefusesBadInput(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		ctx := t.Context()
		good := map[string]string{"value": "canary-refused"}
		paths := []string{
			"", "users", "/users/a", "users/a/", "users//a", "users/../a", "users/./a", "users/a b", "users/a?b", "users/a#b",
			"users/a%2fb", "users/{{a}}", "users/a*", "users/+", "users/\x00", "a/" + strings.Repeat("b", MaxPathBytes),
			strings.Repeat("a/", 8) + "a",
		}
		for _, p := range paths {
			_, werr := s.Write(ctx, p, good, born)
			_, rerr := s.Read(ctx, p, 1, time.Time{})
			derr := s.Delete(ctx, p)
			uerr := s.Undelete(ctx, p, 1)
			for _, err := range []error{werr, rerr, derr, uerr} {
				if !errors.Is(err, ErrInvalid) {
					t.Errorf("path %.40q: %v, want ErrInvalid", p, err)
				}
			}
		}
		big := map[string]string{"value": strings.Repeat("x", MaxDataBytes)}
		for _, data := range []map[string]string{nil, {}, big} {
			if _, err := s.Write(ctx, settingsPath, data, born); !errors.Is(err, ErrInvalid) {
				t.Errorf("writing %d members: %.200v, want ErrInvalid", len(data), err)
			}
		}
		if _, err := s.Read(ctx, settingsPath, 0, time.Time{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("reading version 0: %v, want ErrInvalid", err)
		}
		most := map[string]string{"value": strings.Repeat("x", MaxDataBytes-len(`{"value":""}`))}
		v, err := s.Write(ctx, settingsPath, most, born)
		if err != nil {
			t.Fatalf("writing the most that is allowed: %v", err)
		}
		if got, err := s.Read(ctx, settingsPath, v.Number, v.Created); err != nil || !maps.Equal(got, most) {
			t.Errorf("reading the most that is allowed: %d bytes, %v", len(got["value"]), err)
		}
	})
}

func TestStore_EndsWithItsContext(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Write(ctx, settingsPath, map[string]string{"value": "x"}, born); !errors.Is(err, context.Canceled) {
			t.Errorf("writing: %v", err)
		}
	})
}
