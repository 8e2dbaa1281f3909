package secrets

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// reopen closes a store if it is open and opens it again.
func reopen(t *testing.T, s *Sealed, dir string) *Sealed {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return openSealed(t, dir)
}

func TestSealed_KeepsItsSecretsAndNeverInClear(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	s := openSealed(t, dir)
	v := write(t, s, settingsPath, "canary-sealed")
	s = reopen(t, s, dir)
	want(t, s, settingsPath, v, "canary-sealed")
	if again := write(t, s, settingsPath, "b"); again <= v {
		t.Errorf("version %d after %d", again, v)
	}
	for _, name := range []string{sealedFile, sealedKeyFile} {
		path := filepath.Join(dir, name)
		fi, err := os.Stat(path)
		if err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", name, fi.Mode(), err)
		}
		raw, err := os.ReadFile(path)
		if err != nil || bytes.Contains(raw, []byte("canary-sealed")) {
			t.Errorf("%s holds the value in clear (%v)", name, err)
		}
	}
}

func TestSealed_OpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	other := t.TempDir()
	openSealed(t, other)
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, dir string)
		says  string
	}{
		"another key": {func(t *testing.T, dir string) {
			copyOver(t, filepath.Join(dir, sealedKeyFile), filepath.Join(other, sealedKeyFile))
		}, "secrets.key is not the key secrets.db was sealed with"},
		"no key": {func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, sealedKeyFile)); err != nil {
				t.Fatal(err)
			}
		}, "secrets.key is missing"},
		"half a key": {func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, sealedKeyFile), 31); err != nil {
				t.Fatal(err)
			}
		}, "does not hold a key"},
		"another format": {func(t *testing.T, dir string) {
			update(t, dir, func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, []byte("3")) })
		}, `has format "3"`},
		"no database": {func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, sealedFile), bytes.Repeat([]byte("junk"), 4096), 0o600); err != nil {
				t.Fatal(err)
			}
		}, sealedFile},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s, err := OpenSealed(dir, SealedOptions{})
			if err != nil {
				t.Fatal(err)
			}
			write(t, s, settingsPath, "a")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			tc.spoil(t, dir)
			if _, err := OpenSealed(dir, SealedOptions{}); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want it to say %q", err, tc.says)
			}
		})
	}
	if _, err := OpenSealed(other, SealedOptions{}); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("opening it twice: %v", err)
	}
}

func TestSealed_MovedRecordDoesNotOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openSealed(t, dir)
	a := write(t, s, settingsPath, "canary-a")
	b := write(t, s, "users/u2/settings/llm_api_key", "b")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	update(t, dir, func(tx *bbolt.Tx) error {
		versions := tx.Bucket(bucketVersions)
		record := bytes.Clone(versions.Get(versionKey(settingsPath, a)))
		return versions.Put(versionKey("users/u2/settings/llm_api_key", b), record)
	})
	s = openSealed(t, dir)
	data, err := s.Read(t.Context(), "users/u2/settings/llm_api_key", b, time.Time{})
	if !errors.Is(err, errDamaged) || data != nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("another user's record: %v, %v", data, err)
	}
}

func TestSealed_Closed_IsUnavailable(t *testing.T) {
	t.Parallel()
	s, err := OpenSealed(t.TempDir(), SealedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(t.Context(), settingsPath, 1, time.Time{}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("reading: %v", err)
	}
	if err := s.Health(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("health: %v", err)
	}
}

func copyOver(t *testing.T, to, from string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// update changes the file of a closed store.
func update(t *testing.T, dir string, fn func(*bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(dir, sealedFile), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(fn), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestSealed_ReadsFormat1: commit 85644f1 wrote testdata/sealed-format-1: two versions of a setting
// and a sandbox's key, without births.
func TestSealed_ReadsFormat1(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{sealedFile, sealedKeyFile} {
		copyOver(t, filepath.Join(dir, name), filepath.Join("testdata", "sealed-format-1", name))
	}
	s := openSealed(t, dir)
	for range 2 {
		want(t, s, settingsPath, 1, "a")
		want(t, s, settingsPath, 2, "b")
		want(t, s, sandboxPath, 3, "key")
		s = reopen(t, s, dir)
	}
	s.now = func() time.Time { return time.Now().Add(time.Hour) } // past the grace period
	seen := 0
	c, err := s.Collect(t.Context(), born, func(e Entry) Verdict {
		seen++
		if e.Birth != (Birth{}) || !e.DeletedAt.IsZero() || e.Created.Year() != 2026 {
			t.Errorf("%+v", e)
		}
		return Keep
	})
	if err != nil || seen != 3 || c.Stamped != 3 {
		t.Errorf("%d seen, %+v, %v", seen, c, err)
	}
	v := writeAt(t, s, settingsPath, "c", born)
	if v.Number <= 3 {
		t.Errorf("version %d", v.Number)
	}
	want(t, s, sandboxPath, 3, "key")
}
