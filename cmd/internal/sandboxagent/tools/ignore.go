package tools

import (
	"bufio"
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
	"golang.org/x/sys/unix"
)

// Bounds of the .gitignore files of a search, which a clone from anywhere may have.
const (
	maxIgnore      = 256 << 10 // bytes of those that are in force at one time
	maxIgnoreTries = 1 << 28   // rules that are tried, times the names of a path, and bytes that are read
)

// ignores are the rules of the .gitignore files of a search: those of the directories from the
// repository's down to the one that is searched, and those below, which walk adds and leaves again.
// Files in a directory that is ignored and named by the search are not.
type ignores struct {
	base   string
	levels []ignoreLevel // of the directories down to the one whose entries are matched
	size   int           // of the files in force, in bytes
	tries  int           // those that are left
	partly bool          // a file was left out, since there are too many rules
}

// ignoreLevel is the rules of a file for a directory, which has a depth below the base.
type ignoreLevel struct {
	dir         string
	depth, size int
	rules       []gitignore.Pattern
}

// ignoresFor reads the rules above a directory.
func ignoresFor(ctx context.Context, dir string) *ignores {
	repository := cmp.Or(GitRoot(dir), dir)
	g := &ignores{base: repository, tries: maxIgnoreTries}
	g.enter(repository, filepath.Join(".git", "info", "exclude"))
	below := g.parts(dir)
	for i := range below {
		g.enter(filepath.Join(repository, filepath.Join(below[:i]...)), ".gitignore")
		if g.ignored(ctx, below[:i+1], true) {
			g.levels, g.size = nil, 0
			break
		}
	}
	g.enter(dir, ".gitignore")
	return g
}

// GitRoot returns the directory with a .git that dir is in, or "".
func GitRoot(dir string) string {
	for !exists(filepath.Join(dir, ".git")) {
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
	return dir
}

// parts are the names of a path below the base.
func (g *ignores) parts(path string) []string {
	below, err := filepath.Rel(g.base, path)
	if err != nil || below == "." {
		return nil
	}
	return strings.Split(below, string(filepath.Separator))
}

// match reports whether an entry of a directory that was entered is ignored, and drops the rules of
// the directories below that were left. It reads the rules of a directory that is not ignored.
func (g *ignores) match(ctx context.Context, path string, isDir bool) bool {
	for n := len(g.levels) - 1; n >= 0 && g.levels[n].dir != filepath.Dir(path); n-- {
		g.size -= g.levels[n].size
		g.levels[n] = ignoreLevel{} // frees its rules
		g.levels = g.levels[:n]
	}
	if g.ignored(ctx, g.parts(path), isDir) {
		return true
	}
	if isDir {
		g.enter(path, ".gitignore")
	}
	return false
}

// ignored reports what the last rule says that matches. It ends early with the tries and the context.
func (g *ignores) ignored(ctx context.Context, parts []string, isDir bool) bool {
	const asks = 1 << 10 // rules between two looks at the context
	for n := len(g.levels) - 1; n >= 0; n-- {
		l := g.levels[n]
		for i := len(l.rules) - 1; i >= 0; i-- {
			if g.tries -= len(parts) - l.depth; g.tries < 0 || i%asks == 0 && ctx.Err() != nil {
				return false
			}
			if says := l.rules[i].Match(parts[l.depth:], isDir); says != gitignore.NoMatch {
				return says == gitignore.Exclude
			}
		}
	}
	return false
}

// enter reads the rules of a file of a directory, none if it can't be read.
func (g *ignores) enter(dir, name string) {
	l := ignoreLevel{dir: dir, depth: len(g.parts(dir))}
	defer func() {
		g.levels, g.size, g.tries = append(g.levels, l), g.size+l.size, g.tries-l.size
	}()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	if info.Size() > int64(maxIgnore-g.size) {
		g.partly = true
		return
	}
	l.size = int(info.Size())
	lines := bufio.NewScanner(io.LimitReader(f, info.Size()))
	lines.Buffer(nil, maxIgnore+1)
	for lines.Scan() {
		if line := lines.Text(); strings.TrimSpace(line) != "" && line[0] != '#' {
			l.rules = append(l.rules, gitignore.ParsePattern(line, nil)) // matched below the directory
		}
	}
}
