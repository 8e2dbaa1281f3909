package check

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// linted are the rules of the house that golangci-lint holds by .golangci.yml: each objects to an
// offending file with the text.
var linted = []struct{ name, path, source, want string }{
	{"clock", "fsm/clock.go", "package fsm\n\nimport \"time\"\n\nvar _ = time.Now", "time travels in the Command"},
	{"timer", "fsm/timer.go", "package fsm\n\nimport \"time\"\n\nvar _ = time.NewTimer", "time travels in the Command"},
	{"chance", "fsm/chance.go", "package fsm\n\nimport _ \"math/rand/v2\"", "randomness into Apply"},
	{"ids", "fsm/ids.go", "package fsm\n\nimport _ \"github.com/google/uuid\"", "randomness into Apply"},
	{"environment", "fsm/env.go", "package fsm\n\nimport _ \"os\"", "environment into Apply"},
	{"network", "fsm/net.go", "package fsm\n\nimport _ \"net/http\"", "network into Apply"},
	{"machine", "fsm/machine.go", "package fsm\n\nimport _ \"runtime\"", "machine into Apply"},
	{"memdb", "ops/x/memdb.go", "package x\n\nimport _ \"github.com/hashicorp/go-memdb\"", "belongs to fsm"},
	{"json", "ops/x/json.go", "package x\n\nimport _ \"github.com/go-json-experiment/json\"", "belongs to fsm, scheduler"},
	{"cloud", "ops/x/cloud.go", "package x\n\nimport _ \"gocloud.dev\"", "belongs to scheduler"},
	{"router", "ops/x/router.go", "package x\n\nimport _ \"github.com/julienschmidt/httprouter\"", "belongs to httpapi"},
	{"hcl", "ops/x/hcl.go", "package x\n\nimport _ \"github.com/hashicorp/hcl\"", "belongs to cmd"},
	{"cobra", "fsm/cobra.go", "package fsm\n\nimport _ \"github.com/spf13/cobra\"", "belongs to cmd, deploy"},
	{"raft", "httpapi/raft.go", "package httpapi\n\nimport _ \"github.com/hashicorp/raft\"", "belongs to cluster"},
	{"nomad", "ops/x/nomad.go", "package x\n\nimport _ \"github.com/hashicorp/nomad/api\"", "belongs to scheduler"},
	{"vault", "ops/x/vault.go", "package x\n\nimport _ \"github.com/hashicorp/vault/api\"", "belongs to secrets"},
	{"init", "fsm/init.go", "package fsm\n\nfunc init() {}", "don't use `init` function"},
	{
		"function", "httpapi/long.go",
		"package httpapi\n\nfunc f() []int {\n\treturn []int{\n" + strings.Repeat("\t\t1,\n", 71) + "\t}\n}\n\nvar _ = f",
		"Function 'f' is too long",
	},
	{
		"interface", "httpapi/i.go",
		"package httpapi\n\ntype i interface {\n\tA()\n\tB()\n\tC()\n\tD()\n\tE()\n\tF()\n}\n\nvar _ i",
		"has more than 5 methods",
	},
}

// TestLinters_ObjectToWhatBreaksThem runs golangci-lint with the project's configuration on a module
// of the offending files.
func TestLinters_ObjectToWhatBreaksThem(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config, err := os.ReadFile("../../.golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	write(".golangci.yml", string(config))
	imported, stubs := regexp.MustCompile(`import _ "([^"]+\.[^"]+)"`), map[string]bool{}
	for _, l := range linted {
		write(l.path, l.source)
		if m := imported.FindStringSubmatch(l.source); m != nil {
			stubs[m[1]] = true
		}
	}
	module := "module " + Module + "\n\ngo 1.26.0\n"
	for n, path := range slices.Sorted(maps.Keys(stubs)) { // an empty one in its place: nothing is fetched
		write(fmt.Sprintf("stubs/%d/go.mod", n), "module "+path)
		write(fmt.Sprintf("stubs/%d/stub.go", n), "package stub")
		module += fmt.Sprintf("require %s v0.0.0\nreplace %s => ./stubs/%d\n", path, path, n)
	}
	write("go.mod", module)
	cmd := exec.CommandContext(t.Context(), linter(t), "run", "--max-same-issues=0", "--max-issues-per-linter=0",
		"--allow-parallel-runners", "--show-stats=false", "./...")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOLANGCI_LINT_CACHE="+t.TempDir(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, _ := cmd.CombinedOutput() // it ends with 1, as it should
	for _, l := range linted {
		objects := func(line string) bool { return strings.HasPrefix(line, l.path) && strings.Contains(line, l.want) }
		if !slices.ContainsFunc(strings.Split(string(out), "\n"), objects) {
			t.Errorf("%s: no objection to %s with %q", l.name, l.path, l.want)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// linter is the program that `make check` builds, in the version of the Makefile.
func linter(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^LINT_VERSION := (\S+)$`).FindSubmatch(text)
	cache, err := os.UserCacheDir()
	if err != nil || version == nil {
		t.Fatal("no version of golangci-lint in the Makefile, or no cache: ", err)
	}
	path := filepath.Join(cache, "bivouac", "bin", "golangci-lint-"+string(version[1]), "golangci-lint")
	if _, err := os.Stat(path); err != nil {
		t.Skip("golangci-lint is not built; make check does it: ", err)
	}
	return path
}
