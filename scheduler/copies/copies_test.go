package copies_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/archive"
	"bivouac.dev/bivouac/scheduler/copies"
)

// bench is a workspace and a store.
type bench struct {
	*testing.T
	dir, store string
	s          *copies.Store
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, dir: t.TempDir(), store: t.TempDir()}
	var err error
	if b.s, err = copies.Open(t.Context(), "file://"+b.store, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.s.Close() })
	return b
}

func (b *bench) write(name string, content []byte) {
	b.Helper()
	path := filepath.Join(b.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o600)); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) export(ctx context.Context, known io.Reader, out io.Writer) error {
	return archive.Export(ctx, b.dir, known, out, archive.DefaultLimits())
}

func (b *bench) save(base *fsm.Copy) (fsm.Copy, int64) {
	b.Helper()
	c, up, _, err := b.s.Save(b.Context(), "cl", "sb1", base, b.export)
	if err != nil {
		b.Fatal(err)
	}
	return c, up
}

// load restores a copy into a new directory.
func (b *bench) load(c fsm.Copy) (string, error) {
	b.Helper()
	to := b.TempDir()
	in, out := io.Pipe()
	go func() { _ = out.CloseWithError(b.s.Load(b.Context(), "cl", "sb1", c, out)) }()
	return to, archive.Import(b.Context(), to, in, archive.DefaultLimits())
}

func (b *bench) has(dir, name string, want []byte) {
	b.Helper()
	got, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || !bytes.Equal(got, want) {
		b.Errorf("%s has %d bytes, want %d: %v", name, len(got), len(want), err)
	}
}

// objects lists the files of the store.
func (b *bench) objects() []string {
	var list []string
	_ = filepath.WalkDir(b.store, func(path string, d fs.DirEntry, _ error) error {
		if !d.IsDir() {
			list = append(list, strings.TrimPrefix(path, b.store+"/"))
		}
		return nil
	})
	return list
}

func random(n int) []byte {
	b := make([]byte, n)
	src := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = src.Read(b)
	return b
}

func TestSave_IsIncremental(t *testing.T) {
	b := newBench(t)
	big, small := random(9<<20+5), random(3000)
	b.write("big", big)
	b.write("d/small", small)
	first, up := b.save(nil)
	if first.Files != 2 || first.Bytes != int64(len(big)+len(small)) || up != first.Bytes {
		t.Errorf("the first copy is %+v, %d uploaded", first, up)
	}
	b.write("d/other", []byte("new"))
	second, up := b.save(&first)
	if second.Files != 3 || up != 3 {
		t.Errorf("the second copy is %+v, %d uploaded", second, up)
	}
	for _, c := range []fsm.Copy{first, second} {
		dir, err := b.load(c)
		if err != nil {
			t.Fatal(err)
		}
		b.has(dir, "big", big)
		b.has(dir, "d/small", small)
	}
	if third, up := b.save(&second); up != 0 || third.ID <= second.ID {
		t.Errorf("a copy of what has not changed uploads %d, and is %s after %s", up, third.ID, second.ID)
	}
}

// TestCollect_LeavesWhatACopyNeeds collects after every one of many copies, while the files change
// and vanish, with what deposed leaders left in between.
func TestCollect_LeavesWhatACopyNeeds(t *testing.T) {
	b := newBench(t)
	var base *fsm.Copy
	var kept []fsm.Copy
	want := map[string][]byte{}
	for i := range 12 {
		name, data := []string{"a", "b", "c", "d/e"}[i%4], random(1000+i*90_000)
		b.write(name, data)
		want[name] = data
		if i%5 == 4 {
			_ = os.Remove(filepath.Join(b.dir, "b"))
			delete(want, "b")
		}
		// Another leader's copy of the same number, which the state refuses, and one that ended early.
		_, _ = b.save(base)
		_, _, _, err := b.s.Save(t.Context(), "cl", "sb1", base,
			func(ctx context.Context, known io.Reader, out io.Writer) error {
				return errors.Join(b.export(ctx, known, io.Discard), errors.New("the client is away"))
			})
		if err == nil || !strings.Contains(err.Error(), "the client is away") {
			t.Fatalf("a copy that ended early: %v", err)
		}
		c, _ := b.save(base)
		base = &c
		kept = append(kept, c)
		if err := b.s.Collect(t.Context(), "cl", "sb1", c, 3); err != nil {
			t.Fatal(err)
		}
		for _, old := range kept[max(0, len(kept)-3):] {
			if _, err := b.load(old); err != nil {
				t.Fatalf("copy %s after %s was collected: %v", old.ID, c.ID, err)
			}
		}
	}
	dir, err := b.load(*base)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range want {
		b.has(dir, name, data)
	}
	manifests := slices.DeleteFunc(b.objects(), func(o string) bool { return !strings.HasSuffix(o, "/manifest") })
	if len(manifests) != 3 {
		t.Errorf("manifests left: %v", manifests)
	}
	if _, err := b.load(kept[0]); !errors.Is(err, archive.ErrDamaged) {
		t.Errorf("a collected copy: %v", err)
	}
	// A copy that is being made by another leader has a higher number.
	later, _ := b.save(base)
	if err := b.s.Collect(t.Context(), "cl", "sb1", *base, 3); err != nil {
		t.Fatal(err)
	}
	if _, err := b.load(later); err != nil {
		t.Errorf("the next copy was collected: %v", err)
	}
	if err := b.s.Remove(t.Context(), "cl", "sb1"); err != nil || len(b.objects()) != 0 {
		t.Errorf("after the removal: %v, %v", err, b.objects())
	}
}

