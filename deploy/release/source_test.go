package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestPackageVersion(t *testing.T) {
	noon := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	// In the order in which they must upgrade each other.
	versions := []string{}
	for _, test := range []struct {
		describe string
		at       time.Time
		want     string
	}{
		{"44fe4d4", noon, "0.0.0~git20261123120000.44fe4d4"},
		{"0aa1b2c", noon.Add(time.Hour), "0.0.0~git20261123130000.0aa1b2c"},
		{"0aa1b2c-dirty", noon.Add(time.Hour), "0.0.0~git20261123130000.0aa1b2c+dirty"},
		{"v1.2.0-rc.1", noon, "1.2.0~rc.1"},
		{"v1.2.0-rc.1-7-gabcdef0", noon, "1.2.0~rc.1+7.gabcdef0"},
		{"v1.2.0", noon, "1.2.0"},
		{"v1.2.0-9-gabcdef0", noon, "1.2.0+9.gabcdef0"},
		{"v1.2.0-12-g0bcdef0", noon, "1.2.0+12.g0bcdef0"},
		{"v1.2.1-beta", noon, "1.2.1~beta"},
		{"v1.10.0", noon, "1.10.0"},
	} {
		got := packageVersion(test.describe, test.at)
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.describe, got, test.want)
		}
		if !regexp.MustCompile(`^[0-9][0-9A-Za-z.+~]*$`).MatchString(got) {
			t.Errorf("%s: %q is no version for both dpkg and rpm", test.describe, got)
		}
		versions = append(versions, got)
	}
	dpkg, err := exec.LookPath("dpkg")
	if err != nil {
		t.Skip("dpkg is not installed: the order is not compared")
	}
	for i := 1; i < len(versions); i++ {
		if err := exec.Command(dpkg, "--compare-versions", versions[i-1], "lt", versions[i]).Run(); err != nil {
			t.Errorf("%s is not older than %s: %v", versions[i-1], versions[i], err)
		}
	}
}

// The results of the tree are those of some commit; what this tree's are decides what is expected.
func TestCheckResults(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "run", "./ops/bench/results")
	cmd.Dir = root
	current := cmd.Run() == nil
	var out bytes.Buffer
	err = checkResults(t.Context(), root, "", &out)
	if current != (err == nil) || err != nil && !strings.Contains(err.Error(), "STALE_RESULTS") {
		t.Errorf("%v; the results are current: %t", err, current)
	}
	if err := checkResults(t.Context(), root, "the bench's machine is away", &out); err != nil {
		t.Error(err)
	}
	if !current && !strings.Contains(out.String(), "because: the bench's machine is away") {
		t.Errorf("the reason is not printed: %s", &out)
	}
}
