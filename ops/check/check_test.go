package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rules are the checks of the package. Each runs on the tree, and on an offending file to which
// it must object.
var rules = []struct {
	name  string
	check func([]*File) []string
	// path and source are the offending file; want is part of the expected message.
	path, source, want string
}{
	{"arrows", Arrows, "fsm/x.go", "package fsm\nimport _ \"bivouac.dev/bivouac/cluster\"", "fsm must not import cluster"},
	{"arrows/folder", Arrows, "internal/x.go", "package internal", "not one of the top-level folders"},
	{
		"arrows/ours",
		Arrows,
		"scheduler/x.go",
		"package scheduler\nimport _ \"bivouac.dev/bivouac/scheduler/starttask\"",
		"scheduler must not import scheduler/starttask",
	},
	{
		"arrows/ours",
		Arrows,
		"scheduler/starttask/x.go",
		"package starttask\nimport _ \"bivouac.dev/bivouac/scheduler\"",
		"scheduler/starttask must not import scheduler",
	},
	{
		"arrows/narrow",
		Arrows,
		"cluster/raftfix/x.go",
		"package raftfix\nimport _ \"bivouac.dev/bivouac/fsm\"",
		"imports nothing but github.com/hashicorp/raft, the standard library",
	},
	{
		"arrows/one package",
		Arrows,
		"cmd/bivouac/x.go",
		"package main\nimport _ \"bivouac.dev/bivouac/ops/e2e/testcluster\"",
		"cmd must not import ops",
	},
	{
		"arrows/standard library",
		Arrows,
		"ops/runbooks/x.go",
		"package runbooks\nimport _ \"bivouac.dev/bivouac/fsm\"",
		"imports nothing but the standard library",
	},
	{
		"arrows/sub-package",
		Arrows,
		"httpapi/git/x.go",
		"package git\nimport _ \"bivouac.dev/bivouac/cluster\"",
		"httpapi/git must not import cluster",
	},
	{"house/state", House, "fsm/x.go", "package fsm\nvar seen = make(map[string]bool)", "package-level state seen"},
	{"house/not a table", House, "fsm/x.go", "package fsm\nvar seen = make(map[string]bool) // read-only",
		"package-level state seen"},
	{"house/zero state", House, "fsm/x.go", "package fsm\nvar count int", "package-level state count"},
	{"house/name", House, "cmd/util/x.go", "package util", "says nothing"},
	{"house/note", House, "fsm/x.go", "package fsm\n// TO" + "DO: later", "left in the code"},
	{"house/file", House, "fsm/x.go", "package fsm\n" + strings.Repeat("\n", maxFileLines+1), "split it"},
	{
		"sleeps",
		Sleeps,
		"fsm/x_test.go",
		"package fsm\nimport \"time\"\nfunc f() { time.Sleep(1) }",
		"wait for a condition",
	},
	{
		"process/environment",
		Process,
		"fsm/x_test.go",
		"package fsm\nfunc TestX(t *testing.T) { t.Setenv(\"A\", \"b\") }",
		"t.Setenv changes the whole process",
	},
	{
		"process/limit",
		Process,
		"fsm/x_test.go",
		"package fsm\nfunc limit() { defer func() { syscall.Setrlimit(1, nil) }() }",
		"syscall.Setrlimit changes the whole process",
	},
	{
		"process/processors",
		Process,
		"fsm/x_test.go",
		"package fsm\nfunc TestX(t *testing.T) { defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) }",
		"runtime.GOMAXPROCS changes the whole process",
	},
	{
		"process/variable",
		Process,
		"fsm/x_test.go",
		"package fsm\nfunc TestX(t *testing.T) { http.DefaultTransport.(*http.Transport).Proxy = nil }",
		"http.DefaultTransport.(*http.Transport).Proxy changes",
	},
	{"docs/name", Docs, "fsm/x.go", "// Package fsm is.\npackage fsm\nfunc Exported() {}", "Exported has no godoc"},
	{"docs/package", Docs, "fsm/x.go", "package fsm", "no package comment"},
	{
		"logs/pairs",
		Logs,
		"fsm/x.go",
		"package fsm\nfunc f(l logger) { l.Warn(\"it took=3 long\") }",
		"make it an attribute",
	},
	{
		"runbooks/unknown",
		Runbooks,
		"fsm/x.go",
		"package fsm\nvar e = \"see bivouac runbook disc\"",
		`names the runbook "disc"`,
	},
	{"runbooks/path", Runbooks, "fsm/x.go", "package fsm\nvar e = \"see ops/runbooks/disk.md\"", "name the command"},
	{
		"runbooks/quotes",
		RunbookQuotes,
		"fsm/x.go",
		"package fsm",
		`no message of the program is "the disk does not answer`,
	},
	{
		"runbooks/metrics",
		RunbookQuotes,
		"fsm/x.go",
		"package fsm\nvar e = \"bivouac_hold_of_another\"",
		`no name in the program is "bivouac_hold"`,
	},
	{"runbooks/unnamed", Runbooks, "fsm/x.go", "package fsm", `no message names the runbook "disk"`},
	{"vendors/none", Vendors, "fsm/x.go", "package fsm", "has no vendor of models"},
}

func TestTree_KeepsTheRules(t *testing.T) {
	files, err := Load("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("only %d files found: the check looks at the wrong folder", len(files))
	}
	seen := map[string]bool{}
	for _, r := range rules {
		for _, objection := range r.check(files) {
			if !seen[objection] {
				seen[objection] = true
				t.Error(objection)
			}
		}
	}
}

func TestRules_ObjectToWhatBreaksThem(t *testing.T) {
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			root := t.TempDir()
			file := filepath.Join(root, filepath.FromSlash(r.path))
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(r.source), 0o644); err != nil {
				t.Fatal(err)
			}
			files, err := Load(root)
			if err != nil {
				t.Fatal(err)
			}
			objections := r.check(files)
			if len(objections) == 0 || !strings.Contains(strings.Join(objections, "\n"), r.want) {
				t.Errorf("want an objection with %q, got %q", r.want, objections)
			}
		})
	}
}

func TestProcess_AllowsWhatHasAProcessOfItsOwn(t *testing.T) {
	root := t.TempDir()
	const source = `package fsm
func TestMain(m *testing.M) { runtime.GOMAXPROCS(1) }
func TestAlone(t *testing.T) { if ownprocess.Enter(t) { os.Chdir("/") } }
func TestAsks(t *testing.T) { t.Log(runtime.GOMAXPROCS(0), os.Stdout) }
func TestCommand(t *testing.T) { cmd.Stdout = os.Stderr; cmd.Env = append(os.Environ(), "A=b") }
`
	if err := os.WriteFile(filepath.Join(root, "x_test.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := Load(root)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if found := Process(files); len(found) != 0 {
		t.Errorf("objections: %q", found)
	}
}
