package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "drills:", err)
		stop()
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	// pkg is the package of the tests, only the expression that their names match.
	pkg, only string
	// side is the largest number of tests at once, load the CPUs that they may need together.
	side int
	load float64
	// race builds the test binary with the race detector. raced are the tests whose nodes are built
	// with it; nil is none.
	race  bool
	raced *regexp.Regexp
	// programs is the folder of local.EnvPrograms, "" to build them.
	programs string
	// limit is the time that one test may take.
	limit time.Duration
	// record writes the times of this run into the file that they were read from.
	record string
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("drills", flag.ContinueOnError)
	flags.StringVar(&o.pkg, "package", "./ops/e2e", "the package whose tests run")
	flags.StringVar(&o.only, "run", ".*", "a regular expression: run the tests whose whole name it matches")
	flags.IntVar(&o.side, "side", 4, "how many tests run at once, at most")
	flags.Float64Var(&o.load, "load", 0.85*float64(runtime.NumCPU()),
		"how many CPUs the tests that run at once may need together")
	flags.BoolVar(&o.race, "race", false, "build the test binary with the race detector")
	raced := flags.String("raced", "",
		"a regular expression: the nodes of the tests whose whole name it matches have the race detector")
	flags.DurationVar(&o.limit, "timeout", 15*time.Minute, "how long one test may take")
	flags.StringVar(&o.record, "record", "", "write the times of this run into that file (ops/drills/times.txt)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if *raced != "" {
		if o.raced, err = regexp.Compile("^(" + *raced + ")$"); err != nil {
			return o, err
		}
	}
	o.programs = os.Getenv(local.EnvPrograms)
	if flags.NArg() > 0 || o.side < 1 || o.limit <= 0 {
		return o, errors.New("usage: drills [-run EXPRESSION] [-side N] [-load CPUS] [-race] [-raced EXPRESSION] " +
			"[-timeout DURATION] [-record FILE]")
	}
	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	return runDrills(ctx, o, os.Stdout)
}

// runDrills runs the tests and writes the progress to out. Its error says how many failed.
func runDrills(ctx context.Context, o options, out io.Writer) error {
	known, err := parseTimes(timesFile)
	if err != nil {
		return err
	}
	b, err := build(ctx, o, out)
	if err != nil {
		return err
	}
	defer b.remove()
	names, err := b.list(ctx, o.only)
	if err != nil {
		return err
	}
	begin := time.Now()
	r := &runner{options: o, build: b, out: out, begin: begin, total: len(names)}
	results := r.runAll(ctx, newQueue(names, known, o.side, o.load))
	if o.record != "" {
		if err := record(o.record, known, results); err != nil {
			return err
		}
	}
	return r.close(ctx, results)
}
