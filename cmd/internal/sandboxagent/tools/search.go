package tools

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/credential"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// Bounds of a search.
const (
	maxFound    = 100     // files in one observation
	maxSearched = 100_000 // files and directories that are looked at
	maxGrep     = 2 << 20 // bytes of a file whose text is searched
	maxGrepAll  = 1 << 30 // bytes of all files
)

// search is what glob and grep have in common.
type search struct {
	// kind is the beginning of the kinds of the action and the observation.
	kind, pattern, path string
	members             map[string]any
	// name and text are what a file's path below the directory and its text must match; nil is all.
	name, text *regexp.Regexp
	// bytes are how much text was searched.
	bytes int64
	// unruled means that not all .gitignore files count.
	unruled bool
}

// globTool finds files by their names.
type globTool struct{ c Config }

//nolint:lll // a description is one tag
type globAction struct {
	Kind    string  `json:"kind" tool:"-"`
	Pattern string  `json:"pattern" tool:"required" jsonschema:"The glob pattern of the paths, such as **/*.go or src/**/test_*.py."`
	Path    *string `json:"path" jsonschema:"The directory to search in, absolute. Default: the working directory."`
}

// Definition implements Tool.
func (t globTool) Definition() Definition {
	return searchDefinition(GlobName, "Glob", "Find files by a glob pattern, the newest first, at most 100. "+
		"* is within a directory, ** is any number of them. What .gitignore names is left out.",
		Parameters(SchemaOf[globAction]()))
}

// Parse implements Tool.
func (globTool) Parse(arguments string) (Call, error) {
	var a globAction
	call, err := parse(arguments, "GlobAction", &a)
	if err == nil {
		_, err = globExpression(a.Pattern)
	}
	return call, err
}

// Run implements Tool.
func (t globTool) Run(ctx context.Context, action json.RawMessage) Observation {
	var a globAction
	err := json.Unmarshal(action, &a)
	s := search{kind: "Glob", pattern: a.Pattern, path: t.c.below(a.Path)}
	if err == nil {
		s.name, err = globExpression(a.Pattern)
	}
	return s.run(ctx, t.c, "files", err)
}

// grepTool finds files by their text.
type grepTool struct{ c Config }

//nolint:lll // a description is one tag
type grepAction struct {
	Kind    string  `json:"kind" tool:"-"`
	Pattern string  `json:"pattern" tool:"required" jsonschema:"The regular expression (RE2) that a line matches, in upper or lower case."`
	Path    *string `json:"path" jsonschema:"The directory to search in, absolute. Default: the working directory."`
	Include *string `json:"include" jsonschema:"A glob pattern of the files to search in, such as *.go or src/**/*.{ts,tsx}."`
}

// Definition implements Tool.
func (t grepTool) Definition() Definition {
	return searchDefinition(GrepName, "Grep", "Find the files with a line that matches a regular expression, "+
		"the newest first, at most 100. View them for the lines. What .gitignore names is left out.",
		Parameters(SchemaOf[grepAction]()))
}

// Parse implements Tool.
func (grepTool) Parse(arguments string) (Call, error) {
	var a grepAction
	call, err := parse(arguments, "GrepAction", &a)
	if err == nil {
		_, _, err = a.expressions()
	}
	return call, err
}

// expressions are those of the lines and of the names; the latter is nil for all.
func (a *grepAction) expressions() (text, name *regexp.Regexp, err error) {
	if text, err = regexp.Compile("(?i)" + a.Pattern); err != nil {
		return nil, nil, fmt.Errorf("the pattern is no regular expression: %w", err)
	}
	if a.Include == nil || *a.Include == "" {
		return text, nil, nil
	}
	include := *a.Include
	if !strings.Contains(include, "/") {
		include = "**/" + include
	}
	name, err = globExpression(include)
	return text, name, err
}

// Run implements Tool.
func (t grepTool) Run(ctx context.Context, action json.RawMessage) Observation {
	var a grepAction
	err := json.Unmarshal(action, &a)
	s := search{kind: "Grep", pattern: a.Pattern, path: t.c.below(a.Path),
		members: map[string]any{"include_pattern": a.Include}}
	if err == nil {
		s.text, s.name, err = a.expressions()
	}
	return s.run(ctx, t.c, "matches", err)
}

func searchDefinition(name, kind, description string, parameters json.RawMessage) Definition {
	return Definition{
		Name: name, Title: name, Kind: kind + "Tool", ActionType: kind + "Action", ObservationType: kind + "Observation",
		Description: description, Parameters: parameters, OnlyNamed: true,
		Annotations: &event.ToolAnnotations{Title: name, ReadOnlyHint: true, IdempotentHint: true},
	}
}

// below is the directory to search in.
func (c Config) below(path *string) string {
	if path == nil || *path == "" {
		return c.WorkingDir
	}
	if filepath.IsAbs(*path) {
		return filepath.Clean(*path)
	}
	return filepath.Join(c.WorkingDir, *path)
}

