package skills

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
)

// Bounds of what is read.
const (
	maxFile    = 256 << 10 // bytes
	maxSkills  = 500       // of a catalog
	maxEntries = 5000      // of a directory of skills
)

// Options say where skills are. An empty directory has none.
type Options struct {
	// WorkingDir is the absolute directory of the project. The root of its git repository is read
	// too, after it.
	WorkingDir string
	// Home is the user's absolute home.
	Home string
}

// Failure is a file that was left out.
type Failure struct {
	Path string
	Err  error
}

// Catalog is what Load found. It does not change, so it is safe for concurrent use.
type Catalog struct {
	dir      string
	project  []Skill
	user     []Skill
	failures []Failure
}

// Load reads the skills of a project and of a user. A file that can't be read is left out and told in
// Failures. Of one name the first counts: the working directory's before the repository root's,
// instruction files before skills, .agents/skills before .openhands/skills and
// .openhands/microagents, and the project's before the user's.
func Load(o Options) *Catalog {
	c := &Catalog{dir: o.WorkingDir}
	seen := map[string]bool{}
	if o.WorkingDir != "" {
		roots := []string{o.WorkingDir}
		if root := tools.GitRoot(o.WorkingDir); root != "" && root != o.WorkingDir {
			roots = append(roots, root)
		}
		for _, root := range roots {
			c.project = c.add(c.project, seen, c.instructions(root))
		}
		for _, root := range roots {
			for _, dir := range []string{".agents/skills", ".openhands/skills", ".openhands/microagents"} {
				c.project = c.add(c.project, seen, c.directory(root, dir))
			}
		}
	}
	if o.Home != "" {
		for _, dir := range []string{".agents/skills", ".openhands/skills", ".openhands/microagents"} {
			c.user = c.add(c.user, seen, c.directory(o.Home, dir))
		}
	}
	return c
}

// Skills returns all skills, the project's first.
func (c *Catalog) Skills() []Skill { return slices.Concat(c.project, c.user) }

// Project returns the project's skills, which hide the user's of the same name.
func (c *Catalog) Project() []Skill { return slices.Clone(c.project) }

// User returns the user's skills.
func (c *Catalog) User() []Skill { return slices.Clone(c.user) }

// Failures returns the files that were left out, for a log.
func (c *Catalog) Failures() []Failure { return slices.Clone(c.failures) }

// With returns a catalog that has, after its own skills, those of a list whose names it does not know.
// What is too large, or of an unknown type, is left out and told in Failures.
func (c *Catalog) With(more []Skill) *Catalog {
	out := *c
	out.failures = slices.Clone(c.failures)
	seen := map[string]bool{}
	for _, s := range c.Skills() {
		seen[s.Name] = true
	}
	var usable []Skill
	for _, s := range more {
		switch {
		case s.Name == "" || len(s.Content) > maxFile:
			out.fail(s.Name, fmt.Errorf("a skill needs a name, and a text of at most %d bytes", maxFile))
		case s.Type != TypeRepo && s.Type != TypeKnowledge && s.Type != TypeAgentSkills:
			out.fail(s.Name, fmt.Errorf("there is no type %q of skills", s.Type))
		default:
			usable = append(usable, s)
		}
	}
	out.user = out.add(slices.Clone(c.user), seen, usable)
	return &out
}

func (c *Catalog) add(to []Skill, seen map[string]bool, list []Skill) []Skill {
	for _, s := range list {
		if !seen[s.Name] && len(seen) < maxSkills {
			seen[s.Name] = true
			to = append(to, s)
		}
	}
	return to
}

func (c *Catalog) fail(path string, err error) {
	if err != nil && len(c.failures) < maxSkills {
		c.failures = append(c.failures, Failure{path, err})
	}
}

// instructions reads the instruction files of one directory.
func (c *Catalog) instructions(dir string) []Skill {
	list, failures := instructionsIn(dir)
	for _, f := range failures {
		c.fail(f.Path, f.Err)
	}
	return list
}

func instructionsIn(dir string) (list []Skill, failures []Failure) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, []Failure{{dir, err}}
	}
	names := instructionFiles()
	for _, e := range entries {
		name, ok := names[strings.ToLower(e.Name())]
		if !ok || e.IsDir() {
			continue
		}
		source := filepath.Join(dir, e.Name())
		text, err := read(root, e.Name())
		if err != nil {
			failures = append(failures, Failure{source, err})
			continue
		}
		list = append(list,
			Skill{
				Name:     name,
				Type:     TypeRepo,
				Content:  strings.ToValidUTF8(string(text), "\uFFFD"),
				Source:   source,
				Triggers: []string{},
			})
	}
	return list, failures
}

// directory reads the skills in a directory below base. A directory with a SKILL.md is one skill;
// other Markdown files, but no README.md, are each one.
func (c *Catalog) directory(base, dir string) []Skill {
	root, err := os.OpenRoot(filepath.Join(base, dir))
	if err != nil {
		return nil
	}
	defer root.Close()
	files, err := markdown(root.FS())
	c.fail(root.Name(), err)
	var list []Skill
	for _, name := range files {
		source := filepath.Join(base, dir, filepath.FromSlash(name))
		text, err := read(root, name)
		if err != nil {
			c.fail(source, err)
			continue
		}
		s, err := parse(name, source, text)
		if err != nil {
			c.fail(source, err)
			continue
		}
		list = append(list, s)
	}
	return list
}

var errTooMany = errors.New("there are too many files to read all")

// markdown names the files of skills: first those of directories with a SKILL.md.
func markdown(tree fs.FS) (files []string, err error) {
	var skills, others []string
	n := 0
	err = fs.WalkDir(tree, ".", func(name string, e fs.DirEntry, err error) error {
		if n++; n > maxEntries {
			return errTooMany
		}
		switch {
		case err != nil:
			return nil // what can't be listed has no skills
		case e.IsDir() || !strings.EqualFold(path.Ext(name), ".md"):
		case isSkillFile(e.Name()):
			skills = append(skills, name)
		case !strings.EqualFold(e.Name(), "README.md"):
			others = append(others, name)
		}
		return nil
	})
	others = slices.DeleteFunc(others, func(name string) bool {
		return slices.ContainsFunc(skills, func(s string) bool { return strings.HasPrefix(name, path.Dir(s)+"/") })
	})
	return append(skills, others...), err
}

// read reads a file below root. Without O_NONBLOCK the open of a fifo would wait.
func read(root *os.Root, name string) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxFile {
		return nil, fmt.Errorf("it is no regular file of at most %d bytes", maxFile)
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}
