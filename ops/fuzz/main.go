// Command fuzz runs every fuzz target of the module for a while and prints the results: `make
// fuzz FUZZTIME=1m`. It finds the targets by parsing the test files, so a new one needs no
// registration. It exits with 1 if a target failed. `go test` has then written the input to the
// package's testdata/fuzz, where it stays as a seed after the fix.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/ops/check"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	time     time.Duration
	parallel int
	only     string
	log      string
	keep     int
}

func run() error {
	var o options
	flag.DurationVar(&o.time, "time", time.Minute, "how long each target runs")
	flag.IntVar(&o.parallel, "parallel", 1, "how many workers a target has")
	flag.StringVar(&o.only, "only", "", "a regular expression: run the targets it matches (package.Target)")
	flag.StringVar(&o.log, "log", "", "a file to append the whole output to")
	flag.IntVar(&o.keep, "keep", 0,
		"copy at most so many inputs of each target from the cache to its testdata, and run nothing")
	flag.Parse()
	only, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	files, err := check.Load(".")
	if err != nil {
		return err
	}
	targets := slices.DeleteFunc(find(files), func(t target) bool { return !only.MatchString(t.String()) })
	if len(targets) == 0 {
		return fmt.Errorf("no target matches %q", o.only)
	}
	if o.keep > 0 {
		return keepAll(targets, o.keep)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return fuzzAll(ctx, targets, o)
}

// target is one fuzz function.
type target struct {
	// folder is the package's folder, relative to the module's root.
	folder, name string
}

// String gives folder.Name.
func (t target) String() string { return t.folder + "." + t.name }

// find lists the fuzz functions of parsed files.
func find(files []*check.File) []target {
	var found []target
	for _, f := range files {
		if !f.IsTest() {
			continue
		}
		for _, name := range functions(f) {
			if strings.HasPrefix(name, "Fuzz") {
				found = append(found, target{f.Package(), name})
			}
		}
	}
	slices.SortFunc(found, func(a, b target) int { return strings.Compare(a.String(), b.String()) })
	return found
}

// verdict is the result of one target.
type verdict struct {
	target             target
	took               time.Duration
	execs, interesting int
	// failure is the target's output, "" if it found nothing.
	failure string
}

// String is one line of the table.
func (v verdict) String() string {
	word := "ok"
	if v.failure != "" {
		word = "FAILED"
	}
	return fmt.Sprintf("%-58s %8s %10d execs %5d new  %s", v.target, v.took.Round(time.Second), v.execs, v.interesting,
		word)
}

func fuzzAll(ctx context.Context, targets []target, o options) error {
	var total verdict
	failed := 0
	for _, t := range targets {
		v, err := fuzzOne(ctx, t, o)
		if err != nil {
			return err
		}
		fmt.Println(v)
		if v.failure != "" {
			failed++
			fmt.Println(v.failure)
		}
		total.took += v.took
		total.execs += v.execs
		total.interesting += v.interesting
	}
	fmt.Printf("%d targets, %s, %d executions, %d new interesting inputs, %d failures\n",
		len(targets), total.took.Round(time.Second), total.execs, total.interesting, failed)
	if failed > 0 {
		return fmt.Errorf("%d of %d targets failed", failed, len(targets))
	}
	return nil
}

// fuzzOne runs one target. Its error means that the target could not run; a failure that the
// target found is in the verdict.
func fuzzOne(ctx context.Context, t target, o options) (verdict, error) {
	begin := time.Now()
	// Minimizing each interesting input would take a minute.
	cmd := exec.CommandContext(ctx, "go", "test", "./"+t.folder, "-run", "^$", "-fuzz", "^"+t.name+"$",
		"-fuzztime", o.time.String(), "-fuzzminimizetime", "1s", "-parallel", strconv.Itoa(o.parallel))
	out, err := cmd.CombinedOutput()
	v := verdict{target: t, took: time.Since(begin)}
	v.execs, v.interesting = progress(string(out))
	if o.log != "" {
		if err := logTo(o.log, t, out); err != nil {
			return v, err
		}
	}
	switch {
	case ctx.Err() != nil:
		return v, ctx.Err()
	case err != nil && !isLateEnd(string(out)):
		v.failure = string(out)
	case v.execs == 0:
		return v, fmt.Errorf("%s ran nothing:\n%s", t, out)
	}
	return v, nil
}

// isLateEnd recognizes a bug of Go 1.26 (go.dev/issue/75804, fixed in 1.27): a worker that is
// busy at the end of the time fails. Such a run found nothing and wrote no input.
func isLateEnd(out string) bool {
	return strings.Contains(out, "    context deadline exceeded\nFAIL\n") &&
		!strings.Contains(out, "Failing input written") && !strings.Contains(out, "panic")
}

// progress parses go test's last progress line.
func progress(out string) (execs, interesting int) {
	line := regexp.MustCompile(`execs: (\d+) .*new interesting: (\d+)`)
	for _, m := range line.FindAllStringSubmatch(out, -1) {
		execs, _ = strconv.Atoi(m[1])       // the expression matches digits only
		interesting, _ = strconv.Atoi(m[2]) // the same
	}
	if execs > 0 {
		return execs, interesting
	}
	// On a busy machine a short run only gets through the seeds.
	for _, m := range regexp.MustCompile(`(\d+)/\d+ completed`).FindAllStringSubmatch(out, -1) {
		execs, _ = strconv.Atoi(m[1]) // the same
	}
	return execs, interesting
}

func logTo(path string, t target, out []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "=== %s %s\n%s", t, time.Now().UTC().Format(time.RFC3339), out)
	return err
}

// keepAll copies inputs of all sizes from Go's cache into the tree, so that the next run, on
// another machine, starts from them.
func keepAll(targets []target, most int) error {
	out, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("asking for the cache: %w", err)
	}
	for _, t := range targets {
		from := filepath.Join(strings.TrimSpace(string(out)), "fuzz", check.Module, t.folder, t.name)
		n, err := keep(from, filepath.Join(t.folder, "testdata", "fuzz", t.name), most)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		fmt.Printf("%-58s %d inputs kept\n", t, n)
	}
	return nil
}
