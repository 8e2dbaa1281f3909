package archive_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bivouac.dev/bivouac/scheduler/archive"
)

// grower makes a directory of the fuzzer's bytes: each step takes a few of them.
type grower struct {
	dir   string
	in    []byte
	dirs  []string
	files []string
	// touched are files that change while they are read: their content is not compared.
	touched map[string]bool
}

func (g *grower) byte() int {
	if len(g.in) == 0 {
		return 0
	}
	b := g.in[0]
	g.in = g.in[1:]
	return int(b)
}

// path returns a name that is in no use in one of the directories. Some are no UTF-8.
func (g *grower) path() string {
	odd := []string{
		"n",
		"\xff\xfe",
		"a b",
		"line\nbreak",
		"é",
		"\xed\xa0\x80",
		"'$(x)",
		strings.Repeat("l", 200),
		"-rf",
		"\x01",
	}
	name := fmt.Sprintf("%s%d", odd[g.byte()%len(odd)], len(g.dirs)+len(g.files))
	return filepath.Join(g.dirs[g.byte()%len(g.dirs)], name)
}

// far is a size that no content fills.
const far = 64 << 20

func (g *grower) file() {
	path := g.path()
	f, err := os.Create(path)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	content := make([]byte, g.byte()*g.byte())
	_, _ = rand.NewChaCha8([32]byte{byte(len(content))}).Read(content)
	switch g.byte() % 4 {
	case 0:
		_, _ = f.Write(content)
	case 1: // nothing but a hole
		_ = f.Truncate(int64(1 + g.byte()*far/256))
	case 2: // holes on both sides
		_, _ = f.WriteAt(content, int64(g.byte())<<16)
		_ = f.Truncate(far)
	case 3: // many holes
		for i := range int64(g.byte() * 4) {
			_, _ = f.WriteAt([]byte{byte(i)}, i<<13)
		}
	}
	_ = f.Chmod(fs.FileMode(g.byte()*2) & 0o777)
	_ = os.Chown(path, g.byte(), g.byte())
	at := time.Unix(int64(g.byte()-128)<<25, int64(g.byte()))
	_ = os.Chtimes(path, at, at)
	g.files = append(g.files, path)
}

// grow takes one step.
func (g *grower) grow() {
	switch g.byte() % 9 {
	case 0, 1, 2:
		g.file()
	case 3:
		path := g.path()
		if os.Mkdir(path, 0o700) == nil {
			g.dirs = append(g.dirs, path)
		}
	case 4:
		if len(g.files) > 0 {
			_ = os.Link(g.files[g.byte()%len(g.files)], g.path())
		}
	case 5:
		_ = os.Symlink([]string{"/etc/passwd", "../../..", "n0", "\xff", g.dir}[g.byte()%5], g.path())
	case 6:
		_ = unix.Mknod(g.path(), []uint32{syscall.S_IFSOCK, syscall.S_IFIFO}[g.byte()%2]|0o600, 0)
	case 7:
		if len(g.files) > 0 {
			_ = unix.Setxattr(g.files[g.byte()%len(g.files)], "user.bivouac", []byte("x"), 0)
		}
	case 8:
		if len(g.files) > 0 {
			_ = os.Chmod(g.files[g.byte()%len(g.files)],
				[]fs.FileMode{0o755 | fs.ModeSetuid, 0o755 | fs.ModeSetgid, 0}[g.byte()%3])
		}
	}
}

// change changes a file while the export reads.
func (g *grower) change(path string) {
	g.touched[path] = true
	switch g.byte() % 5 {
	case 0:
		_ = os.Truncate(path, 2*far)
	case 1:
		_ = os.Truncate(path, 0)
	case 2:
		_ = os.Remove(path)
	case 3:
		_ = errors.Join(os.Remove(path), os.Symlink("/etc", path))
	case 4:
		_ = errors.Join(os.Remove(path), unix.Mknod(path, syscall.S_IFIFO|0o600, 0))
	}
}

// changing passes a stream on, and changes a file before each of its first writes.
type changing struct {
	bytes.Buffer
	g    *grower
	next []string
}

func (c *changing) Write(p []byte) (int, error) {
	if len(c.next) > 0 {
		c.g.change(c.next[0])
		c.next = c.next[1:]
	}
	return c.Buffer.Write(p)
}

