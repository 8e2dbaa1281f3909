package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

// runner runs the tests of one binary and prints how far it is.
type runner struct {
	options
	build *built
	out   io.Writer
	begin time.Time
	total int
}

// result is what became of one test.
type result struct {
	name string
	// word is PASS, SKIP or FAIL as the test binary prints it, CRASHED if it printed none or its
	// process failed after it, RACED if the race detector reported a race.
	word      string
	took, cpu time.Duration
	// output is all that the process printed.
	output []byte
}

// failed reports whether the test neither passed nor was skipped.
func (r result) failed() bool { return r.word != "PASS" && r.word != "SKIP" }

// String is the verdict line, as `go test` prints one.
func (r result) String() string {
	return fmt.Sprintf("--- %s: %s (%.2fs, CPU %.1fs)", r.word, r.name, r.took.Seconds(), r.cpu.Seconds())
}

// heartbeat is how often the runner says what it waits for.
const heartbeat = 30 * time.Second

// runAll runs every test of the queue and prints each one's verdict when it ends. After ctx ends
// it starts none.
func (r *runner) runAll(ctx context.Context, q *queue) (results []result) {
	ended := make(chan result)
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		for ctx.Err() == nil {
			d, ok := q.next()
			if !ok {
				break
			}
			go func() { ended <- r.runOne(ctx, d.name) }()
		}
		if len(q.running) == 0 {
			return results
		}
		select {
		case one := <-ended:
			q.done(one.name)
			results = append(results, one)
			r.show(one, len(results))
		case <-tick.C:
			if r.side == 1 {
				continue // its output is seen
			}
			var names []string
			for name := range q.running {
				names = append(names, name)
			}
			slices.Sort(names)
			fmt.Fprintf(r.out, "    %d of %d tests have ended, %s: %s\n", len(results), r.total, r.elapsed(),
				strings.Join(names, ", "))
		}
	}
}

func (r *runner) elapsed() string {
	d := time.Since(r.begin).Round(time.Second)
	return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
}

// show prints a verdict, and all that a failed test printed. With one test at a time that has been
// seen already.
func (r *runner) show(one result, n int) {
	if one.failed() && r.side > 1 {
		fmt.Fprintf(r.out, "=== %s printed:\n%s\n", one.name, strings.TrimRight(string(one.output), "\n"))
	}
	fmt.Fprintf(r.out, "%s  [%d of %d, %s]\n", one, n, r.total, r.elapsed())
	if one.word == "SKIP" {
		fmt.Fprintf(r.out, "    %s\n", skipReason(one))
	}
}

var skipLine = regexp.MustCompile(`(?m)^\s+\w+_test\.go:\d+: .*$`)

// skipReason is the line of a skipped test's output that says why.
func skipReason(one result) string {
	return cmp.Or(strings.TrimSpace(string(skipLine.Find(one.output))), "it says no reason")
}

// runOne runs one test in a process of its own.
func (r *runner) runOne(ctx context.Context, name string) result {
	cmd := exec.CommandContext(ctx, r.build.binary,
		"-test.run", "^"+regexp.QuoteMeta(name)+"$", "-test.v", "-test.count=1", "-test.timeout", r.limit.String())
	cmd.Dir = r.build.folder
	// A race is reported into a file, since the nodes' own output is in a folder that the test removes.
	races := filepath.Join(r.build.dir, "race-"+name)
	cmd.Env = append(os.Environ(), local.EnvPrograms+"="+r.programsOf(name), "GORACE=log_path="+races)
	// Ctrl-C is for the runner, which passes it on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	log, err := os.CreateTemp(r.build.dir, name+"-*.log")
	if err != nil {
		return result{name: name, word: "CRASHED", output: []byte(err.Error())}
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if r.side == 1 { // nothing else prints meanwhile
		both := io.MultiWriter(r.out, log)
		cmd.Stdout, cmd.Stderr = both, both
	}
	begin := time.Now()
	if err = cmd.Run(); errors.Is(err, exec.ErrWaitDelay) {
		err = nil // a process that it left behind has its output open
	}
	one := result{name: name, took: time.Since(begin)}
	if state := cmd.ProcessState; state != nil {
		one.cpu = state.UserTime() + state.SystemTime()
	}
	output, readErr := os.ReadFile(log.Name())
	one.output = output
	one.word = verdict(name, output, errors.Join(err, readErr))
	if err != nil {
		one.output = append(one.output, fmt.Sprintf("(%s: %v)\n", filepath.Base(r.build.binary), err)...)
	}
	_ = os.Remove(log.Name())
	if reports := readAll(races + ".*"); len(reports) > 0 {
		one.word = "RACED"
		one.output = append(one.output, reports...)
	}
	return one
}

// programsOf is the folder with the programs of a test's nodes.
func (r *runner) programsOf(test string) string {
	if r.raced != nil && r.raced.MatchString(test) {
		return r.build.raced
	}
	return r.build.programs
}

// readAll joins the content of the files that match, and removes them.
func readAll(pattern string) (all []byte) {
	files, _ := filepath.Glob(pattern) // the pattern is well formed
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			raw = []byte(err.Error())
		}
		all = append(all, raw...)
		_ = os.Remove(file)
	}
	return all
}

// verdict reads a test's result from what the binary printed. The exit status decides where both
// disagree: a process can die after its test passed.
func verdict(name string, output []byte, err error) string {
	line := regexp.MustCompile(`(?m)^--- (PASS|SKIP|FAIL): ` + regexp.QuoteMeta(name) + ` `).FindSubmatch(output)
	switch {
	case line == nil:
		return "CRASHED"
	case err != nil && string(line[1]) != "FAIL":
		return "CRASHED"
	}
	return string(line[1])
}

// close prints the verdicts that did not pass and the lines that `go test` ends with.
func (r *runner) close(ctx context.Context, results []result) error {
	var cpu time.Duration
	count := map[string]int{}
	for _, one := range results {
		cpu += one.cpu
		count[one.word]++
	}
	failed := 0
	fmt.Fprintln(r.out)
	for _, one := range results {
		if one.failed() {
			failed++
			fmt.Fprintln(r.out, one)
		}
	}
	lost := r.total - len(results)
	fmt.Fprintf(r.out, "%d tests: %d passed, %d skipped, %d failed, %d not run; %s, CPU %d min %d s\n",
		r.total, count["PASS"], count["SKIP"], failed, lost, r.elapsed(), int(cpu.Minutes()), int(cpu.Seconds())%60)
	word := "ok  "
	if failed+lost > 0 {
		word = "FAIL"
	}
	fmt.Fprintf(r.out, "%s\t%s\t%.3fs\n", word, r.build.path, time.Since(r.begin).Seconds())
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case failed+lost > 0:
		return fmt.Errorf("%d of %d tests failed", failed+lost, r.total)
	}
	return nil
}
