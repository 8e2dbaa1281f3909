package skills

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// tree writes files below a new directory and returns it.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func names(list []Skill) []string {
	out := []string{}
	for _, s := range list {
		out = append(out, s.Type+" "+s.Name)
	}
	return out
}

func TestLoad_EverySourceInItsOrder(t *testing.T) {
	repo := tree(t, map[string]string{
		".git/HEAD":                        "",
		"AGENTS.md":                        "of the root",
		"Claude.MD":                        "for Claude",
		".openhands/skills/deploy.md":      "---\ntriggers:\n- deploy\n- Ship It\n---\nHow to deploy",
		".openhands/microagents/repo.md":   "always",
		".openhands/microagents/deploy.md": "hidden by the one before",
		"app/AGENTS.md":                    "of the app",
		"app/.agents/skills/pdf/SKILL.md": "---\nname: pdf\ndescription: Reads PDFs\nallowed-tools: " +
			"Bash Read\n---\n# PDF\ntext",
		"app/.agents/skills/pdf/references.md": "no skill of its own",
		"app/.agents/skills/README.md":         "no skill",
		"app/.agents/skills/sub/task.md":       "---\ninputs:\n- name: x\n---\nDo ${x}",
		"app/.agents/skills/broken.md":         "---\ntriggers: [\n---\n",
	})
	home := tree(t, map[string]string{".openhands/skills/deploy.md": "hidden", ".agents/skills/mine.md": "mine"})
	c := Load(Options{WorkingDir: filepath.Join(repo, "app"), Home: home})
	want := []string{
		"repo agents",
		"repo claude",
		"agentskills pdf",
		"knowledge sub/task",
		"knowledge deploy",
		"repo repo",
		"repo mine",
	}
	if got := names(c.Skills()); !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	if len(c.Project()) != 6 || len(c.User()) != 1 {
		t.Errorf("%q, %q", names(c.Project()), names(c.User()))
	}
	pdf := c.Skills()[2]
	if *pdf.Description != "Reads PDFs" || pdf.Content != "# PDF\ntext" ||
		!slices.Equal(pdf.AllowedTools, []string{"Bash", "Read"}) {
		t.Errorf("%+v", pdf)
	}
	if task := c.Skills()[3]; !slices.Equal(task.Triggers, []string{"/sub/task"}) {
		t.Errorf("%+v", task)
	}
	if f := c.Failures(); len(f) != 1 || !strings.HasSuffix(f[0].Path, "broken.md") {
		t.Errorf("%+v", f)
	}
	prompt := c.Prompt()
	for _, part := range []string{"of the app", "for Claude", "always", "mine", "<name>pdf</name>",
		"<description>Reads PDFs</description>",
		"<name>deploy</name>", "<description>How to deploy</description>"} {
		if !strings.Contains(prompt, part) {
			t.Errorf("the prompt has no %q", part)
		}
	}
	for _, part := range []string{"of the root", "hidden", "# PDF"} {
		if strings.Contains(prompt, part) {
			t.Errorf("the prompt has %q", part)
		}
	}
	if Load(Options{}).Prompt() != "" || Load(Options{WorkingDir: "/nonexistent", Home: "/nonexistent"}).Prompt() != "" {
		t.Error("a prompt from nothing")
	}
}

func TestTriggered_WholeWordsOnce(t *testing.T) {
	c := Load(Options{WorkingDir: tree(t, map[string]string{
		".agents/skills/git.md":   "---\ntriggers: [git]\n---\nabout git",
		".agents/skills/slash.md": "---\ntriggers: [/linear, \"\"]\n---\nabout linear",
	})})
	for text, want := range map[string][]string{
		"look at github": nil, "use GIT.": {
			"git",
		}, "git": {"git"}, "legit": nil, "legit git": {"git"}, "/linear please": {"slash"}, "": nil,
		"do /linear with git": {"git", "slash"},
	} {
		var got []string
		for _, m := range c.Triggered(text, nil) {
			got = append(got, m.Name)
			if !strings.Contains(m.Text, "about ") {
				t.Errorf("%+v", m)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if m := c.Triggered("git", []string{"git"}); m != nil {
		t.Errorf("%+v", m)
	}
}

func TestForPath_InstructionsOfSubdirectories(t *testing.T) {
	dir := tree(t,
		map[string]string{"AGENTS.md": "root", "a/AGENTS.md": "in a", "a/b/CLAUDE.md": "in b", "c/AGENTS.md": "in c"})
	c := Load(Options{WorkingDir: dir})
	var got []string
	for _, m := range c.ForPath(filepath.Join(dir, "a/b/x.go"), nil) {
		got = append(got, m.Name)
	}
	if !slices.Equal(got, []string{"a/AGENTS.md", "a/b/CLAUDE.md"}) {
		t.Errorf("%q", got)
	}
	if m := c.ForPath(filepath.Join(dir, "a/b/x.go"), []string{"a/AGENTS.md"}); len(m) != 1 ||
		!strings.Contains(m[0].Text, "in b") {
		t.Errorf("%+v", m)
	}
	for _, file := range []string{filepath.Join(dir, "x.go"), "/etc/passwd", filepath.Join(dir, "../x/y"), "relative/x"} {
		if m := c.ForPath(file, nil); m != nil {
			t.Errorf("%s: %+v", file, m)
		}
	}
}

// Files that mean harm: links out of the project, fifos, too much.
func TestLoad_AProjectThatMeansHarm(t *testing.T) {
	secret := filepath.Join(tree(t, map[string]string{"secret.md": "CANARY"}), "secret.md")
	dir := tree(t,
		map[string]string{
			".agents/skills/big.md":  strings.Repeat("x", maxFile+1),
			".agents/skills/good.md": "good",
			"real.md":                "linked",
		})
	for name, target := range map[string]string{
		".agents/skills/out.md": secret,
		"AGENTS.md":             secret,
		"CLAUDE.md":             "real.md",
		".agents/skills/dir":    "/",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, ".agents/skills/fifo.md"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Load(Options{WorkingDir: dir})
	if got := names(c.Skills()); !slices.Equal(got, []string{"repo claude", "repo good"}) {
		t.Errorf("%q", got)
	}
	if strings.Contains(c.Prompt(), "CANARY") || len(c.Failures()) != 4 {
		t.Errorf("%+v", c.Failures())
	}
}

func FuzzParse(f *testing.F) {
	f.Add("---\nname: x\ntriggers: [a]\n---\ntext")
	f.Add("---\n---")
	f.Add("---\r\ninputs: []\r\n---\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range []string{"a/b.md", "a/SKILL.md"} {
			s, err := parse(name, "/s/"+name, []byte(text))
			if err == nil && (s.Type == "" || s.Triggers == nil) {
				t.Errorf("%+v", s)
			}
		}
	})
}
