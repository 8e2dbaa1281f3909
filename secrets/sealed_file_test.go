package secrets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// filled is a closed store with versions of one entry, and the size of its pages.
func filled(t *testing.T, versions int) (dir string, size int64) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "secrets")
	s, err := OpenSealed(dir, SealedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for n := range versions {
		write(t, s, settingsPath, strings.Repeat(fmt.Sprint(n%10), 10_000))
	}
	err = s.db.View(func(tx *bbolt.Tx) error { size = tx.Size(); return nil })
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	return dir, size
}

func fileSize(t *testing.T, dir string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, sealedFile))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestSealed_ADamagedFileIsAnErrorAndNoTrace(t *testing.T) {
	t.Parallel()
	whole, size := filled(t, 30)
	for name, left := range map[string]int64{
		"nothing":        0,
		"a byte":         1,
		"a page":         4096,
		"two pages":      8192,
		"a third":        size / 3,
		"all but a page": size - 4096,
	} {
		t.Run("cut to "+name, func(t *testing.T) {
			t.Parallel()
			dir := copyOfStore(t, whole)
			if err := os.Truncate(filepath.Join(dir, sealedFile), left); err != nil {
				t.Fatal(err)
			}
			if s, err := OpenSealed(dir, SealedOptions{}); err == nil ||
				!strings.Contains(err.Error(), "secrets.db is damaged") {
				t.Errorf("%v, %v", s, err)
			}
		})
	}
	for page := int64(2); page < size/4096; page += 3 {
		t.Run(fmt.Sprint("page ", page), func(t *testing.T) {
			t.Parallel()
			dir := copyOfStore(t, whole)
			f, err := os.OpenFile(filepath.Join(dir, sealedFile), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte(strings.Repeat("\x13", 4096)), page*4096); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			s, err := OpenSealed(dir, SealedOptions{})
			if err != nil {
				return
			}
			_, _ = s.Read(t.Context(), settingsPath, 1, time.Time{}) // a page that was free, or a value
			_, _ = s.Write(t.Context(), settingsPath, map[string]string{"value": "x"}, Birth{})
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A file that is cut while it is open is mapped beyond its end.
func TestSealed_AFileCutWhileItIsOpen(t *testing.T) {
	t.Parallel()
	dir, _ := filled(t, 30)
	s := openSealed(t, dir)
	if err := os.Truncate(filepath.Join(dir, sealedFile), 8192); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(t.Context(), settingsPath, 1, time.Time{}); err == nil {
		t.Error("a version is read that is no longer there")
	}
}

func copyOfStore(t *testing.T, from string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "secrets")
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{
		dir:                               0o700,
		filepath.Join(dir, sealedFile):    0o600,
		filepath.Join(dir, sealedKeyFile): 0o600,
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestSealed_OthersMayNotReadTheKeyNorReplaceIt(t *testing.T) {
	t.Parallel()
	whole, _ := filled(t, 1)
	for name, tc := range map[string]struct {
		file string
		mode os.FileMode
		says string
	}{
		"a key that others read":      {sealedKeyFile, 0o604, "secrets.key has mode 0604"},
		"a key that a group writes":   {sealedKeyFile, 0o620, "secrets.key has mode 0620"},
		"a key that everybody writes": {sealedKeyFile, 0o666, "secrets.key has mode 0666"},
		"a file that others write":    {sealedFile, 0o602, "secrets.db has mode 0602"},
		"a directory of everybody":    {"", 0o777, "has mode 0777"},
		"a directory of a group":      {"", 0o770, "has mode 0770"},
		"a directory that others see": {"", 0o755, ""},
		"a file that others read":     {sealedFile, 0o644, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := copyOfStore(t, whole)
			if err := os.Chmod(filepath.Join(dir, tc.file), tc.mode); err != nil {
				t.Fatal(err)
			}
			s, err := OpenSealed(dir, SealedOptions{})
			switch {
			case err == nil:
				if err := s.Close(); err != nil || tc.says != "" {
					t.Errorf("it opens; %v", err)
				}
			case tc.says == "" || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "chmod"):
				t.Error(err)
			}
		})
	}
}

func TestSealed_GivesItsRoomBack(t *testing.T) {
	t.Parallel()
	dir, full := filled(t, 400)
	s := openSealed(t, dir)
	kept := write(t, s, sandboxPath, "kept")
	s.now = func() time.Time { return time.Now().Add(DefaultGrace + time.Hour) }
	collect := func() {
		t.Helper()
		_, err := s.Collect(t.Context(), born, func(e Entry) Verdict {
			if e.Path == sandboxPath {
				return Keep
			}
			return Unreferenced
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	collect()
	collect() // with births, versions are deleted now
	s.now = func() time.Time { return time.Now().Add(DefaultGrace + DefaultRetention + 2*time.Hour) }
	// Readers and writers go on meanwhile.
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for range 20 {
				if _, err := s.Read(t.Context(), sandboxPath, kept, time.Time{}); err != nil {
					t.Error(err)
				}
				if _, err := s.Write(t.Context(), sandboxPath, map[string]string{"value": "x"}, born); err != nil {
					t.Error(err)
				}
			}
		})
	}
	collect()
	busy.Wait()
	collect()
	if now := fileSize(t, dir); now > full/4 {
		t.Errorf("the file has %d bytes, with everything it had %d", now, full)
	}
	want(t, s, sandboxPath, kept, "kept")
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
	last := write(t, s, settingsPath, "again")
	if last <= kept {
		t.Errorf("number %d after %d", last, kept)
	}
	if _, err := OpenSealed(dir, SealedOptions{}); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("the replaced file is not locked: %v", err)
	}
	s = reopen(t, s, dir)
	want(t, s, settingsPath, last, "again")
	want(t, s, sandboxPath, kept, "kept")
}
