package main

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/check"
)

// sample are the options for testdata/sample. No test of it needs a program.
func sample(t *testing.T, only string) options {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return options{
		pkg:      "bivouac.dev/bivouac/ops/drills/testdata/sample",
		only:     only,
		side:     3,
		load:     2,
		limit:    2 * time.Second,
		programs: root,
	}
}

func TestRun_EveryResultIsTold(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := runDrills(t.Context(), sample(t, ".*"), &out)
	if err == nil || err.Error() != "5 of 9 tests failed" {
		t.Errorf("the error is %v", err)
	}
	for _, want := range []string{
		`--- PASS: TestPasses (`, `--- PASS: TestPassesToo (`, `--- SKIP: TestSkipped (`, `it lacks a part`,
		`--- FAIL: TestFails (`, `a failing test says this`, `--- FAIL: TestPanics (`, `a panicking test says this`,
		`--- CRASHED: TestExits (`, `--- CRASHED: TestDiesAfterwards (`, `--- CRASHED: TestHangs (`,
		`test timed out after 2s`,
		`[9 of 9, `, "9 tests: 3 passed, 1 skipped, 5 failed, 0 not run; ",
		"\nFAIL\tbivouac.dev/bivouac/ops/drills/testdata/sample\t",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if strings.Contains(out.String(), "a passing test says this") {
		t.Error("the output has what a passing test printed")
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// The detector's report is in a file, as a node's would be whose output the test removes.
func TestRun_ShowsRaces(t *testing.T) {
	t.Parallel()
	o := sample(t, "TestRaces")
	o.race, o.limit = true, time.Minute
	var out bytes.Buffer
	if err := runDrills(t.Context(), o, &out); err == nil {
		t.Error("a test with a race passes")
	}
	for _, want := range []string{"--- RACED: TestRaces (", "WARNING: DATA RACE", "sample_test.go:"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
}

func TestRun_PassesWhenAllPass(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := runDrills(t.Context(), sample(t, "TestPasses|TestSkipped"), &out); err != nil {
		t.Error(err)
	}
	if !regexp.MustCompile(`(?m)^ok  \tbivouac.dev/bivouac/ops/drills/` +
		`testdata/sample\t[\d.]+s$`).MatchString(out.String()) {
		t.Errorf("the output is\n%s", out.String())
	}
}

func TestRun_NothingMatches(t *testing.T) {
	t.Parallel()
	if err := runDrills(t.Context(), sample(t, "TestPass"), &bytes.Buffer{}); err == nil ||
		!strings.Contains(err.Error(), "no test matches") {
		t.Errorf("the error is %v", err)
	}
}

func TestRun_WhatDoesNotCompileFails(t *testing.T) {
	t.Parallel()
	o := sample(t, ".*")
	o.pkg = "bivouac.dev/bivouac/ops/progress/testdata/broken"
	if err := runDrills(t.Context(), o, &bytes.Buffer{}); err == nil ||
		!strings.Contains(err.Error(), "undefined: nothing") {
		t.Errorf("the error is %v", err)
	}
}

// An interrupted run is no passed one, and the tests it left out are counted.
func TestRun_InterruptedFails(t *testing.T) {
	t.Parallel()
	o := sample(t, "TestHangs|TestPasses")
	o.side, o.limit = 1, time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	var out lines
	out.wrote = func(line string) {
		if strings.Contains(line, "=== RUN   TestHangs") {
			cancel()
		}
	}
	if err := runDrills(ctx, o, &out); err == nil {
		t.Error("an interrupted run passes")
	}
}

// lines calls wrote with everything that is written.
type lines struct{ wrote func(string) }

func (l *lines) Write(p []byte) (int, error) { l.wrote(string(p)); return len(p), nil }

func TestQueue_StartsTheLongestThatFits(t *testing.T) {
	t.Parallel()
	known, err := parseTimes("TestLong 100 20\nTestBusy 50 90\nTestShort 10 1\nTestMiddle 60 6\nTestAlone 5 1 alone\n")
	if err != nil {
		t.Fatal(err)
	}
	q := newQueue([]string{"TestShort", "TestAlone", "TestBusy", "TestMiddle", "TestLong", "TestNew"}, known, 3, 1.7)
	var order []string
	for len(q.waiting) > 0 {
		var began []string
		for {
			d, ok := q.next()
			if !ok {
				break
			}
			began = append(began, d.name)
		}
		order = append(order, fmt.Sprint(began))
		if len(began) == 0 {
			t.Fatalf("%v wait beside %v", q.waiting, q.running)
		}
		for _, name := range began {
			q.done(name)
		}
	}
	// TestNew has no line: it counts as a minute with half a CPU.
	if got, want := fmt.Sprint(order), "[[TestLong TestMiddle TestNew] [TestBusy] [TestShort] [TestAlone]]"; got != want {
		t.Errorf("the order is %s, want %s", got, want)
	}
}

func TestTimes_ReadWhatTheyWrite(t *testing.T) {
	t.Parallel()
	known, err := parseTimes("# a comment\nTestA 12.5 3.0\n\nTestB 1.0 0.5 alone\n")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "times.txt")
	if err := record(file, known, []result{
		{
			name: "TestB",
			word: "PASS",
			took: 2 * time.Second,
			cpu:  time.Second,
		}, {name: "TestA", word: "FAIL", took: time.Hour}, {name: "TestC", word: "SKIP"},
	}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, content, _ := strings.Cut(string(raw), "\n"); content != "TestA 12.5 3.0\nTestB 2.0 1.0 alone\nTestC 0.0 0.0\n" {
		t.Errorf("the file is\n%s", content)
	}
	for _, bad := range []string{"TestA 1", "TestA one 2", "TestA 1 two", "TestA 1 2 three", "TestA 1 2 alone 4"} {
		if _, err := parseTimes(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// A line of a test that is gone would be believed for ever.
func TestTimes_NameTestsThatExist(t *testing.T) {
	t.Parallel()
	known, err := parseTimes(timesFile)
	if err != nil {
		t.Fatal(err)
	}
	files, err := check.Load("../..")
	if err != nil {
		t.Fatal(err)
	}
	var tests []string
	for _, f := range files {
		if f.Package() != "ops/e2e" || !f.IsTest() {
			continue
		}
		for _, d := range f.AST.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				tests = append(tests, fn.Name.Name)
			}
		}
	}
	if len(tests) < 40 {
		t.Fatalf("ops/e2e has only %d tests", len(tests))
	}
	for name := range known {
		if !slices.Contains(tests, name) {
			t.Errorf("times.txt names %s, which is no test of ops/e2e", name)
		}
	}
}
