package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestResults_EverySectionNamesItsCommit(t *testing.T) {
	raw, err := os.ReadFile("../RESULTS.md")
	if err != nil {
		t.Fatal(err)
	}
	current, unnamed := parse(string(raw))
	for _, section := range unnamed {
		t.Errorf("the section %q has no line \"Measured at commit X, protocol version N.\"", section)
	}
	if len(current) < 3 || !strings.Contains(string(raw), "\n"+earlierHeading+"\n") {
		t.Errorf("%d measurements above %q", len(current), earlierHeading)
	}
}

func TestParse_FindsWhatIsUnnamed(t *testing.T) {
	current, unnamed := parse("# R\n\n## One\nMeasured at commit abc1234, " +
		"protocol version 8.\n## Two\ntext\n# Earlier measurements\n" +
		"## Three\nMeasured at commit def5678-dirty, protocol version 2, on a quiet machine.\n## Four\n")
	if want := (measurement{"One", "abc1234", 8}); len(current) != 1 || current[0] != want {
		t.Errorf("%v, want %v", current, want)
	}
	if fmt.Sprint(unnamed) != "[Two Four]" {
		t.Errorf("unnamed: %q", unnamed)
	}
}

// repository is a tree with one commit at protocol version 8.
type repository struct {
	t    *testing.T
	root string
}

func newRepository(t *testing.T) repository {
	t.Helper()
	r := repository{t, t.TempDir()}
	r.git("init", "-q")
	r.write("fsm/version.go", "package fsm\n\nconst ProtocolVersion = 8\n")
	r.commit()
	return r
}

func (r repository) write(name, text string) {
	r.t.Helper()
	file := filepath.Join(r.root, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r repository) git(args ...string) string {
	r.t.Helper()
	args = append([]string{"-C", r.root, "-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)
	out, err := exec.Command("git", args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r repository) commit() string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "x")
	return r.git("rev-parse", "--short=7", "HEAD")
}

// results writes the results of a commit.
func (r repository) results(commit string, protocol int) {
	r.t.Helper()
	r.write(resultsFile, fmt.Sprintf("# R\n\n## One\nMeasured at commit %s, "+
		"protocol version %d.\n\n%s\n\n## Old\nMeasured at commit 1234567, protocol version 1.\n",
		commit, protocol, earlierHeading))
}

func TestRun_RefusesResultsOfAnotherCommit(t *testing.T) {
	r := newRepository(t)
	measured := r.git("rev-parse", "--short=7", "HEAD")
	want := func(what, text string) {
		t.Helper()
		err := run(t.Context(), r.root, false, new(bytes.Buffer))
		if text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
			t.Errorf("%s: %v, want %q", what, err, text)
		}
		out := new(bytes.Buffer)
		if err := run(t.Context(), r.root, true, out); err != nil || (text == "") != (out.Len() == 0) {
			t.Errorf("%s, as a note: %v, %q", what, err, out)
		}
	}
	r.results(measured, 8)
	r.write("ops/bench/plots/x.svg", "<svg/>")
	r.write("README.md", "new words")
	r.commit()
	want("only documents changed", "")
	r.results(measured, 2)
	want("another protocol version", `"One" is of protocol version 2, and this commit has 8`)
	r.results(measured+"-dirty", 8)
	want("measured with changes", "in no commit")
	r.results("0000000", 8)
	want("an unknown commit", "git fetch --unshallow")
	r.results(measured, 8)
	r.write("httpapi/x.go", "package httpapi")
	r.commit()
	want("the program changed",
		`"One" is of commit `+measured+": 1 files that are no documents changed since, httpapi/x.go one of them")
	r.write(resultsFile, "# R\n\n## One\nno words\n")
	want("nothing is named", "no section names a commit")
}
