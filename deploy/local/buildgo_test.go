package local

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBuildGo_TakesTheGivenProgramElseBuilds puts the agent server in place both ways.
func TestBuildGo_TakesTheGivenProgramElseBuilds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	given, out := filepath.Join(dir, "sandbox-agent"), filepath.Join(dir, "bin", "out")
	if err := os.WriteFile(given, []byte("#!/bin/sh\necho given\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it replaces what is there
		if err := buildGo(t.Context(), dir, "./cmd/sandbox-agent", out); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := exec.Command(out).Output(); string(got) != "given\n" {
		t.Errorf("the program put there says %q, %v", got, err)
	}
	for _, bad := range []string{filepath.Join(dir, "missing"), given, "."} {
		if err := buildGo(t.Context(), bad, "./cmd/sandbox-agent", out); err == nil ||
			!strings.Contains(err.Error(), "make build") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	built := filepath.Join(dir, "built")
	if err := buildGo(t.Context(), "", "./cmd/sandbox-agent", built); err != nil {
		t.Fatal(err)
	}
	if got, _ := exec.Command(built, "--nonsense").CombinedOutput(); !strings.Contains(string(got), "nonsense") {
		t.Errorf("the built one says %q", got)
	}
}

// TestBuildGo_CompilesAsMakeBuild keeps the flags that decide what Go's cache can serve equal to
// the Makefile's, and the variable set where the Makefile has built the programs.
func TestBuildGo_CompilesAsMakeBuild(t *testing.T) {
	t.Parallel()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"\tCGO_ENABLED=0 $(GO) build " + strings.Join(buildFlags(),
			" ") + " -ldflags '$(LDFLAGS)' -o $(BIN)/sandbox-agent ./cmd/sandbox-agent\n",
		"\ntests tests-early e2e drills: export " + EnvPrograms + " := $(CURDIR)/$(BIN)\n",
	} {
		if !strings.Contains(string(raw), line) {
			t.Errorf("the Makefile has no line %q", line)
		}
	}
}
