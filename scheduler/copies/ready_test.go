package copies_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
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
