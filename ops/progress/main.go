// Command progress runs `go test` and prints each package's result as soon as the package ends,
// with the number of those that have ended (`make tests`). Without it `go test` prints results in
// the order of the packages, which says nothing for minutes behind a slow one. It takes the flags of
// `go test` in the form -name=value, and import paths. It prints all that a failed test printed, and
// exits as `go test` does.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed) && failed.ExitCode() > 0:
		os.Exit(failed.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "progress:", err)
		os.Exit(1)
	}
}

// run runs go test with the arguments. Its error is go test's.
func run(ctx context.Context, args []string, out io.Writer) error {
	r := &report{out: out, begin: time.Now(), packages: map[string]*pkg{}}
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			r.total++
		}
	}
	if r.total == 0 {
		return errors.New("usage: progress [-flag=value of go test]… package…")
	}
	fmt.Fprintf(out, "testing %d packages\n", r.total)
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("running go test: %w", err)
	}
	r.read(events)
	err = cmd.Wait()
	r.close()
	return err
}

// event is one line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// pkg is a package whose tests run.
type pkg struct {
	// unfinished has the output of tests that have not ended, by their names, "" for the package's.
	unfinished map[string]*strings.Builder
	order      []string
	// failures is what the failed tests printed.
	failures strings.Builder
	cached   bool
}

// report prints the events of one go test.
type report struct {
	out           io.Writer
	begin, spoke  time.Time
	packages      map[string]*pkg
	total, ended  int
	failed        []string
	withoutReport int
}

// quiet is how long the report says nothing at most, while tests print something.
const quiet = 30 * time.Second

func (r *report) read(events io.Reader) {
	lines := bufio.NewReader(events)
	r.spoke = time.Now()
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		if err != nil {
			return
		}
		if time.Since(r.spoke) > quiet {
			r.say("    %d of %d packages have ended, %s: %s\n", r.ended, r.total, r.elapsed(), strings.Join(r.running(), ", "))
		}
	}
}

func (r *report) say(format string, args ...any) {
	r.spoke = time.Now()
	fmt.Fprintf(r.out, format, args...)
}

func (r *report) elapsed() string {
	d := time.Since(r.begin).Round(time.Second)
	return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
}

func (r *report) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		r.say("%s", line) // of go itself
		return
	}
	switch e.Action {
	case "build-output":
		r.say("%s", e.Output)
	case "output":
		r.of(e.Package).keep(e)
	case "pass", "skip", "fail":
		if e.Test != "" {
			r.of(e.Package).end(e)
		} else {
			r.end(e)
		}
	case "start":
		r.of(e.Package)
	}
}

func (r *report) of(path string) *pkg {
	p := r.packages[path]
	if p == nil {
		p = &pkg{unfinished: map[string]*strings.Builder{}}
		r.packages[path] = p
	}
	return p
}

func (p *pkg) keep(e event) {
	b := p.unfinished[e.Test]
	if b == nil {
		b = &strings.Builder{}
		p.unfinished[e.Test] = b
		p.order = append(p.order, e.Test)
	}
	b.WriteString(e.Output)
	if e.Test == "" && strings.HasSuffix(e.Output, "\t(cached)\n") {
		p.cached = true
	}
}

// end forgets what a test printed, unless it failed or has a report of the race detector, which go
// test gives to whichever test printed last.
func (p *pkg) end(e event) {
	if b := p.unfinished[e.Test]; b != nil && (e.Action == "fail" ||
		strings.Contains(b.String(), "WARNING: DATA RACE\n")) {
		p.failures.WriteString(b.String())
	}
	delete(p.unfinished, e.Test)
}

// end prints the result of a package.
func (r *report) end(e event) {
	p := r.of(e.Package)
	delete(r.packages, e.Package)
	r.ended++
	at := fmt.Sprintf("[%d of %d, %s]", r.ended, r.total, r.elapsed())
	switch {
	case e.Action == "fail":
		r.failed = append(r.failed, e.Package)
		// A package that crashed has tests that never ended.
		for _, name := range p.order {
			if b := p.unfinished[name]; b != nil {
				p.failures.WriteString(b.String())
			}
		}
		r.say("%s\nFAIL\t%s\t%.3fs  %s\n", strings.TrimRight(p.failures.String(), "\n"), e.Package, e.Elapsed, at)
	case e.Action == "skip":
		r.withoutReport++
	case p.cached:
		r.say("ok  \t%s\t(cached)  %s\n", e.Package, at)
	default:
		r.say("ok  \t%s\t%.3fs  %s\n", e.Package, e.Elapsed, at)
	}
}

// running lists the packages that have begun.
func (r *report) running() (names []string) {
	for path := range r.packages {
		names = append(names, path[strings.LastIndex(path, "/")+1:])
	}
	return names
}

func (r *report) close() {
	r.say("%d of %d packages, %d without tests, %d failed; %s\n", r.ended, r.total, r.withoutReport, len(r.failed),
		r.elapsed())
	for _, path := range r.failed {
		r.say("FAIL\t%s\n", path)
	}
}