// run searches as the tools' user. list is the member with the paths; wrong is what is wrong with the
// action.
func (s *search) run(ctx context.Context, c Config, list string, wrong error) Observation {
	kind := s.kind + "Observation"
	members := map[string]any{list: []string{}, "pattern": s.pattern, "search_path": s.path, "truncated": false}
	maps.Copy(members, s.members)
	if wrong != nil {
		return failed(kind, wrong.Error(), members)
	}
	return Within(ctx, kind, func() Observation {
		var found []string
		var more bool
		err := credential.Do(c.Credential, func() (err error) {
			found, more, err = s.find(ctx)
			return err
		})
		if err != nil {
			return failed(kind, err.Error(), members)
		}
		with := maps.Clone(members) // the other function may read it at the same time
		with[list], with["truncated"] = found, more
		text := strings.Join(found, "\n")
		switch {
		case len(found) == 0 && more:
			text = fmt.Sprintf("Nothing in the first part of %s matches %q.\n[It is too large. Search a directory of it.]",
				s.path, s.pattern)
		case len(found) == 0:
			text = fmt.Sprintf("Nothing in %s matches %q.", s.path, s.pattern)
		case more:
			text += "\n[There are more. Use a narrower pattern.]"
		}
		if s.unruled {
			text += fmt.Sprintf("\n[Files of .gitignore are not followed: those for a directory have more than %d KiB.]",
				maxIgnore>>10)
		}
		return Observation{Kind: kind, Members: with,
			Content: []event.Content{event.TextContent(Mask(c.Secrets(), text))}}
	}, func() Observation { return failed(kind, "The call was interrupted.", members) })
}

// errEnough ends a search that has looked at as much as it may.
var errEnough = errors.New("enough")

// find returns the files that match, the newest first, and whether there may be more. What can't be
// read is passed over.
func (s *search) find(ctx context.Context) (found []string, more bool, err error) {
	if info, err := os.Stat(s.path); err != nil || !info.IsDir() {
		return nil, false, fmt.Errorf("%s is no directory that can be read", s.path)
	}
	age, seen, ignored := map[string]int64{}, 0, ignoresFor(ctx, s.path)
	defer func() { s.unruled = ignored.partly }()
	found = []string{}
	err = filepath.WalkDir(s.path, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return nil
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case path == s.path:
			return nil
		}
		if seen++; seen > maxSearched || s.bytes > maxGrepAll || ignored.tries < 0 {
			more = true
			return errEnough
		}
		switch hidden := ignored.match(ctx, path, d.IsDir()); {
		case d.IsDir() && hidden:
			return filepath.SkipDir
		case hidden || !d.Type().IsRegular():
			return nil
		}
		below, err := filepath.Rel(s.path, path)
		if err != nil || s.name != nil && !s.name.MatchString(filepath.ToSlash(below)) || s.text != nil && !s.inText(path) {
			return nil
		}
		if info, err := d.Info(); err == nil {
			age[path] = -info.ModTime().UnixNano()
			found = append(found, path)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, false, err
	}
	slices.SortFunc(found, func(a, b string) int { return cmp.Or(cmp.Compare(age[a], age[b]), strings.Compare(a, b)) })
	if len(found) > maxFound {
		found, more = found[:maxFound], true
	}
	return found, more, nil
}

// inText reports whether a line of a file matches. A file that is large or no text has none.
func (s *search) inText(path string) bool {
	// The file may be another one by now: a link is not followed, and a pipe is not waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxGrep {
		return false
	}
	s.bytes += info.Size()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxGrep+1)
	for lines.Scan() {
		if slices.Contains(lines.Bytes(), 0) {
			return false
		}
		if s.text.Match(lines.Bytes()) {
			return true
		}
	}
	return false
}

// globExpression is a glob pattern as a regular expression for a whole path.
func globExpression(pattern string) (*regexp.Regexp, error) {
	var b strings.Builder
	b.WriteString("^")
	depth := 0
	for i := 0; i < len(pattern); i++ {
		rest := pattern[i:]
		switch c := pattern[i]; {
		case strings.HasPrefix(rest, "**/"):
			b.WriteString("(?:.*/)?")
			i += 2
		case strings.HasPrefix(rest, "**"):
			b.WriteString(".*")
			i++
		case c == '*':
			b.WriteString("[^/]*")
		case c == '?':
			b.WriteString("[^/]")
		case c == '{':
			depth++
			b.WriteString("(?:")
		case c == '}' && depth > 0:
			depth--
			b.WriteString(")")
		case c == ',' && depth > 0:
			b.WriteString("|")
		case c == '[' && strings.IndexByte(rest, ']') > 1:
			end := strings.IndexByte(rest, ']')
			class := strings.ReplaceAll(rest[1:end], `\`, `\\`)
			if other, is := strings.CutPrefix(class, "!"); is {
				class = "^" + other
			}
			b.WriteString("[" + class + "]")
			i += end
		default:
			_, size := utf8.DecodeRuneInString(rest)
			b.WriteString(regexp.QuoteMeta(rest[:size]))
			i += size - 1
		}
	}
	re, err := regexp.Compile(b.String() + "$")
	if err != nil || depth != 0 || pattern == "" {
		return nil, fmt.Errorf("%q is no glob pattern", pattern)
	}
	return re, nil
}
