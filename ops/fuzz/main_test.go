package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"bivouac.dev/bivouac/ops/check"
)

func TestFind_KnowsTheTargetsOfTheTree(t *testing.T) {
	files, err := check.Load("../..")
	if err != nil {
		t.Fatal(err)
	}
	found := find(files)
	for _, want := range []target{
		{"fsm", "FuzzApply"}, {"fsm", "FuzzApplyHistory"}, {"fsm", "FuzzDecodeCommand"}, {"fsm", "FuzzRestore"},
		{"cluster", "FuzzPeerCall"}, {"cluster/peernet", "FuzzPeerPort"}, {"cluster/peernet", "FuzzRaftFrames"},
		{"httpapi", "FuzzAPI"}, {"httpapi", "FuzzDecode"}, {"httpapi", "FuzzProxy"}, {"httpapi/proxy", "FuzzTarget"},
		{"cmd/internal/sandboxagent/agentserver", "FuzzInit"}, {"scheduler/agent", "FuzzAnswers"},
	} {
		if !slices.Contains(found, want) {
			t.Errorf("%s is not found", want)
		}
	}
}

func TestProgress(t *testing.T) {
	const out = `fuzz: elapsed: 0s, gathering baseline coverage: 40/41 completed
fuzz: elapsed: 3s, execs: 297 (99/sec), new interesting: 3 (total: 43)
fuzz: elapsed: 6s, execs: 2641 (907/sec), new interesting: 6 (total: 46)
`
	for text, want := range map[string][2]int{out: {2641, 6}, out[:70]: {40, 0}, "": {0, 0}} {
		if execs, interesting := progress(text); [2]int{execs, interesting} != want {
			t.Errorf("%d %d in %q", execs, interesting, text)
		}
	}
}

func TestIsLateEnd_IsNoFailure(t *testing.T) {
	const late = "--- FAIL: FuzzX (5.60s)\n    context deadline exceeded\nFAIL\nexit status 1\n"
	for text, want := range map[string]bool{
		late: true, "panic: x\n" + late: false, late + "Failing input written to testdata/fuzz/FuzzX/1\n": false,
		"--- FAIL: FuzzX (5.60s)\n    wrong\nFAIL\n": false,
	} {
		if isLateEnd(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

func TestKeep_TakesInputsOfEverySizeAndNoLargeOnes(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "x")
	for i := range 40 {
		if err := os.WriteFile(filepath.Join(from, fmt.Sprintf("%02d", i)), make([]byte, 100*i), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{8, 0} {
		if n, err := keep(from, to, 8); err != nil || n != want {
			t.Fatalf("%d kept, %v; want %d", n, err, want)
		}
	}
	entries, err := os.ReadDir(to)
	if err != nil || len(entries) != 8 || entries[7].Name() > "20" {
		t.Fatalf("%v, %v", entries, err)
	}
}
