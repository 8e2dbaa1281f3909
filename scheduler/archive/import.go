package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Import makes the directory's content of a stream. The directory is there and empty. It returns
// nil only if the stream was whole and everything is on the disk. It never leaves the directory:
// a path or link that would is ErrDamaged or an error of the system.
func Import(ctx context.Context, dir string, in io.Reader, limits Limits) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("opening the workspace: %w", err)
	}
	defer func() { _ = root.Close() }()
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	if names, err := d.Readdirnames(1); len(names) > 0 || !errors.Is(err, io.EOF) {
		return fmt.Errorf("the directory %s is not empty", dir)
	}
	m := &importer{ctx: ctx, root: root, r: NewReader(in), limits: limits, buf: make([]byte, 256<<10)}
	if err := m.run(); err != nil {
		return err
	}
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("writing the workspace to the disk: %w", err)
	}
	return nil
}

// importer is one import.
type importer struct {
	ctx          context.Context
	root         *os.Root
	r            *Reader
	limits       Limits
	files, bytes int64
	// closed are directories that their owner can't write: they get their modes at the end.
	closed []*Entry
	buf    []byte
}

func (m *importer) run() error {
	for {
		if err := m.ctx.Err(); err != nil {
			return err
		}
		e, err := m.r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		m.files++
		m.bytes += e.Content()
		if err := m.limits.check(m.files, m.bytes); err != nil {
			return err
		}
		if err := m.entry(e); err != nil {
			return fmt.Errorf("writing %q: %w", e.Path, err)
		}
	}
	// What is in a directory comes before it, while it is still open.
	for _, e := range slices.Backward(m.closed) {
		if err := m.root.Chmod(string(e.Path), fileMode(e.Mode)); err != nil {
			return err
		}
	}
	return nil
}

func (m *importer) entry(e *Entry) error {
	path := string(e.Path)
	if !clean(path) || e.Same {
		return fmt.Errorf("%w: a path or content that no export writes", ErrDamaged)
	}
	switch e.Kind {
	case KindDir:
		return m.dir(path, e)
	case KindFile:
		return m.file(path, e)
	case KindSymlink:
		if err := m.root.Symlink(string(e.Target), path); err != nil {
			return err
		}
		return allowed(m.root.Lchown(path, e.UID, e.GID))
	case KindLink:
		if !clean(string(e.Target)) {
			return fmt.Errorf("%w: a link out of the workspace", ErrDamaged)
		}
		return m.root.Link(string(e.Target), path)
	}
	return fmt.Errorf("%w: an entry of the unknown kind %q", ErrDamaged, e.Kind)
}

func (m *importer) dir(path string, e *Entry) error {
	if path != "." {
		if err := m.root.Mkdir(path, 0o700); err != nil {
			return err
		}
	}
	if err := allowed(m.root.Chown(path, e.UID, e.GID)); err != nil {
		return err
	}
	mode := e.Mode
	if mode&0o700 != 0o700 {
		m.closed = append(m.closed, e)
		mode |= 0o700
	}
	return m.root.Chmod(path, fileMode(mode))
}

func (m *importer) file(path string, e *Entry) (err error) {
	f, err := m.root.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	parts := e.Pieces
	if parts == nil {
		parts = []Piece{{0, e.Size}}
	}
	for _, p := range parts {
		if p.Offset < 0 || p.Length < 0 || p.Offset > e.Size-p.Length {
			return fmt.Errorf("%w: a part beyond the file's end", ErrDamaged)
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{io.NewOffsetWriter(f, p.Offset)}, io.LimitReader(m.r, p.Length), m.buf)
		if err != nil {
			return err
		}
		if n != p.Length {
			return fmt.Errorf("%w: a file ends early", ErrDamaged)
		}
	}
	if e.Pieces != nil {
		if err := f.Truncate(e.Size); err != nil {
			return err
		}
	}
	// chown clears setuid and setgid, so it comes first.
	if err := allowed(f.Chown(e.UID, e.GID)); err != nil {
		return err
	}
	if err := f.Chmod(fileMode(e.Mode)); err != nil {
		return err
	}
	at := time.Unix(0, e.ModTime)
	return m.root.Chtimes(path, at, at)
}

// allowed drops the error of a change of owner that only root may make.
func allowed(err error) error {
	if errors.Is(err, syscall.EPERM) && os.Geteuid() != 0 {
		return nil
	}
	return err
}

// fileMode converts the mode of stat(2).
func fileMode(mode int64) os.FileMode {
	m := os.FileMode(mode & 0o777)
	for bit, is := range map[int64]os.FileMode{0o4000: os.ModeSetuid, 0o2000: os.ModeSetgid, 0o1000: os.ModeSticky} {
		if mode&bit != 0 {
			m |= is
		}
	}
	return m
}
