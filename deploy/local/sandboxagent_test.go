package local

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSandboxAgent_IsTheGivenOneElseBuilt puts the agent server in place both ways.
func TestSandboxAgent_IsTheGivenOneElseBuilt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	given, out := filepath.Join(dir, "given"), filepath.Join(dir, "out")
	if err := os.WriteFile(given, []byte("#!/bin/sh\necho given\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := sandboxAgent(t.Context(), given, out); err != nil {
		t.Fatal(err)
	}
	if got, err := exec.Command(out).Output(); string(got) != "given\n" {
		t.Errorf("the copy says %q, %v", got, err)
	}
	for _, bad := range []string{filepath.Join(dir, "missing"), dir, "given"} {
		if err := sandboxAgent(t.Context(), bad, out); err == nil || !strings.Contains(err.Error(), "make build") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	out = filepath.Join(dir, "built")
	if err := sandboxAgent(t.Context(), "", out); err != nil {
		t.Fatal(err)
	}
	if got, _ := exec.Command(out, "--nonsense").CombinedOutput(); !strings.Contains(string(got), "nonsense") {
		t.Errorf("the built one says %q", got)
	}
}

// TestBuildGo_CompilesAsMakeBuild keeps the flags that decide what Go's cache can serve equal to
// the Makefile's, and the variable set where the Makefile has built the program.
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
		"\tCGO_ENABLED=0 $(GO) build " + strings.Join(buildFlags(), " ") + " -ldflags '$(LDFLAGS)' -o $(BIN)/sandbox-agent ./cmd/sandbox-agent\n",
		"\ntest e2e: export " + agentVariable + " := $(CURDIR)/$(BIN)/sandbox-agent\n",
	} {
		if !strings.Contains(string(raw), line) {
			t.Errorf("the Makefile has no line %q", line)
		}
	}
}
