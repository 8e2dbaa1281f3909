package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

// hostile fills a directory with what a sandbox can make.
func hostile(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, content string, mode os.FileMode) {
		t.Helper()
		must(os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		must(os.Chmod(filepath.Join(dir, name), mode))
	}
	must(os.Mkdir(filepath.Join(dir, "a"), 0o755))
	write("a/b", "in a", 0o644)
	write("a.txt", "beside a", 0o640)
	write("line\nbreak \xff\xfe \" ' $(x)", "odd", 0o600)
	write(strings.Repeat("n", 255), "long", 0o600)
	write("empty", "", 0o400)
	write("setuid", "#!", 0o755|os.ModeSetuid)
	must(os.Symlink("/etc/passwd", filepath.Join(dir, "out")))
	must(os.Symlink("../../../../etc", filepath.Join(dir, "up")))
	must(os.Symlink("a", filepath.Join(dir, "z")))
	must(os.Link(filepath.Join(dir, "a/b"), filepath.Join(dir, "hard")))
	must(syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	must(os.Mkdir(filepath.Join(dir, "closed"), 0o755))
	write("closed/file", "inside", 0o000)
	must(os.Chmod(filepath.Join(dir, "closed"), 0o500))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "closed"), 0o700) })
	f, err := os.Create(filepath.Join(dir, "sparse"))
	must(err)
	_, err = f.WriteAt([]byte("far"), 1<<38)
	must(err)
	must(f.Close())
	must(os.Chtimes(filepath.Join(dir, "a.txt"), time.Unix(1, 7), time.Unix(1, 7)))
	must(os.Chtimes(filepath.Join(dir, "empty"), time.Now(), time.Date(30000, 1, 1, 0, 0, 0, 0, time.UTC)))
	return dir
}

// tree describes what is in a directory.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		line := fmt.Sprintf("%q %s", rel, info.Mode())
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(path)
			line += " -> " + to
		case info.Mode().IsRegular():
			line += fmt.Sprintf(" %d links %d", info.Size(), info.Sys().(*syscall.Stat_t).Nlink)
			if info.Size() < 1<<20 {
				raw, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				line += fmt.Sprintf(" %q", raw)
			}
			if rel != "empty" {
				line += " " + info.ModTime().UTC().String()
			}
		case info.Mode()&fs.ModeNamedPipe != 0:
			return nil
		}
		list = append(list, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func export(t *testing.T, dir string, known io.Reader) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := archive.Export(t.Context(), dir, known, &out, archive.DefaultLimits()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func none() io.Reader { return strings.NewReader("") }

func TestExportImport_WhatASandboxCanMake(t *testing.T) {
	from, to := hostile(t), t.TempDir()
	stream := export(t, from, none())
	if len(stream) > 1<<20 {
		t.Errorf("the stream has %d bytes: holes are not left out", len(stream))
	}
	if err := archive.Import(t.Context(), to, bytes.NewReader(stream), archive.DefaultLimits()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(to, "closed"), 0o700) })
	was, is := tree(t, from), tree(t, to)
	// The directories themselves have names of their own.
	if was, is := was[1:], is[1:]; !slices.Equal(was, is) {
		t.Errorf("exported\n%s\nimported\n%s", strings.Join(was, "\n"), strings.Join(is, "\n"))
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(to, "sparse"), &st); err != nil || st.Blocks > 64 {
		t.Errorf("the file with a hole takes %d blocks: %v", st.Blocks, err)
	}
	if err := archive.Import(t.Context(), to, bytes.NewReader(stream), archive.DefaultLimits()); err == nil ||
		!strings.Contains(err.Error(), "not empty") {
		t.Errorf("an import over what is there: %v", err)
	}
}

// entries reads a stream.
func entries(t *testing.T, stream []byte) []*archive.Entry {
	t.Helper()
	r := archive.NewReader(bytes.NewReader(stream))
	var list []*archive.Entry
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
}

func TestExport_SendsOnlyWhatChanged(t *testing.T) {
	dir := hostile(t)
	var known bytes.Buffer
	enc := json.NewEncoder(&known)
	last := ""
	for _, e := range entries(t, export(t, dir, none())) {
		if path := string(e.Path); path != "." && last != "" && !archive.Before(last, path) {
			t.Errorf("%q comes after %q", path, last)
		} else if path != "." {
			last = path
		}
		if e.Kind == archive.KindFile {
			_ = enc.Encode(archive.Known{Path: e.Path, Size: e.Size, ModTime: e.ModTime, Changed: e.Changed, Inode: e.Inode})
		}
	}
	path := filepath.Join(dir, "a.txt")
	var before, after syscall.Stat_t
	if err := syscall.Stat(path, &before); err != nil {
		t.Fatal(err)
	}
	// The size stays, and the time of its content is set back. The time of change can't be; it moves
	// with the next tick of the file system's clock.
	for after = before; after.Ctim == before.Ctim; {
		if err := errors.Join(os.WriteFile(path, []byte("BESIDE A"), 0o600),
			os.Chtimes(path, time.Unix(1, 7), time.Unix(1, 7)), syscall.Stat(path, &after)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "empty")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "a-new"), []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	var sent []string
	for _, e := range entries(t, export(t, dir, &known)) {
		if e.Kind == archive.KindFile && !e.Same {
			sent = append(sent, string(e.Path))
		}
	}
	if want := []string{"a/a-new", "a.txt"}; !slices.Equal(sent, want) {
		t.Errorf("sent %q, want %q", sent, want)
	}
}

