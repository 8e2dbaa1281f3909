package backup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// makeOne makes a backup of a later index and returns its name.
func makeOne(t *testing.T, n *fakeNode, r *Runner) string {
	t.Helper()
	time.Sleep(time.Hour)
	n.do(t, &fsm.BackupNoteBody{Node: "n1", Failure: "a later index"})
	if err := r.make(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made.File
}

// TestRunner_AClockThatWasAhead: after a leader whose clock was ahead no backup is removed as it is
// made, and the ones with names from the future go when their turn comes.
func TestRunner_AClockThatWasAhead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(t, "c1")
		r := newRunner(t, n, dir, "n1")
		for i := range 3 {
			made := filepath.Join(dir, makeOne(t, n, r))
			if err := os.Rename(made,
				filepath.Join(dir, fmt.Sprintf("bivouac-backup-20990101T00000%dZ-%012d-n1.snap", i, i+1))); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 4 {
			made := makeOne(t, n, r)
			names := list(t, dir)
			if !slices.Contains(names, made) {
				t.Errorf("backup %d is removed as it is made: there are %q", i+1, names)
			}
			future := slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, "-2099") })
			if len(names) != 3 || future != (i < 2) {
				t.Errorf("after %d backups there are %q", i+1, names)
			}
		}
	})
}

// TestRunner_FormerHistories: the backups of former histories go once the present one has as many as
// are kept, and a hold keeps all.
func TestRunner_FormerHistories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(t, "c1")
		r := newRunner(t, n, dir, "n1")
		for range 3 {
			makeOne(t, n, r)
		}
		for i := range 3 {
			_, err := n.store.Succeed(fsm.Succession{
				ID: fmt.Sprint("history", i), At: time.Now(), Kind: fsm.FindingRestored, Detail: "a test",
				Index: n.store.Index() + fsm.IndexStep,
			})
			if err != nil {
				t.Fatal(err)
			}
			held := len(list(t, dir))
			makeOne(t, n, r)
			if names := list(t, dir); len(names) != held+1 {
				t.Errorf("during a hold there are %q", names)
			}
			n.do(t, &fsm.HoldReleaseBody{})
			makeOne(t, n, r)
			if names := list(t, dir); len(names) < held+1 {
				t.Errorf("history %d has one file, and there are %q", i+2, names)
			}
			makeOne(t, n, r)
			makeOne(t, n, r)
			newest := makeOne(t, n, r)
			if names := list(t, dir); len(names) != 3 || names[2] != newest {
				t.Errorf("history %d: there are %q, want 3", i+2, names)
			}
		}
	})
}
