package agentserver

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/git"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
)

// gitRepo is a repository that a test makes with the real program.
type gitRepo struct {
	t   *testing.T
	dir string
}

func newRepo(t *testing.T) gitRepo {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	g := gitRepo{t, filepath.Join(t.TempDir(), "a repo")}
	if err := os.MkdirAll(g.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	g.git("init", "-q", "-b", "main")
	return g
}

func (g gitRepo) git(args ...string) string {
	g.t.Helper()
	cmd := exec.CommandContext(g.t.Context(), "git", append([]string{"-C", g.dir, "-c", "user.name=Ann", "-c",
		"user.email=a@x",
		"-c", "commit.gpgsign=false", "-c", "protocol.file.allow=always"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		g.t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (g gitRepo) write(name, text string) {
	g.t.Helper()
	path := filepath.Join(g.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		g.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		g.t.Fatal(err)
	}
}

func (g gitRepo) commit(message string) string {
	g.t.Helper()
	g.git("add", "-A")
	g.git("commit", "-q", "--no-verify", "--allow-empty", "-m", message)
	return g.git("rev-parse", "HEAD")
}

// query calls a git operation.
func (s *server) query(status int, path string, values ...string) string {
	s.t.Helper()
	q := url.Values{}
	for i := 0; i+1 < len(values); i += 2 {
		q.Set(values[i], values[i+1])
	}
	return s.want(status, "GET", path+"?"+q.Encode(), "")
}

func (s *server) changes(values ...string) []string {
	s.t.Helper()
	out := []string{}
	for _, c := range decodeJSON[[]git.Change](s.t, s.query(200, "/api/git/changes", values...)) {
		out = append(out, c.Status+" "+c.Path)
	}
	return out
}

func TestGitChanges_EveryKind(t *testing.T) {
	s, g := newServer(t), newRepo(t)
	same := func(got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	same(s.changes("path", g.dir)) // nothing yet
	g.write("new file", "1")
	same(s.changes("path", g.dir, "ref", "HEAD"), "ADDED new file")
	g.write("kept", "1")
	g.write("gone", "1")
	g.write("moved", "a long enough text to be recognised\n")
	g.write(".gitignore", "ignored\n")
	first := g.commit("first")
	same(s.changes("path", g.dir)) // HEAD, where there is nothing else
	g.write("kept", "2")
	g.git("rm", "-q", "gone")
	g.git("mv", "moved", "sub dir\n.txt")
	g.write("ignored", "x")
	g.write("é", "x")
	g.git("add", "é")
	want := []string{"UPDATED kept", "DELETED gone", "DELETED moved", "ADDED sub dir\n.txt", "ADDED é"}
	slices.SortFunc(want, func(a, b string) int { return strings.Compare(strings.Fields(a)[1], strings.Fields(b)[1]) })
	same(s.changes("path", g.dir), want...)
	g.commit("second")
	same(s.changes("path", g.dir))
	same(s.changes("path", g.dir, "ref", first), want...)
	same(s.changes("path", g.dir, "ref", "main"))
	// A branch shows what it has beside main, also what is committed.
	g.git("checkout", "-q", "-b", "work")
	g.write("work", "x")
	g.commit("third")
	same(s.changes("path", g.dir), "ADDED work")

	// A touched file is no change, and the index is as it was.
	before, _ := os.ReadFile(filepath.Join(g.dir, ".git/index"))
	g.write("kept", "2")
	same(s.changes("path", g.dir), "ADDED work")
	if after, _ := os.ReadFile(filepath.Join(g.dir, ".git/index")); !slices.Equal(before, after) {
		t.Error("the index was written")
	}
	s.query(400, "/api/git/changes", "path", g.dir, "ref", "unknown")
	s.query(400, "/api/git/changes", "path", g.dir, "ref", "--output=/tmp/x")
	s.query(400, "/api/git/changes", "path", "relative")
	same(s.changes("path", t.TempDir()))
	same(s.changes("path", "/nonexistent/x"))
}

// A clone compares with its branch of origin; with the fork from its default branch once all is
// pushed.
func TestGitChanges_OfAShallowClone(t *testing.T) {
	s, g := newServer(t), newRepo(t)
	g.write("a", "1")
	g.commit("one")
	g.write("a", "2")
	g.commit("two")
	clone := gitRepo{t, filepath.Join(t.TempDir(), "clone")}
	g.git("clone", "-q", "--depth", "1", "file://"+g.dir, clone.dir)
	clone.write("a", "3")
	if got := s.changes("path", clone.dir); !slices.Equal(got, []string{"UPDATED a"}) {
		t.Errorf("%q", got)
	}
	clone.git("checkout", "-q", "-b", "topic")
	clone.commit("three")
	clone.git("push", "-q", "origin", "topic")
	if got := s.changes("path", clone.dir); !slices.Equal(got, []string{"UPDATED a"}) {
		t.Errorf("%q", got)
	}
	page := decodeJSON[git.Commits](t, s.query(200, "/api/git/commits", "path", clone.dir))
	if len(page.Commits) != 2 || page.Commits[0].Subject != "three" || page.Commits[1].Subject != "two" || page.HasMore {
		t.Errorf("%+v", page)
	}
	list := decodeJSON[[]git.Change](t,
		s.query(200, "/api/git/commits/"+page.Commits[1].SHA+"/changes", "path", clone.dir))
	if len(list) != 1 || list[0] != (git.Change{Status: "ADDED", Path: "a"}) { // the clone has no parent of it
		t.Errorf("%+v", list)
	}
}

// A directory of repositories shows the changes of each, and its own without theirs.
func TestGitChanges_NestedRepositories(t *testing.T) {
	s, g := newServer(t), newRepo(t)
	parent := filepath.Dir(g.dir)
	g.write("f", "1")
	if got := s.changes("path", parent); !slices.Equal(got, []string{"ADDED a repo/f"}) {
		t.Errorf("%q", got)
	}
	outer := gitRepo{t, parent}
	outer.git("init", "-q", "-b", "main")
	outer.write("a repository", "1")
	if got := s.changes("path", parent); !slices.Equal(got, []string{"ADDED a repo/f", "ADDED a repository"}) {
		t.Errorf("%q", got)
	}
}

func TestGitDiff_BothSides(t *testing.T) {
	s, g := newServer(t), newRepo(t)
	g.write("f", "one\n")
	g.write("gone/deep", "old\n")
	g.write("bin", "\xff\xfe")
	first := g.commit("first")
	g.write("f", "two\n")
	second := g.commit("second")
	g.write("f", "three\n")
	g.write("new", "n\n")
	g.git("rm", "-q", "gone/deep")
	diff := func(name string, more ...string) string {
		t.Helper()
		d := decodeJSON[git.Diff](t,
			s.query(200, "/api/git/diff", append([]string{"path", filepath.Join(g.dir, name)}, more...)...))
		return wire.TextOr(d.Original, "null") + "|" + wire.TextOr(d.Modified, "null")
	}
	for _, c := range [][]string{
		{"two\n|three\n", "f"}, {
			"one\n|three\n",
			"f",
			"ref",
			first,
		}, {"one\n|two\n", "f", "commit", second}, {"|one\n", "f", "commit", first},
		{"|n\n", "new"}, {"old\n|", "gone/deep"}, {"|", "bin"},
	} {
		if got := diff(c[1], c[2:]...); got != c[0] {
			t.Errorf("%v: %q", c, got)
		}
	}
	if text := s.query(200, "/api/git/diff", "path",
		filepath.Join(t.TempDir(), "f")); text != `{"modified":null,"original":null}` {
		t.Error(text)
	}
	g.write("big", strings.Repeat("x", git.MaxFile+1))
	for _, bad := range [][]string{{"path", g.dir + "/nothing"}, {"path", g.dir + "/big"}, {
		"path",
		g.dir + "/f",
		"ref",
		"x",
	}, {"path", "f"},
		{"path", g.dir + "/f", "ref", "HEAD", "commit", first}, {"path", g.dir + "/f", "commit", strings.Repeat("0", 40)}} {
		s.query(400, "/api/git/diff", bad...)
	}
	s.query(422, "/api/git/diff", "path", g.dir+"/f", "commit", "--help")
	s.query(422, "/api/git/commits", "path", g.dir, "limit", "201")
	page := decodeJSON[git.Commits](t, s.query(200, "/api/git/commits", "path", g.dir, "limit", "1"))
	if len(page.Commits) != 1 || !page.HasMore || page.Commits[0].SHA != second || page.Commits[0].Author != "Ann" ||
		page.Commits[0].Timestamp == "" {
		t.Errorf("%+v", page)
	}
}

// Whatever a repository's configuration names as a program is not run.
func TestGit_ARepositoryThatMeansHarm(t *testing.T) {
	s, g := newServer(t), newRepo(t)
	g.write("f", "one\n")
	g.write("sub/f", "one\n")
	first := g.commit("first")
	ran := filepath.Join(t.TempDir(), "ran")
	script := filepath.Join(g.dir, "harm.sh")
	g.write("harm.sh", "#!/bin/sh\necho \"$0 $*\" >>'"+ran+"'\ncat\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	harm := "'" + script + "'"
	for _, key := range []string{"core.fsmonitor", "core.pager", "core.sshCommand", "core.editor", "diff.external",
		"diff.harm.command",
		"diff.harm.textconv", "filter.harm.clean", "filter.harm.smudge", "filter.harm.process", "gpg.program",
		"core.gitProxy",
		"core.askPass", "credential.helper", "core.alternateRefsCommand", "uploadpack.packObjectsHook",
		"remote.origin.uploadpack", "pager.log", "pager.diff"} {
		g.git("config", key, harm)
	}
	for key, value := range map[string]string{"log.showSignature": "true", "core.hooksPath": g.dir,
		"diff.submodule": "log", "status.submoduleSummary": "true",
		"remote.origin.url": "ext::" + harm, "remote.origin.promisor": "true", "extensions.partialClone": "origin",
		"protocol.ext.allow":      "always",
		"diff.harm.cachetextconv": "true", "core.untrackedCache": "true"} {
		g.git("config", key, value)
	}
	for _, hook := range []string{
		"post-index-change",
		"reference-transaction",
		"fsmonitor-watchman",
		"post-checkout",
		"pre-commit",
	} {
		for _, dir := range []string{".git/hooks", "."} {
			g.write(filepath.Join(dir, hook), "#!/bin/sh\necho hook >>'"+ran+"'\n")
			if err := os.Chmod(filepath.Join(g.dir, dir, hook), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	g.write(".gitattributes", "* filter=harm diff=harm\n")
	g.write(".git/info/attributes", "* filter=harm diff=harm\n")
	g.write("f", "two\n")
	g.write("sub/f", "three\n")
	_ = os.Remove(ran) // what the set-up itself ran

	s.changes("path", g.dir)
	s.changes("path", g.dir, "ref", first)
	s.query(200, "/api/git/diff", "path", g.dir+"/f")
	s.query(200, "/api/git/diff", "path", g.dir+"/f", "commit", first)
	s.query(400, "/api/git/diff", "path", g.dir+"/f", "commit", "0123456789")
	s.query(200, "/api/git/commits", "path", g.dir)
	s.query(200, "/api/git/commits/"+first+"/changes", "path", g.dir)
	if text, err := os.ReadFile(ran); err == nil {
		t.Errorf("programs of the repository ran:\n%s", text)
	}
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), "bivouac-git-*"))
	for _, dir := range left {
		t.Errorf("%s is left", dir)
	}
}