func TestLoad_RefusesWhatWasChanged(t *testing.T) {
	for _, part := range []string{"manifest", "data-000000"} {
		for name, change := range map[string]func(path string) error{
			"gone": os.Remove,
			"cut":  func(path string) error { return os.Truncate(path, 9) },
			"a bit": func(path string) error {
				raw, err := os.ReadFile(path)
				raw[len(raw)/2] ^= 1
				return errors.Join(err, os.WriteFile(path, raw, 0o600))
			},
		} {
			b := newBench(t)
			b.write("file", random(5000))
			c, _ := b.save(nil)
			if err := change(filepath.Join(b.store, "cl", "sb1", c.ID, part)); err != nil {
				t.Fatal(err)
			}
			if _, err := b.load(c); !errors.Is(err, archive.ErrDamaged) {
				t.Errorf("%s of %s: %v", name, part, err)
			}
			// The next copy does not build on a manifest that is damaged.
			if next, up := b.save(&c); part == "manifest" {
				if _, err := b.load(next); err != nil || up == 0 {
					t.Errorf("the copy after %s of %s: %v", name, part, err)
				}
			}
		}
	}
}

func TestLoad_RefusesAnotherSandboxesCopy(t *testing.T) {
	b := newBench(t)
	b.write("file", []byte("ada's"))
	c, _ := b.save(nil)
	if err := os.CopyFS(filepath.Join(b.store, "cl", "sb2"), os.DirFS(filepath.Join(b.store, "cl", "sb1"))); err != nil {
		t.Fatal(err)
	}
	if err := b.s.Load(t.Context(), "cl", "sb2", c, io.Discard); !errors.Is(err, archive.ErrDamaged) {
		t.Errorf("it was read: %v", err)
	}
}

// A file system may tell other holes of a file that was not changed: xfs and ext4 give back what they
// had reserved. The copy keeps those that go with the content that it has.
func TestSave_UnchangedFileWithOtherHoles(t *testing.T) {
	b := newBench(t)
	stream := func(same bool, pieces []archive.Piece) func(context.Context, io.Reader, io.Writer) error {
		return func(_ context.Context, known io.Reader, out io.Writer) error {
			_, err := io.Copy(io.Discard, known)
			w := archive.NewWriter(out)
			err = errors.Join(err, w.Entry(&archive.Entry{Path: []byte("."), Kind: archive.KindDir, Mode: 0o755}),
				w.Entry(&archive.Entry{
					Path:   []byte("f"),
					Kind:   archive.KindFile,
					Mode:   0o600,
					Size:   10,
					Pieces: pieces,
					Same:   same,
				}))
			if !same && err == nil {
				_, err = w.Write([]byte("0123456789"))
			}
			return errors.Join(err, w.Close())
		}
	}
	first, _, _, err := b.s.Save(t.Context(), "cl", "sb1", nil, stream(false, nil))
	if err != nil {
		t.Fatal(err)
	}
	second, _, _, err := b.s.Save(t.Context(), "cl", "sb1", &first, stream(true, []archive.Piece{{Offset: 0, Length: 4}}))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := b.load(second)
	if err != nil {
		t.Fatal(err)
	}
	b.has(dir, "f", []byte("0123456789"))
}

// A file of only holes has no content, in the first copy and in those that build on it.
func TestSave_FileOfOnlyHoles(t *testing.T) {
	b := newBench(t)
	b.write("x", nil)
	if err := os.Truncate(filepath.Join(b.dir, "x"), 64<<20); err != nil {
		t.Fatal(err)
	}
	first, up := b.save(nil)
	second, _ := b.save(&first)
	if first.Files != 1 || first.Bytes != 0 || up != 0 {
		t.Errorf("the copy is %+v, %d uploaded", first, up)
	}
	for _, c := range []fsm.Copy{first, second} {
		dir, err := b.load(c)
		if err != nil {
			t.Fatal(err)
		}
		b.has(dir, "x", make([]byte, 64<<20))
	}
}

func TestUnused_OnlyWhatIsOldAndUnknown(t *testing.T) {
	b := newBench(t)
	b.write("f", []byte("text"))
	b.save(nil)
	later := time.Now().Add(time.Hour)
	for name, tc := range map[string]struct {
		before time.Time
		known  bool
		want   int
	}{"old": {later, false, 1}, "new": {later.Add(-2 * time.Hour), false, 0}, "known": {later, true, 0}} {
		ids, err := b.s.Unused(t.Context(), "cl", tc.before, func(string) bool { return tc.known })
		if err != nil || len(ids) != tc.want {
			t.Errorf("%s: %v, %v", name, ids, err)
		}
	}
}

// TestSave_WhatFailsLeavesNothing: the tries to copy a workspace that is never read to its end do
// not fill the store.
func TestSave_WhatFailsLeavesNothing(t *testing.T) {
	b := newBench(t)
	b.write("a", random(9<<20))
	b.write("b", random(1000))
	torn := errors.New("torn")
	for _, base := range []*fsm.Copy{nil, {ID: "00000007-0102030405060708"}} {
		_, up, _, err := b.s.Save(t.Context(), "cl", "sb1", base,
			func(ctx context.Context, known io.Reader, out io.Writer) error {
				var whole bytes.Buffer
				if err := b.export(ctx, known, &whole); err != nil {
					return err
				}
				_, err := out.Write(whole.Bytes()[:whole.Len()-3000])
				return errors.Join(err, torn)
			})
		if base == nil && (!errors.Is(err, torn) || up < 8<<20) {
			t.Errorf("%d bytes were stored: %v", up, err)
		}
		if left := b.objects(); err == nil || len(left) > 0 {
			t.Errorf("a copy that failed (%v) leaves %v", err, left)
		}
	}
	copied, _ := b.save(nil)
	if _, err := b.load(copied); err != nil {
		t.Errorf("the next copy: %v", err)
	}
}
