// Command peers compares Bivouac with etcd, rqlite and hashicorp/raft alone, in one run on one
// machine; see ../doc.go and RESULTS.md. `make bench` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `usage: go run -C ops/bench/peers . [flags]
       go run -C ops/bench/peers . guard [flags] [COMMIT]
       go run -C ops/bench/peers . memory SAMPLES.csv PLOT.svg     # of make soak

Measures the rows (ROWS, all by default) and appends what it finds to the file of
-out, one JSON object a line. With -report it measures nothing: it writes the
tables of RESULTS.md and the plots from that file.

Rows: %s

To tune Bivouac, with nothing else but the limit beside it:

  go run -C ops/bench/peers . -rows write -clients 64 -systems "raft + bare HTTP" -repeats 2 -out /tmp/x.jsonl
  go run -C ops/bench/peers . -rows write -clients 64 -systems none -base /tmp/bivouac-before -out /tmp/x.jsonl

`

func main() {
	if len(os.Args) == 2 && os.Args[1] == hogFlag {
		hog()
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run parses the flags and carries them out.
func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(args) > 0 && args[0] == "guard" {
		return runGuard(ctx, args[1:], os.Stdout)
	}
	if len(args) > 0 && args[0] == "memory" {
		return plotMemory(args[1:])
	}
	b := newBench(os.Stdout)
	into, err := b.parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if into != "" {
		return report(b.out, into)
	}
	return b.measureAll(ctx)
}

func newBench(stdout io.Writer) *bench {
	return &bench{running: map[string]*system{}, stdout: stdout}
}

// measureAll builds the programs, measures every row and leaves only the results.
func (b *bench) measureAll(ctx context.Context) (err error) {
	if b.dir, err = os.MkdirTemp("", "bivouac-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if b.programs, err = b.build(ctx); err != nil {
		return err
	}
	if b.rec, err = newRecorder(b.out, b.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.rec.close()) }()
	defer b.stop()
	return b.run(ctx)
}

// run measures the requested rows.
func (b *bench) run(ctx context.Context) error {
	for _, row := range loadRows() {
		if !slices.Contains(b.rows, row.name) {
			continue
		}
		if err := b.loads(ctx, row); err != nil {
			return err
		}
	}
	for _, row := range otherRows() {
		if !slices.Contains(b.rows, row.name) {
			continue
		}
		if err := row.measure(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
	}
	return nil
}

// otherRow is a row that is not a closed loop over all systems.
type otherRow struct {
	name    string
	measure func(*bench, context.Context) error
}

func otherRows() []otherRow {
	return []otherRow{
		{rowFailover, (*bench).failovers},
		{rowElections, (*bench).elections},
		{rowSearch, (*bench).searches},
		{rowSize, (*bench).sizes},
	}
}

// parse parses the flags. into is the path of RESULTS.md, "" to measure.
func (b *bench) parse(args []string) (into string, err error) {
	var known []string
	for _, row := range loadRows() {
		known = append(known, row.name)
	}
	for _, row := range otherRows() {
		known = append(known, row.name)
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprintf(f.Output(), usage, strings.Join(known, " "))
		f.PrintDefaults()
	}
	var rows, clients, systems string
	f.StringVar(&rows, "rows", strings.Join(known, ","), "which rows, with commas")
	f.StringVar(&clients, "clients", "1,16,64,256", "how many clients, with commas")
	f.StringVar(&systems, "systems", "", "which systems beside Bivouac, with semicolons; all by default")
	f.IntVar(&b.repeats, "repeats", 3, "how often each is measured")
	f.IntVar(&b.trials, "trials", 20, "how often leaders are killed")
	f.IntVar(&b.shrink, "shrink", 1, "divide the large amounts of data by this")
	f.DurationVar(&b.starveFor, "starve", time.Minute, "how long elections are counted with too few cores")
	f.DurationVar(&b.load.For, "for", 4*time.Second, "how long each is measured")
	f.DurationVar(&b.load.Warm, "warm", time.Second, "how long each is loaded before")
	f.StringVar(&b.out, "out", filepath.Join(os.TempDir(), "bivouac-bench.jsonl"), "the results, appended")
	f.StringVar(&b.program, "bivouac", "", "a bivouac program to measure instead of this tree's")
	f.StringVar(&b.base, "base", "", "another bivouac program to measure beside it")
	f.IntVar(&b.again, "again", 2, "how often a measurement that other programs disturbed is made again")
	f.IntVar(&b.etcdConns, "etcd-conns", etcdConns, "the gRPC connections to a node of etcd")
	f.StringVar(&b.more, "config", "", "HCL added to the configuration of Bivouac's nodes")
	f.StringVar(&into, "report", "", "write the tables into this RESULTS.md, and the plots beside it")
	quick := f.Bool("quick", false, "only see that every row works: few clients, short, once")
	if err := f.Parse(args); err != nil {
		return "", err
	}
	if *quick {
		clients, b.repeats, b.load.For, b.load.Warm = "4", 1, 500*time.Millisecond, 100*time.Millisecond
		b.trials, b.starveFor, b.shrink, b.again = 1, 2*time.Second, 50, 0
	}
	b.rows = strings.Split(rows, ",")
	for _, row := range b.rows {
		if !slices.Contains(known, row) {
			return "", fmt.Errorf("there is no row %q: %s", row, strings.Join(known, ", "))
		}
	}
	if systems != "" {
		b.systems = strings.Split(systems, ";")
	}
	for _, c := range strings.Split(clients, ",") {
		n, err := strconv.Atoi(c)
		if err != nil || n < 1 {
			return "", fmt.Errorf("%q is not a number of clients", c)
		}
		b.clients = append(b.clients, n)
	}
	return into, nil
}
