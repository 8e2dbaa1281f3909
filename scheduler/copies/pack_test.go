package copies_test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// many are the files of a workspace of 8 MB, in directories.
const many, manySize = 400, 20_000

func manyName(i int) string { return fmt.Sprintf("d%d/f%04d", i%20, i) }

// content returns random bytes that no other call returns.
func content(r *rand.ChaCha8) []byte {
	b := make([]byte, manySize)
	_, _ = r.Read(b)
	return b
}

// stored returns the size of all objects.
func (b *bench) stored() (n int64) {
	_ = filepath.WalkDir(b.store, func(_ string, d fs.DirEntry, _ error) error {
		if info, err := d.Info(); err == nil && !d.IsDir() {
			n += info.Size()
		}
		return nil
	})
	return n
}

// bytesRead returns how many bytes this process has read from files: proc(5), rchar.
func (b *bench) bytesRead() int64 {
	b.Helper()
	raw, err := os.ReadFile("/proc/self/io")
	if err != nil {
		b.Fatal(err)
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(string(raw), "rchar: "), "\n")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// Thirty copies, each after a tenth of the files has changed: a restore reads at most twice what it
// writes, and the store has at most twice the workspace.
func TestLoad_AfterManyCopies(t *testing.T) {
	b := newBench(t)
	r := rand.NewChaCha8([32]byte{1})
	pick := rand.New(r)
	want := map[string][]byte{}
	for i := range many {
		want[manyName(i)] = content(r)
	}
	var c fsm.Copy
	var uploaded int64
	for n := range 31 {
		changed := pick.Perm(many)[:many/10]
		if n == 0 {
			changed = pick.Perm(many)
		}
		for _, i := range changed {
			want[manyName(i)] = content(r)
			b.write(manyName(i), want[manyName(i)])
		}
		var base *fsm.Copy
		if n > 0 {
			base = new(c)
		}
		var up int64
		c, up = b.save(base)
		uploaded += up
		if err := b.s.Collect(t.Context(), "cl", "sb1", c, 3); err != nil {
			t.Fatal(err)
		}
	}
	stored, before := b.stored(), b.bytesRead()
	dir, err := b.load(c)
	if err != nil {
		t.Fatal(err)
	}
	read := b.bytesRead() - before
	t.Logf("the workspace has %d bytes: %d uploaded in 31 copies, %d in the store, %d read to restore it", c.Bytes,
		uploaded, stored, read)
	if read > 2*c.Bytes || stored > 2*c.Bytes {
		t.Errorf("a workspace of %d bytes takes %d in the store, and a restore reads %d", c.Bytes, stored, read)
	}
	if uploaded > 10*c.Bytes {
		t.Errorf("31 copies of a tenth upload %d bytes of a workspace of %d", uploaded, c.Bytes)
	}
	for name, data := range want {
		b.has(dir, name, data)
	}
}

// A copy of one small file each time makes objects of that size. Few are left.
func TestSave_PutsSmallObjectsTogether(t *testing.T) {
	b := newBench(t)
	r := rand.NewChaCha8([32]byte{2})
	var base *fsm.Copy
	for i := range 60 {
		b.write(manyName(i), content(r))
		c, _ := b.save(base)
		base = &c
		if err := b.s.Collect(t.Context(), "cl", "sb1", c, 1); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.objects()); n > 40 {
		t.Errorf("a copy of 60 small files has %d objects", n)
	}
	if _, err := b.load(*base); err != nil {
		t.Fatal(err)
	}
}

// An object that is gone, or was cut, is made again by the next copy, which says so.
func TestSave_WritesAgainWhatIsGone(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"gone": os.Remove, "cut": func(path string) error { return os.Truncate(path, 9) },
	} {
		b := newBench(t)
		b.write("a", random(5000))
		first, _ := b.save(nil)
		b.write("b", random(6000))
		second, _ := b.save(&first)
		if err := change(filepath.Join(b.store, "cl", "sb1", first.ID, "data-000000")); err != nil {
			t.Fatal(err)
		}
		third, up := b.save(&second)
		if up != 5000 {
			t.Errorf("%s: the next copy uploads %d bytes", name, up)
		}
		dir, err := b.load(third)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b.has(dir, "a", random(5000))
		b.has(dir, "b", random(6000))
	}
}

// Large files that did not change are not sent again, however many small rests they leave and however
// little of an object one of them needs.
func TestSave_LargeFilesAreSentOnce(t *testing.T) {
	b := newBench(t)
	large := make([]byte, 41<<20/10)
	for i := range 40 {
		b.write(fmt.Sprintf("large%02d", i), large)
	}
	first, _ := b.save(nil)
	second, up := b.save(&first)
	if up != 0 {
		t.Errorf("the second copy uploads %d bytes", up)
	}
	// The rest of the last one shares an object with what is written next.
	b.write("log", random(900_000))
	third, _ := b.save(nil)
	b.write("log", random(700_000))
	for _, c := range []*fsm.Copy{&second, &third} {
		fourth, up := b.save(c)
		if up != 700_000 {
			t.Errorf("after %s the changed log of 700000 bytes uploads %d", c.ID, up)
		}
		dir, err := b.load(fourth)
		if err != nil {
			t.Fatal(err)
		}
		b.has(dir, "large39", large)
		b.has(dir, "log", random(700_000))
		if fifth, up := b.save(&fourth); up != 0 {
			t.Errorf("the copy %s of what has not changed uploads %d", fifth.ID, up)
		}
	}
}
