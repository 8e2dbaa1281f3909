// Package ownprocess runs a test in a process of its own. A test needs one when it sets what all of
// a process share: the environment, a resource limit, GOMAXPROCS, the collector's pace. Only tests
// import the package; ops/check finds those that set such a thing without it.
package ownprocess

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// marker names the test that the process was started for.
const marker = "BIVOUAC_TEST_OWN_PROCESS"

// timeToReport is what is left of the parent's time limit when the child's ends.
const timeToReport = 5 * time.Second

// Enter returns true in a process that runs the calling test alone. In any other process it makes
// the test parallel, runs the test binary again, for this test and with env added to the
// environment, gives the test the result of that run, and returns false: the caller returns at
// once. The caller does not call t.Parallel, with which t.Setenv refuses to work.
func Enter(t *testing.T, env ...string) bool {
	t.Helper()
	if os.Getenv(marker) == t.Name() {
		return true
	}
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.run=" + pattern(t.Name()), "-test.v", "-test.count=1"}
	if end, limited := t.Deadline(); limited {
		args = append(args, "-test.timeout="+max(time.Until(end)-timeToReport, time.Second).String())
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(append(os.Environ(), env...), marker+"="+t.Name())
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("in a process of its own: %v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP: "+t.Name()+" "):
		t.Skipf("in a process of its own:\n%s", out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()+" "):
		t.Errorf("the process of its own did not run the test:\n%s", out)
	default:
		t.Logf("in a process of its own:\n%s", out)
	}
	return false
}

// pattern is the value of -test.run that selects one test.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}
