package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// sample is a package with a test for each result.
const sample = "bivouac.dev/bivouac/ops/drills/testdata/sample"

func TestRun_ShowsWhatFails(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := run(t.Context(), []string{"-count=1", "-run=TestFails|TestPasses|TestSkipped", sample}, &out)
	var failed *exec.ExitError
	if !errors.As(err, &failed) || failed.ExitCode() != 1 {
		t.Errorf("the error is %v", err)
	}
	for _, want := range []string{
		"testing 1 packages\n",
		"a failing test says this",
		"--- FAIL: TestFails",
		"FAIL\t" + sample + "\t",
		"[1 of 1, ",
		"1 failed; ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "a passing test says this") || strings.Contains(out.String(), "it lacks a part") {
		t.Errorf("the output has what other tests printed:\n%s", out.String())
	}
}

// A test that kills its process never ends: what it printed is shown all the same.
func TestRun_ShowsWhatCrashes(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-count=1", "-run=TestPanics", sample}, &out); err == nil {
		t.Error("a package that panics passes")
	}
	if !strings.Contains(out.String(), "panic: a panicking test says this") ||
		!strings.Contains(out.String(), "FAIL\t"+sample) {
		t.Errorf("the output is:\n%s", out.String())
	}
}

// The detector's report is shown although the test that go test gives it to passes.
func TestReport_KeepsRaces(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := &report{out: &out, packages: map[string]*pkg{}, total: 1}
	for _, e := range []event{
		{Action: "output", Test: "TestQuiet", Output: "a passing test says this\n"},
		{Action: "pass", Test: "TestQuiet"},
		{Action: "output", Test: "TestPasses", Output: "WARNING: DATA RACE\n"},
		{Action: "output", Test: "TestPasses", Output: "Previous write at 0x1\n"},
		{Action: "pass", Test: "TestPasses"},
		{Action: "output", Test: "TestFails", Output: "race detected during execution of test\n"},
		{Action: "fail", Test: "TestFails"},
		{Action: "fail"},
	} {
		e.Package = sample
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		r.line(line)
	}
	if got := out.String(); !strings.HasPrefix(got, "WARNING: DATA RACE\nPrevious write at 0x1\nrace detected") {
		t.Errorf("the output is:\n%s", got)
	}
}

func TestRun_ShowsWhatDoesNotCompile(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-count=1", "bivouac.dev/bivouac/ops/progress/testdata/broken"},
		&out); err == nil {
		t.Error("a package that does not compile passes")
	}
	if !strings.Contains(out.String(), "undefined: nothing") {
		t.Errorf("the output is:\n%s", out.String())
	}
}

func TestRun_CountsPackages(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(),
		[]string{
			"-count=1",
			"-run=TestPasses",
			sample,
			"bivouac.dev/bivouac/ops/e2e/testcluster/nodeconfig",
		}, &out); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"ok  \t" + sample + "\t", "2 of 2 packages, 1 without tests, 0 failed; "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
	if err := run(t.Context(), []string{"-race"}, &out); err == nil || !strings.Contains(err.Error(), "usage") {
		t.Errorf("without packages the error is %v", err)
	}
}
