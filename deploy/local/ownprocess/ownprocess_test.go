package ownprocess

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// failing makes TestEnter_Child fail in its own process.
const failing = "BIVOUAC_TEST_OWN_PROCESS_FAILS"

func TestEnter_RunsTheTestAlone(t *testing.T) {
	t.Parallel()
	t.Run("with (odd) name", func(t *testing.T) {
		if !Enter(t, "BIVOUAC_TEST_COLOR=green") {
			if os.Getenv("BIVOUAC_TEST_COLOR") != "" {
				t.Error("the environment of the child is the parent's too")
			}
			return
		}
		if got := os.Getenv("BIVOUAC_TEST_COLOR"); got != "green" {
			t.Errorf("the child's environment has %q", got)
		}
	})
}

// TestEnter_Child is run by the tests below; by itself it passes.
func TestEnter_Child(t *testing.T) {
	if !Enter(t) {
		return
	}
	switch os.Getenv(failing) {
	case "error":
		t.Error("as asked")
	case "skip":
		t.Skip("as asked")
	case "exit":
		os.Exit(0)
	}
}

func TestEnter_GivesTheResultOn(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for how, want := range map[string]string{
		"error": "--- FAIL: TestEnter_Child", "exit": "did not run the test", "skip": "--- SKIP: TestEnter_Child",
		"": "--- PASS: TestEnter_Child",
	} {
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestEnter_Child$", "-test.v")
		cmd.Env = append(os.Environ(), failing+"="+how)
		out, err := cmd.CombinedOutput()
		if failed := how == "error" || how == "exit"; (err != nil) != failed || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v, want %q in\n%s", how, err, want, out)
		}
	}
}
