package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

// roundsOf returns rounds in which the nodes here take so many times the CPU of the others.
func roundsOf(ratios ...float64) (list []round) {
	for _, ratio := range ratios {
		base := 20 * time.Microsecond
		list = append(list, round{here: time.Duration(ratio * float64(base)), base: base, bare: 10 * time.Microsecond})
	}
	return list
}

func TestGuard_FailsWhenFourOfFiveRoundsAgree(t *testing.T) {
	for _, test := range []struct {
		rounds []round
		want   string
	}{
		{roundsOf(1.3, 1.3, 1.3, 1.3, 0.9), "a stale read costs 1.30 times what it costs at abc1234"},
		{roundsOf(1.3, 1.3, 1.3, 1.1, 0.9), ""},
		{roundsOf(1.14, 1.14, 1.14, 1.14, 1.14), ""},
		{roundsOf(0.5, 0.5, 0.5, 0.5, 0.5), ""},
	} {
		out := new(bytes.Buffer)
		g := &guard{bench: newBench(out), against: "abc1234", found: map[string][]round{"stale read": test.rounds}}
		err := g.verdict()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%v: %v, want %q", test.rounds, err, test.want)
		}
	}
}

// Both trees are divided by the bare handler of the same round.
func TestGuard_TableHasTheMedians(t *testing.T) {
	out := new(bytes.Buffer)
	g := &guard{
		bench:   newBench(out),
		against: "abc1234",
		found:   map[string][]round{"stale read": roundsOf(1.1, 1.2, 1.3, 1.4, 1.5)},
	}
	g.table()
	if want := "| stale read | 2.6 | 2.0 | 1.30 (1.10 to 1.50) | 4 of 5 |"; !strings.Contains(out.String(), want) {
		t.Errorf("there is no %q in\n%s", want, out)
	}
}

// A checkout without the commit says what to do.
func TestGuard_NeedsTheCommit(t *testing.T) {
	root, err := local.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	full, shallow := filepath.Join(dir, "full"), filepath.Join(dir, "shallow")
	for _, args := range [][]string{
		{"init", "-q", full},
		{"-C", full, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "--allow-empty", "-m", "one"},
		{"-C", full, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "--allow-empty", "-m", "two"},
		{"clone", "-q", "--depth=1", "file://" + full, shallow},
	} {
		if msg, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, msg)
		}
	}
	for _, test := range []struct{ root, commit, want string }{
		{full, "HEAD~1", ""},
		{full, "HEAD~7", "git knows no commit"},
		{full, "--all", "git knows no commit"},
		{shallow, "HEAD~1", "git fetch --unshallow"},
		{dir, "HEAD", "is no checkout"},
	} {
		_, err := resolve(t.Context(), test.root, test.commit)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s in %s: %v, want %q", test.commit, test.root, err, test.want)
		}
	}
	if commit, err := baseCommit(root); err != nil || len(commit) < 7 {
		t.Errorf("%s names %q, %v", baseFile, commit, err)
	}
	if _, err := baseCommit(dir); err == nil {
		t.Error("a tree without the file has a commit")
	}
}
