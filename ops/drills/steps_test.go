package main

import (
	"os/exec"
	"strings"
	"testing"
)

// steps runs a script after .ci/steps.sh.
func steps(t *testing.T, script string) (output string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", ". ../../.ci/steps.sh\n"+script)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestSteps_AFailureKeepsNoneFromRunning(t *testing.T) {
	t.Parallel()
	for script, want := range map[string][]string{
		"step one false; step two echo done": {
			"FAILED   one ",
			"ok       two ",
			"\ndone\n",
			"FAILED after ",
		},
		"beside slow sh -c 'echo said; exit 3'; step two echo done; join": {
			"FAILED   slow ",
			"ok       two ",
			"\nsaid\n",
			"FAILED after ",
		},
		"beside slow true; step two false; join": {"ok       slow ", "FAILED   two ", "FAILED after "},
	} {
		out, code := steps(t, script+"; finish")
		if code != 1 {
			t.Errorf("%s: exit code %d", script, code)
		}
		for _, line := range want {
			if !strings.Contains(out, line) {
				t.Errorf("%s: the output lacks %q:\n%s", script, line, out)
			}
		}
	}
}

func TestSteps_AllPass(t *testing.T) {
	t.Parallel()
	out, code := steps(t, "beside slow echo said; step one true; join; finish")
	if code != 0 || !strings.Contains(out, "all passed in 0 min") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
