package tools

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
	"golang.org/x/text/encoding/charmap"
)

// file is a text file. Its text has line feeds only and is UTF-8, whatever the file has; write
// gives the file its own back.
type file struct {
	path   string
	text   string
	crlf   bool
	latin1 bool
	isNew  bool
}

// readFile reads a text file. name is the path that a message shows.
func readFile(path, name string) (*file, error) {
	b, err := readBytes(path, name, maxFile)
	if err != nil {
		return nil, err
	}
	if bytes.IndexByte(b, 0) >= 0 {
		return nil, fmt.Errorf("File validation failed for %s: File appears to be binary and this file type cannot be "+
			"read or edited by this tool.", name)
	}
	f := &file{path: path, text: string(b)}
	if !utf8.Valid(b) {
		text, err := charmap.ISO8859_1.NewDecoder().Bytes(b)
		if err != nil {
			return nil, fmt.Errorf("File validation failed for %s: %w", name, err)
		}
		f.text, f.latin1 = string(text), true
	}
	// Lines that end in both ways are left as they are.
	if n := strings.Count(f.text, "\r\n"); n > 0 && n == strings.Count(f.text, "\n") && n == strings.Count(f.text, "\r") {
		f.text, f.crlf = strings.ReplaceAll(f.text, "\r\n", "\n"), true
	}
	return f, nil
}

// lines gives a text of the model the line ends of f.text.
func (f *file) lines(text string) string {
	if f.crlf {
		return strings.ReplaceAll(text, "\r\n", "\n")
	}
	return text
}

// readBytes reads a regular file of at most limit bytes. It does not wait for a pipe's writer.
func readBytes(path, name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("Ran into %w while trying to read %s", err, name)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("Ran into %w while trying to read %s", err, name)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("File validation failed for %s: it is no regular file (%s).", name, info.Mode().Type())
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("Ran into %w while trying to read %s", err, name)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("File validation failed for %s: File is too large (%.1fMB). Maximum allowed size is %dMB.",
			name, float64(max(info.Size(), int64(len(b))))/(1<<20), limit>>20)
	}
	return b, nil
}

// write writes the file so that either the old or the new content is there, and keeps its mode and
// its owner.
func (f *file) write() error {
	text := f.text
	if f.crlf {
		text = strings.ReplaceAll(text, "\n", "\r\n")
	}
	b := []byte(text)
	if f.latin1 {
		encoded, err := charmap.ISO8859_1.NewEncoder().Bytes(b)
		if err != nil {
			return fmt.Errorf("a character that the file's encoding (ISO 8859-1) does not have: %w", err)
		}
		b = encoded
	}
	if f.isNew {
		return writeNew(f.path, b)
	}
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	sys, _ := info.Sys().(*syscall.Stat_t)
	// A file that may not be written is not replaced either.
	may, err := os.OpenFile(f.path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_ = may.Close()
	// A new file can't take the place of one with several names, or in a directory that may not be
	// changed.
	if sys == nil || sys.Nlink > 1 {
		return writeInPlace(f.path, b)
	}
	err = replaceFile(f.path, b, info.Mode().Perm(), sys)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EBUSY) {
		return writeInPlace(f.path, b)
	}
	return err
}

// writeNew writes a file that does not exist. Nothing is left of one that can't be written whole.
func writeNew(path string, b []byte) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = out.Write(b)
	if closed := out.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = os.Remove(path)
	}
	return err
}

func replaceFile(path string, b []byte, mode os.FileMode, owner *syscall.Stat_t) error {
	out, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)),
		renameio.WithStaticPermissions(mode))
	if err != nil {
		return err
	}
	defer func() { _ = out.Cleanup() }()
	if info, err := out.Stat(); err != nil {
		return err
	} else if own, ok := info.Sys().(*syscall.Stat_t); !ok || own.Uid != owner.Uid || own.Gid != owner.Gid {
		if err := out.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
		if err := out.Chmod(mode); err != nil {
			return err
		}
	}
	if _, err := out.Write(b); err != nil {
		return err
	}
	return out.CloseAtomicallyReplace()
}

// writeInPlace overwrites a file. When that fails, it writes the old content back, whose room the
// file still has.
func writeInPlace(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	old, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return err
	}
	write := func(b []byte) error {
		if _, err := f.WriteAt(b, 0); err != nil {
			return err
		}
		return f.Truncate(int64(len(b)))
	}
	if err := write(b); err != nil {
		if again := write(old); again != nil {
			return fmt.Errorf("%w; the old content could not be restored either: %w", err, again)
		}
		return err
	}
	return f.Sync()
}

// undoLog keeps the last changes of files, bounded in number and size.
type undoLog struct {
	changes []fileChange
	bytes   int
}

type fileChange struct{ path, before, after string }

func (u *undoLog) push(path, before, after string) {
	u.changes = append(u.changes, fileChange{path, before, after})
	u.bytes += len(before) + len(after)
	n := 0
	for _, c := range u.changes {
		if c.path == path {
			n++
		}
	}
	for i := 0; i < len(u.changes)-1 && (n > maxUndo || u.bytes > maxUndoBytes); {
		if u.bytes <= maxUndoBytes && u.changes[i].path != path {
			i++
			continue
		}
		if u.changes[i].path == path {
			n--
		}
		u.remove(i)
	}
}

func (u *undoLog) remove(i int) {
	u.bytes -= len(u.changes[i].before) + len(u.changes[i].after)
	u.changes = append(u.changes[:i], u.changes[i+1:]...)
}

// last returns the last change of a path.
func (u *undoLog) last(path string) (before, after string, any bool) {
	for i := len(u.changes) - 1; i >= 0; i-- {
		if c := u.changes[i]; c.path == path {
			return c.before, c.after, true
		}
	}
	return "", "", false
}

// pop forgets the last change of a path.
func (u *undoLog) pop(path string) {
	for i := len(u.changes) - 1; i >= 0; i-- {
		if u.changes[i].path == path {
			u.remove(i)
			return
		}
	}
}