// shape describes what is in a directory by its paths in it: all that an import must restore.
func shape(t *testing.T, dir string) map[string]string {
	t.Helper()
	is, first := map[string]string{}, map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		rel, _ := filepath.Rel(dir, path)
		line := fmt.Sprint(info.Mode(), st.Uid, st.Gid)
		switch info.Mode().Type() {
		case 0:
			sum, err := contentOf(path, info.Size())
			if err != nil {
				return err
			}
			if first[st.Ino] == "" {
				first[st.Ino] = rel
			}
			line = fmt.Sprintf("%s %s %s is %q", line, sum, info.ModTime().UTC(), first[st.Ino])
		case fs.ModeSymlink:
			to, _ := os.Readlink(path)
			line += fmt.Sprintf(" -> %q", to)
		case fs.ModeDir:
		default:
			return nil // sockets and pipes are left out
		}
		is[rel] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	delete(is, ".") // its mode is the test's
	return is
}

// contentOf describes a file's content without reading what is a hole.
func contentOf(path string, size int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	var data []string
	block := make([]byte, 4096)
	for at := int64(0); at < size; {
		begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return "", err
		}
		at = begin / int64(len(block)) * int64(len(block))
		n, _ := f.ReadAt(block, at)
		if some := bytes.TrimRight(block[:n], "\x00"); len(some) > 0 {
			data = append(data, fmt.Sprintf("%d:%x", at, some))
		}
		at += int64(len(block))
	}
	return fmt.Sprint(size, data), nil
}

// FuzzExportImport_Compare makes a directory, exports it, imports it, and compares the two. Files that
// change meanwhile may be anything, and never make the stream invalid.
func FuzzExportImport_Compare(f *testing.F) {
	f.Add([]byte{0, 0, 0, 3, 5, 1, 9}, []byte{})                                              // a file that is a hole
	f.Add([]byte{0, 1, 0, 9, 9, 2, 4, 6, 0, 4, 0, 2, 0, 0, 5, 1, 1, 0, 6, 0, 3, 0}, []byte{}) // links, a socket
	f.Add([]byte{0, 1, 0, 200, 200, 0, 6, 0, 0, 9, 9, 0, 1, 0, 200, 200, 0, 6, 0, 0, 9, 9}, []byte{1, 0, 0, 1, 2, 3})
	f.Add([]byte{0, 1, 0, 9, 9, 3, 99, 6, 0, 0, 9, 9, 3, 1, 0, 0, 3, 1, 1, 1, 0, 6, 0, 0, 9, 9},
		[]byte{0, 1, 1, 2, 2, 3, 4})
	f.Fuzz(compare)
}

// compare exports and imports the directory that the steps make, while the changes are made.
func compare(t *testing.T, steps, changes []byte) {
	t.Helper()
	g := &grower{dir: t.TempDir(), in: steps[:min(len(steps), 400)], touched: map[string]bool{}}
	g.dirs = []string{g.dir}
	for n := 0; len(g.in) > 0 && n < 40; n++ {
		g.grow()
	}
	before := shape(t, g.dir)
	g.in = changes
	out := &changing{g: g}
	for len(g.files) > 0 && len(g.in) > 0 && len(out.next) < 20 {
		out.next = append(out.next, g.files[g.byte()%len(g.files)])
	}
	if err := archive.Export(t.Context(), g.dir, none(), out, archive.DefaultLimits()); err != nil {
		t.Fatalf("exporting: %v", err)
	}
	to := t.TempDir()
	if err := archive.Import(t.Context(), to, bytes.NewReader(out.Bytes()), archive.DefaultLimits()); err != nil {
		t.Fatalf("importing what was exported: %v", err)
	}
	after := shape(t, to)
	for path := range g.touched {
		rel, _ := filepath.Rel(g.dir, path)
		// Other names of the file changed with it, and may be told of another first name.
		for name, line := range before {
			if _, is, _ := strings.Cut(line, " is "); name == rel || is != "" && is == linkOf(before[rel]) {
				delete(before, name)
				delete(after, name)
			}
		}
		delete(before, rel)
		delete(after, rel)
	}
	for name, want := range before {
		if after[name] != want {
			t.Errorf("%q was %s\nand is %s", name, clip(want), clip(after[name]))
		}
		delete(after, name)
	}
	if len(after) > 0 {
		t.Errorf("came from nowhere: %q", slices.Sorted(maps.Keys(after)))
	}
}

func linkOf(line string) string {
	_, is, _ := strings.Cut(line, " is ")
	return is
}

func clip(s string) string { return s[:min(len(s), 300)] }
