package tools

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
	"golang.org/x/sys/unix"
)

// maxIgnore bounds a .gitignore that is read, in bytes.
const maxIgnore = 256 << 10

// ignores are the rules of the .gitignore files of a search: those of the directories from the
// repository's down to the one that is searched, and those below, which walk adds. Files in a directory that
// is ignored and named by the search are not.
type ignores struct {
	base  string
	rules map[string][]gitignore.Pattern // by directory, with those from above
}

// ignoresFor reads the rules above a directory.
func ignoresFor(dir string) *ignores {
	repository := dir
	for !exists(filepath.Join(repository, ".git")) && filepath.Dir(repository) != repository {
		repository = filepath.Dir(repository)
	}
	if !exists(filepath.Join(repository, ".git")) {
		repository = dir
	}
	g := &ignores{base: repository, rules: map[string][]gitignore.Pattern{}}
	above := g.parse(filepath.Join(repository, ".git", "info", "exclude"), nil)
	below := g.parts(dir)
	for i := range below {
		at := filepath.Join(repository, filepath.Join(below[:i]...))
		above = append(above, g.parse(filepath.Join(at, ".gitignore"), below[:i])...)
		if gitignore.NewMatcher(above).Match(below[:i+1], true) {
			above = nil
			break
		}
	}
	g.rules[dir] = slices.Concat(above, g.parse(filepath.Join(dir, ".gitignore"), below))
	return g
}

// parts are the names of a path below the base.
func (g *ignores) parts(path string) []string {
	below, err := filepath.Rel(g.base, path)
	if err != nil || below == "." {
		return nil
	}
	return strings.Split(below, string(filepath.Separator))
}

// match reports whether an entry of a directory that was entered is ignored. It reads the rules of one
// that is not.
func (g *ignores) match(path string, isDir bool) bool {
	rules := g.rules[filepath.Dir(path)]
	parts := g.parts(path)
	if len(rules) > 0 && gitignore.NewMatcher(rules).Match(parts, isDir) {
		return true
	}
	if isDir {
		g.rules[path] = append(slices.Clip(rules), g.parse(filepath.Join(path, ".gitignore"), parts)...)
	}
	return false
}

// parse reads the rules of a file for a directory, none if it can't be read.
func (g *ignores) parse(path string, dir []string) (rules []gitignore.Pattern) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	lines := bufio.NewScanner(io.LimitReader(f, maxIgnore))
	for lines.Scan() {
		if line := lines.Text(); strings.TrimSpace(line) != "" && line[0] != '#' {
			rules = append(rules, gitignore.ParsePattern(line, dir))
		}
	}
	return rules
}
