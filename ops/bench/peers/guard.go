package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/ops/bench/peers/load"
)

const guardUsage = `usage: go run -C ops/bench/peers . guard [flags] [COMMIT]

Measures the CPU time that a request costs this tree's nodes and those of COMMIT
(by default the one in ops/bench/BASE), and fails if this tree's is more than %.2f
times the other's. make bench-guard runs it, in about five minutes.

Both are clusters of three processes with the same configuration: no limits, and
Nomad and Vault that do not respond. %d connections send a request each, the next
one when the last is answered. A write has 512 bytes. What counts is the user and
system time of all three nodes (/proc/PID/stat), not that of this process, which
makes the load. A bare net/http handler that returns as many bytes as a read is
measured between the two, and both are divided by it. Those whose turn it is not
are stopped (SIGSTOP). Run it on a machine that does nothing else.

`

const (
	// dearer is the ratio above which a round objects.
	dearer = 1.15
	// guardClients is the number of connections.
	guardClients = 64
)

// guardRow is one kind of request. at is the node that gets it.
type guardRow struct{ name, kind, at string }

func guardRows() []guardRow {
	return []guardRow{
		{"stale read", workStale, atFollower},
		{"linearizable read", workRead, atFollower},
		{"write through a follower", workWrite, atFollower},
		{"write at the leader", workWrite, atLeader},
	}
}

// round is the CPU time of a request in one round.
type round struct{ here, base, bare time.Duration }

// ratio is the quotient of the two trees' multiples of the bare handler.
func (r round) ratio() float64 { return r.overBare(r.here) / r.overBare(r.base) }

func (r round) overBare(d time.Duration) float64 { return float64(d) / float64(r.bare) }

// guard compares this tree with another commit.
type guard struct {
	*bench
	rounds int
	// against is the other commit's short hash.
	against string
	found   map[string][]round

	// profiles is the folder for CPU profiles of each node under each kind of request, "" for none.
	profiles string

	steps, done, noisy int
	began              time.Time
}

// runGuard parses the flags of the guard and carries it out.
func runGuard(ctx context.Context, args []string, stdout io.Writer) error {
	g := newGuard(stdout)
	f := flag.NewFlagSet("guard", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprintf(f.Output(), guardUsage, dearer, guardClients)
		f.PrintDefaults()
	}
	f.IntVar(&g.rounds, "rounds", g.rounds, "how often each is measured; four of five must object")
	f.DurationVar(&g.load.For, "for", g.load.For, "how long each is measured")
	f.DurationVar(&g.load.Warm, "warm", g.load.Warm, "how long each is loaded before")
	f.StringVar(&g.program, "bivouac", "", "a bivouac program to measure instead of this tree's")
	f.StringVar(&g.profiles, "profiles", "", "a folder for CPU profiles of this tree's nodes, taken after the rounds")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case f.NArg() > 1 || g.rounds < 1:
		return errors.New("guard takes one commit, and -rounds at least 1")
	}
	err := g.run(ctx, f.Arg(0))
	if ctx.Err() != nil {
		return errors.New("interrupted: nothing is left running")
	}
	return err
}

func newGuard(stdout io.Writer) *guard {
	g := &guard{bench: newBench(stdout), found: map[string][]round{}, rounds: 5}
	g.load.Clients, g.load.For, g.load.Warm, g.again = guardClients, 3*time.Second, time.Second, 1
	g.systems = []string{sysBare}
	return g
}

// run builds the programs, measures, and leaves nothing but the program of the commit in the cache.
func (g *guard) run(ctx context.Context, commit string) (err error) {
	root, err := local.Root()
	if err != nil {
		return err
	}
	if commit == "" {
		if commit, err = baseCommit(root); err != nil {
			return err
		}
	}
	hash, err := resolve(ctx, root, commit)
	if err != nil {
		return err
	}
	g.against = hash[:7]
	if g.base == "" {
		if g.base, err = programOf(ctx, root, hash, g.stdout); err != nil {
			return err
		}
	}
	if g.dir, err = os.MkdirTemp("", "bivouac-guard-"); err != nil {
		return err
	}
	defer os.RemoveAll(g.dir)
	here, err := git(ctx, root, "describe", "--always", "--dirty", "--exclude=*")
	if err != nil {
		return err
	}
	fmt.Fprintf(g.stdout, "building this tree (%s, protocol version %d) and the bare handler\n", here, fsm.ProtocolVersion)
	if g.programs, err = g.build(ctx); err != nil {
		return err
	}
	defer g.stop()
	if err := g.measureRounds(ctx); err != nil {
		return err
	}
	g.table()
	if g.profiles != "" {
		if err := g.takeProfiles(ctx); err != nil {
			return err
		}
	}
	return g.verdict()
}

