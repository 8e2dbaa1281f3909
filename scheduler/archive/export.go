package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Export writes the directory to out. known lists the files of the earlier copy, as JSON values of
// Known; the content of a file that is unchanged since does not follow again. It never leaves the
// directory and follows no symlink. A file that grows while it is read is cut, one that shrinks is
// filled with zeros: the next export finds it changed. A directory beyond the limits is
// ErrTooLarge.
func Export(ctx context.Context, dir string, known io.Reader, out io.Writer, limits Limits) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("opening the workspace: %w", err)
	}
	defer func() { _ = root.Close() }()
	x := &exporter{
		ctx:    ctx,
		w:      NewWriter(out),
		known:  json.NewDecoder(known),
		limits: limits,
		links:  map[uint64][]byte{},
		buf:    make([]byte, 256<<10),
	}
	info, err := root.Lstat(".")
	if err == nil {
		err = x.entry(root, ".", ".", info)
	}
	if err == nil {
		err = x.walk(root, "", 0)
	}
	if err != nil {
		return err
	}
	return x.w.Close()
}

// exporter is one export.
type exporter struct {
	ctx    context.Context
	w      *Writer
	known  *json.Decoder
	next   *Known // the known file that was read and not passed yet
	limits Limits
	files  int64
	bytes  int64
	// links has the first path of each file with several names.
	links map[uint64][]byte
	buf   []byte
}

// namesAtOnce is how many names of a directory are read before the count is checked.
const namesAtOnce = 8192

