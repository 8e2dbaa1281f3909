package main

import (
	"os/exec"
	"testing"
)

// wantLintian has lintian read the package, where it is installed: no error is left. The stand-ins of
// the programs need no override of their own.
func wantLintian(t *testing.T, file string) {
	t.Helper()
	if _, err := exec.LookPath("lintian"); err != nil {
		t.Skip("lintian is not installed")
	}
	out, err := exec.CommandContext(t.Context(), "lintian", "--fail-on", "error", "--suppress-tags",
		"unstripped-binary-or-object,mismatched-override,unused-override", file).CombinedOutput()
	if err != nil {
		t.Errorf("lintian: %v\n%s", err, out)
	}
}
