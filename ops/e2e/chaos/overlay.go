package chaos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"bivouac.dev/bivouac/deploy/local"
)

// Overlay is a set of changed copies of source files for `go build -overlay`. It does not
// change the tree.
type Overlay struct {
	root, dir string
	changed   map[string][]byte // by path relative to root
}

// NewOverlay makes an overlay that stores its copies in dir.
func NewOverlay(dir string) (*Overlay, error) {
	root, err := local.Root()
	if err != nil {
		return nil, err
	}
	return &Overlay{root: root, dir: dir, changed: map[string][]byte{}}, nil
}

// source returns a file with the changes so far.
func (o *Overlay) source(file string) ([]byte, error) {
	if text, there := o.changed[file]; there {
		return text, nil
	}
	return os.ReadFile(filepath.Join(o.root, file))
}

// Mutate replaces the body of the function or method with that name in the file. It fails if
// there is none: a mutation that changes nothing would prove nothing.
func (o *Overlay) Mutate(file, name, body string) error {
	text, err := o.source(file)
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, text, 0)
	if err != nil {
		return err
	}
	for _, decl := range tree.Decls {
		f, is := decl.(*ast.FuncDecl)
		if !is || f.Name.Name != name {
			continue
		}
		begin, end := fset.Position(f.Body.Lbrace).Offset, fset.Position(f.Body.Rbrace).Offset
		out := append([]byte(nil), text[:begin+1]...)
		out = append(out, "\n"+body+"\n"...)
		out = append(out, text[end:]...)
		o.changed[file] = append(out, used(tree)...)
		return nil
	}
	return fmt.Errorf("there is no function %s in %s", name, file)
}

// versionFile declares the newest protocol version that a program knows.
const versionFile = "fsm/version.go"

// newestVersion is that declaration.
var newestVersion = regexp.MustCompile(`(?m)^const ProtocolVersion = (\d+)$`)

// NextVersion makes the overlay of a program that knows one protocol version more. It returns the
// path for `go build -overlay` and that version.
func NextVersion(dir string) (path string, version int, err error) {
	o, err := NewOverlay(dir)
	if err != nil {
		return "", 0, err
	}
	text, err := o.source(versionFile)
	if err != nil {
		return "", 0, err
	}
	found := newestVersion.FindSubmatch(text)
	if found == nil {
		return "", 0, fmt.Errorf("%s declares no ProtocolVersion", versionFile)
	}
	if version, err = strconv.Atoi(string(found[1])); err != nil {
		return "", 0, err
	}
	version++
	o.changed[versionFile] = newestVersion.ReplaceAll(text, fmt.Appendf(nil, "const ProtocolVersion = %d", version))
	path, err = o.Write()
	return path, version, err
}

// used adds a use of every import whose uses a mutation may have removed.
func used(tree *ast.File) (text string) {
	for _, i := range tree.Imports {
		switch strings.Trim(i.Path.Value, `"`) {
		case "time":
			text += "\nvar _ = time.Nanosecond\n"
		case "errors":
			text += "\nvar _ = errors.New\n"
		case "context":
			text += "\nvar _ = context.Background\n"
		case "fmt":
			text += "\nvar _ = fmt.Errorf\n"
		}
	}
	return text
}

// clockFolders are the folders of a node's packages, whose clock can be moved.
var clockFolders = []string{"cluster", "httpapi", "scheduler", "secrets", "cmd/bivouac"}

// MoveClocks makes those packages read a clock that a drill can move (Clock). It moves the wall
// clock only, by whole seconds. Go's monotonic reading stays correct, as on a real machine.
func (o *Overlay) MoveClocks() error {
	packages := map[string]string{} // folder to package name
	for _, folder := range clockFolders {
		err := filepath.WalkDir(filepath.Join(o.root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := filepath.Rel(o.root, path)
			if err != nil {
				return err
			}
			return o.moveClock(file, packages)
		})
		if err != nil {
			return err
		}
	}
	if len(packages) == 0 {
		return errors.New("no package reads the clock")
	}
	for folder, name := range packages {
		o.changed[filepath.Join(folder, "drill_clock.go")] = []byte(strings.Replace(clockSource, "PACKAGE", name, 1))
	}
	return nil
}

// moveClock replaces the clock calls in one file.
func (o *Overlay) moveClock(file string, packages map[string]string) error {
	text, err := o.source(file)
	if err != nil {
		return err
	}
	moved := bytes.Clone(text)
	for from, to := range map[string]string{
		"time.Now(":   "drillNow(",
		"time.Since(": "drillSince(",
		"time.Until(": "drillUntil(",
	} {
		moved = bytes.ReplaceAll(moved, []byte(from), []byte(to))
	}
	if bytes.Equal(moved, text) {
		return nil
	}
	tree, err := parser.ParseFile(token.NewFileSet(), file, text, parser.PackageClauseOnly)
	if err != nil {
		return err
	}
	if !strings.Contains(filepath.ToSlash(file), "agentserver") {
		packages[filepath.Dir(file)] = tree.Name.Name
		o.changed[file] = append(moved, "\nvar _ = time.Nanosecond\n"...)
	}
	return nil
}

// Write writes the copies and returns the path for `go build -overlay`.
func (o *Overlay) Write() (string, error) {
	replace := map[string]string{}
	for file, text := range o.changed {
		copied := filepath.Join(o.dir, strings.ReplaceAll(filepath.ToSlash(file), "/", "+"))
		if err := os.WriteFile(copied, text, 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(o.root, file)] = copied
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(o.dir, "overlay.json")
	return path, os.WriteFile(path, raw, 0o600)
}

// clockSource is added to each package with a movable clock. The offset is eight bytes of a
// file that the drill writes. The program maps the file, so each read sees the current offset
// without a system call.
const clockSource = `package PACKAGE

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

var drillOffset = sync.OnceValue(func() *int64 {
	none := new(int64)
	dir, node := os.Getenv("BIVOUAC_DRILL_DIR"), os.Getenv("BIVOUAC_DRILL_NODE")
	if dir == "" || node == "" {
		return none
	}
	f, err := os.OpenFile(filepath.Join(dir, "clock-"+node), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return none
	}
	defer f.Close()
	if f.Truncate(8) != nil { // a mapping of no bytes can't be read
		return none
	}
	page, err := syscall.Mmap(int(f.Fd()), 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return none
	}
	return (*int64)(unsafe.Pointer(&page[0]))
})

// drillNow moves the seconds of the wall clock and leaves the monotonic reading:
// they are bits 30 to 62 of a Time's first word.
func drillNow() time.Time {
	t := time.Now()
	*(*uint64)(unsafe.Pointer(&t)) += uint64(atomic.LoadInt64(drillOffset())) << 30
	return t
}

func drillSince(t time.Time) time.Duration { return drillNow().Sub(t) }

func drillUntil(t time.Time) time.Duration { return t.Sub(drillNow()) }
`