// walk exports what is in the directory r, whose path is prefix.
func (x *exporter) walk(r *os.Root, prefix string, depth int) error {
	if depth > x.limits.Depth {
		return fmt.Errorf("%w: it has more than %d directories within each other", ErrTooLarge, x.limits.Depth)
	}
	names, err := x.names(r)
	if err != nil {
		return fmt.Errorf("reading the directory %q: %w", prefix, err)
	}
	for _, name := range names {
		if err := x.ctx.Err(); err != nil {
			return err
		}
		info, err := r.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		path := prefix + name
		if err == nil {
			err = x.entry(r, name, path, info)
		}
		if err == nil && info.IsDir() {
			err = x.descend(r, name, path+"/", depth)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *exporter) descend(r *os.Root, name, prefix string, depth int) error {
	// With the dot the kernel refuses a name that is no directory any more. Opening a pipe would wait.
	sub, err := r.OpenRoot(name + "/.")
	if err != nil {
		if errors.Is(err, syscall.ENOTDIR) || replaced(r, name, fs.ModeDir) {
			return nil
		}
		return fmt.Errorf("opening the directory %q: %w", prefix, err)
	}
	defer func() { _ = sub.Close() }()
	return x.walk(sub, prefix, depth+1)
}

// replaced reports whether a name is gone, or is something else than it was a moment ago. The
// errors of package os don't say so in every case.
func replaced(r *os.Root, name string, was fs.FileMode) bool {
	info, err := r.Lstat(name)
	return errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Type() != was
}

// names returns the names in a directory, sorted.
func (x *exporter) names(r *os.Root) ([]string, error) {
	d, err := r.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	var names []string
	for {
		some, err := d.Readdirnames(namesAtOnce)
		names = append(names, some...)
		if over := x.limits.check(x.files+int64(len(names)), 0); over != nil {
			return nil, over
		}
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// entry exports one name of the directory r.
func (x *exporter) entry(r *os.Root, name, path string, info fs.FileInfo) error {
	st, is := info.Sys().(*syscall.Stat_t)
	if !is {
		return errors.New("this system has no stat(2)")
	}
	e := &Entry{
		Path: []byte(path), Mode: int64(st.Mode & 0o7777), UID: int(st.Uid), GID: int(st.Gid), ModTime: nanos(info.ModTime()),
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		e.Kind = KindDir
	case fs.ModeSymlink:
		target, err := r.Readlink(name)
		if err != nil && replaced(r, name, fs.ModeSymlink) {
			return nil
		}
		if err != nil {
			return err
		}
		e.Kind, e.Target = KindSymlink, []byte(target)
	case 0:
		return x.file(r, name, e)
	default:
		return nil
	}
	return x.put(e)
}

func (x *exporter) put(e *Entry) error {
	x.files++
	x.bytes += e.Content()
	if err := x.limits.check(x.files, x.bytes); err != nil {
		return err
	}
	return x.w.Entry(e)
}

// file exports a regular file: a link to an earlier name, a file that is known, or its content.
func (x *exporter) file(r *os.Root, name string, e *Entry) error {
	// It may have become a pipe, whose opening would wait.
	f, err := r.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	for tries := 0; err != nil && tries < triesToOpen; tries++ {
		if replaced(r, name, 0) {
			return nil
		}
		f, err = r.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	}
	if err != nil {
		return fmt.Errorf("opening %q: %w", e.Path, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	st := info.Sys().(*syscall.Stat_t)
	e.Kind, e.Size, e.ModTime = KindFile, info.Size(), nanos(info.ModTime())
	e.Changed, e.Inode = nanos(time.Unix(st.Ctim.Unix())), st.Ino
	if st.Nlink > 1 {
		if first := x.links[st.Ino]; first != nil {
			e.Kind, e.Target, e.Size, e.Changed, e.Inode = KindLink, first, 0, 0, 0
			return x.put(e)
		}
		x.links[st.Ino] = e.Path
	}
	e.Pieces = pieces(f, st)
	if e.Same, err = x.unchanged(e); err != nil {
		return err
	}
	if err := x.put(e); err != nil || e.Same {
		return err
	}
	if e.Pieces == nil {
		return x.content(f, Piece{0, e.Size})
	}
	for _, p := range e.Pieces {
		if err := x.content(f, p); err != nil {
			return err
		}
	}
	return nil
}

// triesToOpen is how often a file is opened again that was another thing at the moment of opening.
const triesToOpen = 5

// content writes a part of the file. What is no longer there is zeros.
func (x *exporter) content(f *os.File, p Piece) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{x.w}, io.NewSectionReader(f, p.Offset, p.Length), x.buf)
	if err != nil {
		return fmt.Errorf("reading %q: %w", f.Name(), err)
	}
	clear(x.buf)
	for left := p.Length - n; left > 0; {
		some := min(left, int64(len(x.buf)))
		if _, err := x.w.Write(x.buf[:some]); err != nil {
			return err
		}
		left -= some
	}
	return x.ctx.Err()
}

// unchanged reports whether the earlier copy has the file as it is. Both are in the same order.
func (x *exporter) unchanged(e *Entry) (bool, error) {
	path := string(e.Path)
	for {
		if x.next == nil {
			k := &Known{}
			err := x.known.Decode(k)
			if errors.Is(err, io.EOF) {
				return false, nil
			}
			if err != nil {
				return false, fmt.Errorf("reading the list of known files: %w", err)
			}
			x.next = k
		}
		is := string(x.next.Path)
		if Before(path, is) {
			return false, nil
		}
		k := x.next
		x.next = nil
		if is == path {
			return k.Size == e.Size && k.ModTime == e.ModTime && k.Changed == e.Changed && k.Inode == e.Inode, nil
		}
	}
}

// maxPieces bounds the parts of one file with holes. What is behind them counts as data.
const maxPieces = 512

// pieces returns the parts of a file that have data; nil where it has no holes to speak of.
func pieces(f *os.File, st *syscall.Stat_t) []Piece {
	const block = 512
	if st.Blocks*block >= st.Size {
		return nil
	}
	list, fd := []Piece{}, int(f.Fd())
	for at := int64(0); at < st.Size; {
		begin, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || begin >= st.Size {
			break
		}
		end, err2 := unix.Seek(fd, begin, unix.SEEK_HOLE)
		if err != nil || err2 != nil || end <= begin {
			return nil
		}
		if len(list) == maxPieces-1 {
			end = st.Size
		}
		end = min(end, st.Size)
		list = append(list, Piece{begin, end - begin})
		at = end
	}
	return list
}

// clean reports whether a path of a stream stays below the directory.
func clean(path string) bool {
	if path == "." {
		return true
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return !strings.ContainsRune(path, 0)
}
