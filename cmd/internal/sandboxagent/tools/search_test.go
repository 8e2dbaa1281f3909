package tools

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// toolOf is a tool of a directory.
func toolOf(t *testing.T, dir, name string) Tool {
	t.Helper()
	s := Open(Config{WorkingDir: dir, StateDir: t.TempDir()})
	t.Cleanup(s.Close)
	for _, tool := range s.Tools() {
		if tool.Definition().Name == name {
			return tool
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}

// searched is a directory with files, the last of them the newest.
func searched(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, name := range files {
		path := filepath.Join(dir, name)
		at := time.Unix(int64(1_000_000+i), 0)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("first\nThe name is "+filepath.Base(name)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestSearch finds files by names and by text.
func TestSearch(t *testing.T) {
	dir := searched(t, "a.go", "src/b.go", "src/deep/c_test.go", "src/d.ts", "e[1].md", "ü.txt", ".git/f.go",
		"node_modules/g.go")
	for _, c := range []struct {
		tool      string
		arguments map[string]any
		want      string
	}{
		{GlobName, map[string]any{"pattern": "*.go"}, "a.go"},
		{GlobName, map[string]any{"pattern": "**/*.go"}, "src/deep/c_test.go src/b.go a.go"},
		{GlobName, map[string]any{"pattern": "src/*.{go,ts}"}, "src/d.ts src/b.go"},
		{GlobName, map[string]any{"pattern": "*.go", "path": dir + "/src"}, "src/b.go"},
		{GlobName, map[string]any{"pattern": "*.go", "path": "src"}, "src/b.go"},
		{GrepName, map[string]any{"pattern": "name", "path": "./src/deep"}, "src/deep/c_test.go"},
		{GlobName, map[string]any{"pattern": "[!a].txt"}, "ü.txt"},
		{GlobName, map[string]any{"pattern": "e[[]1].md"}, "e[1].md"},
		{GlobName, map[string]any{"pattern": "?.txt"}, "ü.txt"},
		{GlobName, map[string]any{"pattern": "*.rs"}, "-"},
		{GlobName, map[string]any{"pattern": "{a"}, "refused"},
		{GlobName, map[string]any{"pattern": "*", "path": dir + "/none"}, "error"},
		{GrepName, map[string]any{"pattern": "NAME is [ab]"}, "src/b.go a.go"},
		{GrepName, map[string]any{"pattern": "name", "include": "*.go"}, "src/deep/c_test.go src/b.go a.go"},
		{GrepName, map[string]any{"pattern": "name", "include": "src/*.go"}, "src/b.go"},
		{GrepName, map[string]any{"pattern": "^first.The"}, "-"},
		{GrepName, map[string]any{"pattern": "("}, "refused"},
	} {
		o := edit(t, toolOf(t, dir, c.tool), c.arguments)
		list, _ := o.Members[map[string]string{GlobName: "files", GrepName: "matches"}[c.tool]].([]string)
		var got []string
		for _, path := range list {
			below, err := filepath.Rel(dir, path)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, below)
		}
		text := strings.Join(got, " ")
		switch {
		case o.Members["refused"] != nil:
			text = "refused"
		case o.IsError:
			text = "error"
		case text == "":
			text = "-"
		}
		if text != c.want {
			t.Errorf("%s %v: %s, want %s (%s)", c.tool, c.arguments, text, c.want, said(o))
		}
	}
}

// TestSearch_Ignores leaves out what .gitignore files name, from the repository's directory down. A
// directory that the search names is searched all the same.
func TestSearch_Ignores(t *testing.T) {
	t.Parallel()
	dir := searched(t, "a.go", "a.log", "keep.log", "build/b.go", "sub/build/c.go", "sub/d.gen.go", "sub/deep/e.go",
		"sub/deep/f.tmp", "other/d.gen.go", "secret/g.go", "top.txt", "sub/top.txt", "vendor/x/h.go", "vendor/y/i.go")
	for name, text := range map[string]string{
		".git/info/exclude": "secret\n", ".gitignore": "# logs\n*.log\n!keep.log\nbuild/\n/top.txt\nvendor/*\n!vendor/y\n\n",
		"sub/.gitignore": "*.gen.go\ndeep/*.tmp\n",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "other", ".gitignore")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		".":     {"a.go", "keep.log", "other/d.gen.go", "sub/deep/e.go", "sub/top.txt", "vendor/y/i.go"},
		"sub":   {"sub/deep/e.go", "sub/top.txt"},
		"build": {"build/b.go"},
	} {
		o := edit(t, toolOf(t, dir, GrepName), map[string]any{"pattern": "the name is", "path": path})
		var got []string
		list, _ := o.Members["matches"].([]string)
		for _, file := range list {
			below, err := filepath.Rel(dir, file)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, below)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("in %s: %q, want %q", path, got, want)
		}
	}
}

// A search ends when it has read as much text as it may.
func TestSearch_Bounded(t *testing.T) {
	t.Parallel()
	s := search{path: searched(t, "a", "b"), text: regexp.MustCompile("name"), bytes: maxGrepAll}
	found, more, err := s.find(t.Context())
	if len(found) != 1 || !more || err != nil {
		t.Errorf("found %q, more %v, %v", found, more, err)
	}
}

// A file that became a pipe or a link while the directory was read is passed over.
func TestSearch_AFileThatIsAnotherOne(t *testing.T) {
	t.Parallel()
	dir := searched(t, "a.txt")
	pipe, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink("a.txt", link)); err != nil {
		t.Fatal(err)
	}
	done := make(chan string, 3)
	for _, path := range []string{filepath.Join(dir, "a.txt"), pipe, link} {
		go func() {
			if s := (&search{text: regexp.MustCompile("name")}); s.inText(path) {
				done <- filepath.Base(path)
				return
			}
			done <- ""
		}()
	}
	found := ""
	for range cap(done) {
		select {
		case name := <-done:
			found += name
		case <-time.After(20 * time.Second):
			t.Fatal("a pipe is waited for")
		}
	}
	if found != "a.txt" {
		t.Errorf("found %q", found)
	}
}

// TestSearch_BoundsTheRules: the rules of a directory count while it is searched, and a clone can't have
// more of them in force than there is room for.
func TestSearch_BoundsTheRules(t *testing.T) {
	t.Parallel()
	comments := strings.Repeat("#\n", 70<<10)
	dir := searched(t, "a/x.log", "a/y", "b/x.log", "b/y", "b/c/x.log", "b/c/y")
	write := func(in, rules string) {
		if err := os.WriteFile(filepath.Join(dir, in, ".gitignore"), []byte(comments+rules), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	glob := func() string {
		o := edit(t, toolOf(t, dir, GlobName), map[string]any{"pattern": "**/[xy]*"})
		return strings.ReplaceAll(said(o), dir+"/", "")
	}
	write("a", "*.log\n")
	write("b", "*.log\n")
	if got := glob(); got != "b/c/y\nb/y\na/y" {
		t.Errorf("beside each other: %s", got)
	}
	write("b/c", "!x.log\n")
	if got := glob(); !strings.HasPrefix(got, "b/c/y\nb/y\na/y\n[Files of .gitignore are not followed") {
		t.Errorf("below each other: %s", got)
	}
}

// TestIgnores_Tries: a search ends with the tries of its rules, and one that is interrupted tries none.
func TestIgnores_Tries(t *testing.T) {
	t.Parallel()
	dir := searched(t, "a.log", "b.log")
	rules := []byte("*.log\n" + strings.Repeat("x\n", 99))
	if err := os.WriteFile(filepath.Join(dir, ".gitignore"), rules, 0o600); err != nil {
		t.Fatal(err)
	}
	g := ignoresFor(t.Context(), dir)
	if before := g.tries; !g.match(t.Context(), filepath.Join(dir, "a.log"), false) || g.tries != before-100 {
		t.Errorf("%d tries are left of %d", g.tries, before)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if g.match(ctx, filepath.Join(dir, "a.log"), false) {
		t.Error("an interrupted search goes on")
	}
	if g.tries = 99; g.match(t.Context(), filepath.Join(dir, "b.log"), false) || g.tries >= 0 {
		t.Errorf("a search without tries goes on, with %d", g.tries)
	}
}

// TestPlanEditor changes the plan, and no other file by any way.
func TestPlanEditor(t *testing.T) {
	dir := searched(t, "main.go")
	e := toolOf(t, dir, PlanEditorName)
	plan, main := filepath.Join(dir, PlanFile), filepath.Join(dir, "main.go")
	before := content(t, main)
	create := map[string]any{"command": "create", "path": plan, "file_text": "# Plan\n"}
	if o := edit(t, e, create); o.IsError || o.Kind != "PlanningFileEditorObservation" || content(t, plan) != "# Plan\n" {
		t.Fatalf("the plan was not made: %s", said(o))
	}
	if o := edit(t, e, map[string]any{"command": "view", "path": main}); o.IsError || !strings.Contains(said(o), "first") {
		t.Errorf("another file can't be viewed: %s", said(o))
	}
	for name, arguments := range map[string]map[string]any{
		"replace": {"command": "str_replace", "path": main, "old_str": "first", "new_str": "last"},
		"insert":  {"command": "insert", "path": main, "insert_line": 0, "new_str": "x"},
		"create":  {"command": "create", "path": filepath.Join(dir, "more.go"), "file_text": "x"},
		"dots": {"command": "str_replace", "path": filepath.Dir(plan) + "/../main.go", "old_str": "first",
			"new_str": "last"},
	} {
		if o := edit(t, e, arguments); !o.IsError || !strings.Contains(said(o), "a plan is made") {
			t.Errorf("%s: %s", name, said(o))
		}
	}
	if err := os.Remove(plan); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(main, plan); err != nil {
		t.Fatal(err)
	}
	link := map[string]any{"command": "str_replace", "path": plan, "old_str": "first", "new_str": "last"}
	if o := edit(t, e, link); !o.IsError || content(t, main) != before {
		t.Errorf("a link was followed: %s", said(o))
	}
	if _, err := os.Stat(filepath.Join(dir, "more.go")); err == nil {
		t.Error("another file was made")
	}
}
