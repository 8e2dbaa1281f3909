package archive

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind is what an Entry is.
type Kind string

// The kinds. Sockets, pipes and devices have none: they are left out.
const (
	KindFile    Kind = "file"
	KindDir     Kind = "dir"
	KindSymlink Kind = "symlink"
	// KindLink is another name of a file that came before.
	KindLink Kind = "link"
)

// Entry is one name in the directory.
type Entry struct {
	// Path is relative to the directory, with "/"; "." is the directory itself. It may have any
	// byte but 0.
	Path []byte `json:"p"`
	Kind Kind   `json:"k"`
	// Mode are the permissions, with setuid, setgid and sticky as in stat(2).
	Mode int64 `json:"m"`
	UID  int   `json:"u,omitempty"`
	GID  int   `json:"g,omitempty"`
	// ModTime is in nanoseconds since 1970; 0 for a time outside of what those can say.
	ModTime int64 `json:"t,omitempty"`
	// Size is the length of a file in bytes, holes included.
	Size int64 `json:"s,omitempty"`
	// Target is the text of a symlink, or the path of the first name of a link.
	Target []byte `json:"l,omitempty"`
	// Pieces are the parts of a file with holes that have data: nil for a file without holes, empty
	// for one that is nothing else.
	Pieces []Piece `json:"h,omitzero"`
	// Changed (ctime, in nanoseconds) and Inode tell a file that was not changed since.
	Changed int64  `json:"c,omitempty"`
	Inode   uint64 `json:"i,omitempty"`
	// Same says that the content is that of the earlier copy and does not follow.
	Same bool `json:"-"`
}

// Piece is a part of a file, in bytes.
type Piece struct {
	Offset int64 `json:"o"`
	Length int64 `json:"n"`
}

// nanos returns a time in nanoseconds since 1970, 0 outside of what those can say.
func nanos(t time.Time) int64 {
	if t.Year() < 1700 || t.Year() > 2200 {
		return 0
	}
	return t.UnixNano()
}

// Content returns how many bytes of content follow the entry.
func (e *Entry) Content() int64 {
	if e.Same || e.Kind != KindFile {
		return 0
	}
	if e.Pieces == nil {
		return e.Size
	}
	var n int64
	for _, p := range e.Pieces {
		n += p.Length
	}
	return n
}

// Before reports whether an entry with path a comes before one with path b. A directory comes
// before what is in it, and all of that before the next name.
func Before(a, b string) bool {
	return strings.ReplaceAll(a, "/", "\x00") < strings.ReplaceAll(b, "/", "\x00")
}

// Known is what an earlier copy knows of a file. Those that an export reads are in the order of
// Before.
type Known struct {
	Path    []byte `json:"p"`
	Size    int64  `json:"s"`
	ModTime int64  `json:"t"`
	Changed int64  `json:"c"`
	Inode   uint64 `json:"i"`
}

// Limits bound what is exported or imported.
type Limits struct {
	// Files bounds the entries, Bytes their content, Depth the directories within each other.
	Files, Bytes int64
	Depth        int
}

// DefaultLimits are wide enough for a large checkout with its dependencies.
func DefaultLimits() Limits { return Limits{Files: 2_000_000, Bytes: 256 << 30, Depth: 256} }

// ErrTooLarge is wrapped by the error for a directory beyond the limits.
var ErrTooLarge = errors.New("the workspace is too large to be copied")

// ErrDamaged is wrapped by the error for a stream that is not whole, or not what was written.
var ErrDamaged = errors.New("the copy of the workspace is damaged")

func (l Limits) check(files, bytes int64) error {
	switch {
	case files > l.Files:
		return fmt.Errorf("%w: it has more than %d files", ErrTooLarge, l.Files)
	case bytes > l.Bytes:
		return fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, l.Bytes)
	}
	return nil
}