// measureRounds measures this tree, the bare handler and the other commit in turn, so that a drift
// of the machine meets all of them.
func (g *guard) measureRounds(ctx context.Context) error {
	g.steps = g.rounds * len(guardRows()) * 3
	fmt.Fprintf(g.stdout, "starting three nodes of this tree, three of %s, and the bare handler\n", g.against)
	for _, name := range []string{sysBivouac, sysBase, sysBare} {
		if _, err := g.system(ctx, name); err != nil {
			return err
		}
	}
	size, err := os.Stat(filepath.Join(g.dir, "answer.json"))
	if err != nil {
		return err
	}
	fmt.Fprintf(g.stdout,
		"%d connections, writes of 512 bytes, responses to reads of %d, no limits; CPU of all nodes for a request:\n",
		guardClients, size.Size())
	g.began = time.Now()
	for n := range g.rounds {
		for _, row := range guardRows() {
			var r round
			for _, one := range []struct {
				system string
				row    guardRow
				into   *time.Duration
			}{
				{sysBivouac, row, &r.here}, {sysBare, guardRow{row.name, workStale, atLeader}, &r.bare}, {sysBase, row, &r.base},
			} {
				if *one.into, err = g.cost(ctx, one.system, one.row); err != nil {
					return fmt.Errorf("%s of %s: %w", row.name, one.system, err)
				}
				g.done++
			}
			g.found[row.name] = append(g.found[row.name], r)
			left := time.Since(g.began) / time.Duration(g.done) * time.Duration(g.steps-g.done)
			fmt.Fprintf(g.stdout, "round %d of %d, %-24s  here %4d µs, %s %4d µs, bare %3d µs: ratio %.2f  (%s left)\n",
				n+1, g.rounds, row.name, r.here.Microseconds(), g.against, r.base.Microseconds(), r.bare.Microseconds(), r.ratio(),
				left.Round(time.Second))
		}
	}
	return nil
}

// failedTries is how often a measurement is made again in which requests failed, none was answered
// or the leader changed.
const failedTries = 5

// cost returns the CPU time of one request. A measurement that other programs disturbed is made again
// as often as the bench says.
func (g *guard) cost(ctx context.Context, name string, row guardRow) (time.Duration, error) {
	s, err := g.system(ctx, name)
	if err != nil {
		return 0, err
	}
	s.resume()
	defer s.pause()
	for try := 0; ; try++ {
		each, others, err := g.costOnce(ctx, s, row)
		most := g.again
		if err == nil && others <= disturbed {
			return each, nil
		} else if err != nil {
			most = failedTries
		}
		if try >= most || ctx.Err() != nil {
			g.noisy++
			return each, err
		}
	}
}

// costOnce also returns how many cores other programs used meanwhile.
func (g *guard) costOnce(ctx context.Context, s *system, row guardRow) (each time.Duration, others float64, err error) {
	leader, err := s.settled(ctx)
	if err != nil {
		return 0, 0, err
	}
	node := leader
	if row.at == atFollower {
		node = (leader + 1) % len(s.nodes)
	}
	do := s.work(row.kind, node)
	if _, err = load.Run(ctx, load.Options{Clients: g.load.Clients, For: g.load.Warm}, do); err != nil {
		return 0, 0, err
	}
	before, _ := s.usage()
	all, began := busy(), time.Now()
	r, err := load.Run(ctx, load.Options{Clients: g.load.Clients, For: g.load.For}, do)
	if err != nil {
		return 0, 0, err
	}
	after, _ := s.usage()
	others = ((busy() - all) - (after - before) - r.Used).Seconds() / time.Since(began).Seconds()
	if r.Errors > 0 || r.Ops == 0 {
		return 0, others, fmt.Errorf("%d requests were answered, %d failed: %s", r.Ops, r.Errors, r.Error)
	}
	if now, err := s.settled(ctx); err != nil || now != leader {
		return 0, others, errors.Join(errors.New("the leader changed during the measurement: "+
			"give the machine less to do"), err)
	}
	return (after - before) / time.Duration(r.Ops), others, nil
}

// table prints the medians.
func (g *guard) table() {
	var t table
	t.head("a request", "here ÷ bare", g.against+" ÷ bare", "ratio", "rounds above "+fmt.Sprintf("%.2f", dearer))
	for _, row := range guardRows() {
		rounds := g.found[row.name]
		ratio := spreadBy(rounds, round.ratio)
		t.row(row.name, fmt.Sprintf("%.1f", spreadBy(rounds, func(r round) float64 { return r.overBare(r.here) }).median),
			fmt.Sprintf("%.1f", spreadBy(rounds, func(r round) float64 { return r.overBare(r.base) }).median),
			fmt.Sprintf("%.2f (%.2f to %.2f)", ratio.median, ratio.least,
				ratio.most), fmt.Sprintf("%d of %d", above(rounds), len(rounds)))
	}
	fmt.Fprintf(g.stdout, "\n%s\n", t.String())
	if g.noisy > 0 {
		fmt.Fprintf(g.stdout, "other programs used more than %.2f of a core during %d of %d measurements: "+
			"a quiet machine gives better figures\n",
			disturbed, g.noisy, g.steps)
	}
}

// verdict is an error if a kind of request became dearer.
func (g *guard) verdict() error {
	var said []string
	for _, row := range guardRows() {
		if rounds := g.found[row.name]; objects(rounds) {
			said = append(said,
				fmt.Sprintf("a %s costs %.2f times what it costs at %s", row.name, spreadBy(rounds, round.ratio).median, g.against))
		}
	}
	if len(said) == 0 {
		fmt.Fprintf(g.stdout, "no request costs more than %.2f times what it costs at %s\n", dearer, g.against)
		return nil
	}
	return fmt.Errorf("%s; make it cheaper, or name another commit in %s with the reason", strings.Join(said, "; "),
		baseFile)
}

// objects reports whether four of five rounds are above the limit.
func objects(rounds []round) bool { return 5*above(rounds) >= 4*len(rounds) && len(rounds) > 0 }

func above(rounds []round) (count int) {
	for _, r := range rounds {
		if r.ratio() > dearer {
			count++
		}
	}
	return count
}

// spreadBy is the spread of one figure of the rounds.
func spreadBy(rounds []round, figure func(round) float64) spread {
	var values []float64
	for r := range slices.Values(rounds) {
		values = append(values, figure(r))
	}
	return spreadOf(values)
}
