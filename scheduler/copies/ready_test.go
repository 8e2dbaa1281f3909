package copies_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/copies"
)

// A store that is not mounted gets no copy of what has one, until somebody says that it begins anew.
func TestSave_StoreIsNotMounted(t *testing.T) {
	b := newBench(t)
	b.write("f", []byte("text"))
	c, _ := b.save(nil)
	if err := errors.Join(os.Rename(b.store, b.store+".away"), os.Mkdir(b.store, 0o700)); err != nil {
		t.Fatal(err)
	}
	_, _, _, err := b.s.Save(t.Context(), "cl", "sb1", &c, b.export)
	if fsm.CodeOf(err) != fsm.CodeScheduler || !strings.Contains(err.Error(), "is it mounted") || len(b.objects()) > 0 {
		t.Errorf("a copy into an empty store: %v, with %v", err, b.objects())
	}
	if err := os.Mkdir(filepath.Join(b.store, "cl"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, up := b.save(&c); up != 4 {
		t.Errorf("a store that begins anew: %d bytes uploaded", up)
	}
}

// What a query would do to a directory, the sync of a copy does not know.
func TestOpen_DirectoryWithAQuery(t *testing.T) {
	t.Parallel()
	s, err := copies.Open(t.Context(), "file://"+t.TempDir()+"?prefix=x/", nil)
	if err == nil {
		_ = s.Close()
		t.Error("it opens")
	}
}

// A bucket without anything of the cluster, and one that is gone, are not ready.
func TestS3_NotReady(t *testing.T) {
	if !withGateway(t) {
		return
	}
	g := newGateway(t)
	g.write("f", []byte("text"))
	ready := func(want fsm.Code) {
		t.Helper()
		if err := g.s.Ready(t.Context(), "cl"); (err != nil) != (want != "") || err != nil && fsm.CodeOf(err) != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	ready(fsm.CodeScheduler)
	_, _ = g.save(nil)
	ready("")
	if err := os.RemoveAll(g.store); err != nil {
		t.Fatal(err)
	}
	ready(fsm.CodeScheduler)
}

// The store goes away while a copy is made, as by an unmount. What follows of that copy is removed
// again, and no other fills the mount point. With the store back, copies go on.
func TestSave_StoreGoesAwayMeanwhile(t *testing.T) {
	b := newBench(t)
	b.write("a", random(1000))
	first, _ := b.save(nil)
	aside := b.store + ".away"
	b.write("big", random(9<<20))
	_, _, _, err := b.s.Save(t.Context(), "cl", "sb1", &first,
		func(ctx context.Context, known io.Reader, out io.Writer) error {
			if err := os.Rename(b.store, aside); err != nil {
				return err
			}
			return b.export(ctx, known, out)
		})
	if err == nil || !strings.Contains(err.Error(), "mounted") {
		t.Errorf("a copy beside the unmount: %v", err)
	}
	if _, err := os.Stat(filepath.Join(b.store, "cl")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the mount point has something: %v", b.objects())
	}
	// Another copy, which began between the two, sees a directory.
	if err := os.MkdirAll(filepath.Join(b.store, "cl", "sb2"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := b.s.Save(t.Context(), "cl", "sb1", &first, b.export); err == nil || len(b.objects()) > 0 {
		t.Errorf("the mount point is filled with %v: %v", b.objects(), err)
	}
	if err := errors.Join(os.RemoveAll(b.store), os.Rename(aside, b.store)); err != nil {
		t.Fatal(err)
	}
	second, _ := b.save(&first)
	if _, err := b.load(second); err != nil {
		t.Error(err)
	}
}

// A leader that is killed beside an unmount leaves objects at the mount point. The next one, which
// has seen no store, does not take it for the store.
func TestSave_TheNextLeaderFindsAMountPoint(t *testing.T) {
	b := newBench(t)
	b.write("a", random(1000))
	first, _ := b.save(nil)
	torn := filepath.Join(b.store, "cl", "sb2", "00000001-0102")
	if err := errors.Join(os.Rename(b.store, b.store+".away"), os.MkdirAll(torn, 0o700),
		os.WriteFile(filepath.Join(torn, "data-000000"), random(10), 0o600)); err != nil {
		t.Fatal(err)
	}
	next, err := copies.Open(t.Context(), "file://"+b.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	b.s = next
	if _, _, _, err := b.s.Save(t.Context(), "cl", "sb1", &first, b.export); err == nil || len(b.objects()) != 1 {
		t.Errorf("the mount point is filled with %v: %v", b.objects(), err)
	}
	if err := errors.Join(os.RemoveAll(b.store), os.Rename(b.store+".away", b.store)); err != nil {
		t.Fatal(err)
	}
	if second, _ := b.save(&first); second.ID <= first.ID {
		t.Errorf("the next copy is %+v", second)
	}
}