func TestImport_RefusesADamagedStream(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), bytes.Repeat([]byte("x"), 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	stream := export(t, dir, none())
	for name, change := range map[string]func([]byte) []byte{
		"cut":         func(b []byte) []byte { return b[:len(b)/2] },
		"end missing": func(b []byte) []byte { return b[:len(b)-2048] },
		"a byte":      func(b []byte) []byte { b[bytes.Index(b, []byte("xxxx"))+9] = 'y'; return b },
		"empty":       func([]byte) []byte { return nil },
	} {
		err := archive.Import(t.Context(), t.TempDir(), bytes.NewReader(change(bytes.Clone(stream))), archive.DefaultLimits())
		if !errors.Is(err, archive.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestImport_NeverLeavesTheDirectory(t *testing.T) {
	outside := t.TempDir()
	for name, list := range map[string][]archive.Entry{
		"up":       {{Path: []byte("../x"), Kind: archive.KindFile}},
		"absolute": {{Path: []byte("/tmp/x"), Kind: archive.KindFile}},
		"symlink": {
			{Path: []byte("l"), Kind: archive.KindSymlink, Target: []byte(outside)},
			{Path: []byte("l/x"), Kind: archive.KindFile},
		},
		"link":   {{Path: []byte("x"), Kind: archive.KindLink, Target: []byte("../../etc/passwd")}},
		"device": {{Path: []byte("x"), Kind: "device"}},
		"pieces": {
			{Path: []byte("x"), Kind: archive.KindFile, Size: 1, Pieces: []archive.Piece{{Offset: 1 << 62, Length: 0}}},
		},
	} {
		var stream bytes.Buffer
		w := archive.NewWriter(&stream)
		for i := range list {
			list[i].Mode = 0o600
			if err := w.Entry(&list[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := archive.Import(t.Context(), t.TempDir(), &stream, archive.DefaultLimits()); err == nil {
			t.Errorf("%s: it was imported", name)
		}
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("outside is %v", left)
	}
}

func TestExport_RefusesWhatIsTooLarge(t *testing.T) {
	dir := hostile(t)
	for name, l := range map[string]archive.Limits{
		"files": {Files: 5, Bytes: 1 << 30, Depth: 9},
		"bytes": {Files: 100, Bytes: 10, Depth: 9},
		"depth": {Files: 100, Bytes: 1 << 30, Depth: 0},
	} {
		if err := archive.Export(t.Context(), dir, none(), io.Discard, l); !errors.Is(err, archive.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExport_OfADirectoryThatChanges exports while a sandbox renames, truncates and replaces what is
// read. Each stream is whole all the same.
func TestExport_OfADirectoryThatChanges(t *testing.T) {
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			path := filepath.Join(dir, fmt.Sprint("n", i%7))
			_ = os.RemoveAll(path)
			switch i % 5 {
			case 0:
				_ = os.Symlink("/etc", path)
			case 1:
				_ = os.MkdirAll(path+"/sub", 0o700)
				_ = os.WriteFile(path+"/sub/f", []byte("f"), 0o600)
			case 2:
				_ = syscall.Mkfifo(path, 0o600)
			default:
				_ = os.WriteFile(path, bytes.Repeat([]byte("x"), i%100_000), 0o600)
				_ = os.Truncate(path, int64(i%1000))
			}
		}
	}()
	for range 300 {
		stream := export(t, dir, none())
		if err := archive.Import(t.Context(), t.TempDir(), bytes.NewReader(stream), archive.DefaultLimits()); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	<-done
}

// TestExport_ADirectoryThatBecomesAPipe: nothing that a sandbox does to its names makes an export
// wait for it.
func TestExport_ADirectoryThatBecomesAPipe(t *testing.T) {
	dir := t.TempDir()
	name, other := filepath.Join(dir, "n"), filepath.Join(t.TempDir(), "pipe")
	if err := errors.Join(os.Mkdir(name, 0o700), syscall.Mkfifo(other, 0o600)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	changed, exported := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(changed)
		for ctx.Err() == nil {
			if err := unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	go func() {
		defer close(exported)
		for range 5000 {
			export(t, dir, none())
		}
	}()
	select {
	case <-exported:
	case <-time.After(time.Minute):
		t.Error("an export waits for a pipe")
	}
	stop()
	<-changed
	for _, pipe := range []string{name, other} { // what waits goes on
		if f, err := os.OpenFile(pipe, os.O_RDWR|syscall.O_NONBLOCK, 0); err == nil {
			defer f.Close()
		}
	}
	<-exported
}

// The sandbox-agent of an earlier image writes the empty list of parts as none.
func TestReader_FileOfOnlyHolesFromAnEarlierProgram(t *testing.T) {
	raw := `{"p":"eA==","k":"file","m":384,"s":4096}`
	sum := sha256.Sum256([]byte(raw))
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	for _, h := range []*tar.Header{
		{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: "x", PAXRecords: map[string]string{"BIVOUAC.entry": raw}},
		{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"BIVOUAC.sum": hex.EncodeToString(sum[:])}},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := archive.Import(t.Context(), dir, &stream, archive.DefaultLimits()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "x")); err != nil || info.Size() != 4096 {
		t.Errorf("the file is %v: %v", info, err)
	}
}
