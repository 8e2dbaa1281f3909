package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"bivouac.dev/bivouac/deploy/local/ownprocess"
)

// dirVariable names the directory to the test that runs without a usable $TMPDIR.
const dirVariable = "BIVOUAC_TEST_DURABLE_DIR"

func TestReplace_SetsContentAndMode(t *testing.T) {
	dir := os.Getenv(dirVariable)
	if dir == "" {
		dir = t.TempDir()
		ownprocess.Enter(t, "TMPDIR="+filepath.Join(dir, "gone"), dirVariable+"="+dir)
		return
	}
	path := filepath.Join(dir, "key")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "new" {
		t.Errorf("content %q, %v", b, err)
	}
	only(t, dir, "key")
}

func TestReplace_LeavesNothingWhenItFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Join(dir, "taken"), []byte("x"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	only(t, dir, "taken")
	if err := Replace(filepath.Join(dir, "none", "x"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
}

// only fails if the directory has another name.
func only(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("the directory holds %v, %v", entries, err)
	}
}
