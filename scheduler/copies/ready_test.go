package copies_test

import (
	"errors"
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
