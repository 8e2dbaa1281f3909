package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// Plan configures a run.
type Plan struct {
	Cluster *testcluster.Cluster
	Shape   Shape
	// Measure is the duration of the measurement of the maximum, Duration that of the load of
	// Share of it.
	Measure, Duration time.Duration
	Share             float64
	// Rate is that of the load, in requests a second; 0 takes Share of the maximum. A rate that is
	// given measures no maximum.
	Rate float64
	// Workers is the number of concurrent requests.
	Workers int
	// Compare is the interval at which the load pauses and the nodes' states are compared.
	Compare time.Duration
	// Sample is the interval at which the metrics are read.
	Sample time.Duration
	// Starve is the number of busy processes that compete for the cores.
	Starve int
	// Shared: other programs use the machine. Then elections are counted but are no failure,
	// because a starved node can't send heartbeats.
	Shared bool
	// Samples is the path of a file for all samples, "" for none.
	Samples string
	// Log receives a line for each phase and each comparison.
	Log func(format string, args ...any)
}

// Report is the result of a run.
type Report struct {
	Maximum, Rate, Achieved float64 // requests per second
	Requests                int64
	Behind                  int64
	Failed                  map[string]int
	// Elections counts the elections under load, Before those while data was seeded and the
	// maximum measured.
	Elections, Before int
	Compared          int
	Index             uint64
	table             string
}

// String formats the report for people.
func (r *Report) String() string { return r.table }

// FailedRequests returns the number of requests without a correct response.
func (r *Report) FailedRequests() (n int) {
	for _, c := range r.Failed {
		n += c
	}
	return n
}

// Run carries out the plan. Its error is a broken promise: a wrong response, a lost write,
// different states, an election without a fault, growth. Requests that failed with a clear
// error are only in the report.
func Run(ctx context.Context, p Plan) (*Report, error) {
	r := &Report{}
	begin := time.Now()
	term, err := termOf(ctx, p.Cluster.Nodes[0])
	if err != nil {
		return r, err
	}
	users, err := seedCluster(ctx, p.Cluster, p.Shape)
	if err != nil {
		return r, err
	}
	p.Log("seeded %d users with %d conversations and a sandbox each in %.0f s", len(users), p.Shape.Conversations,
		time.Since(begin).Seconds())
	t := newTraffic(endpoints(p.Cluster.Nodes), users)
	if r.Rate = p.Rate; r.Rate == 0 {
		r.Maximum = t.maximum(ctx, p)
		r.Rate = p.Share * r.Maximum
		p.Log("the maximum is %.0f requests per second", r.Maximum)
	}
	now, err := termOf(ctx, p.Cluster.Nodes[0])
	if err != nil {
		return r, err
	}
	r.Before = now - term
	p.Log("the load will be %.0f requests per second; %d elections so far", r.Rate, r.Before)
	before := t.done.Load()
	t.reset()
	stop, err := starve(ctx, p.Starve)
	if err != nil {
		return r, err
	}
	defer stop()
	w := &watch{plan: p, traffic: t, begin: time.Now()}
	loaded, err := w.run(ctx, r)
	r.Requests, r.Behind = t.done.Load()-before, t.behind.Load()
	r.Achieved = float64(r.Requests) / loaded.Seconds()
	r.Compared = w.compared
	r.finish(t, w)
	err = errors.Join(err, w.verdict(r))
	if p.Samples != "" {
		err = errors.Join(err, os.WriteFile(p.Samples, []byte(csv(w.series)), 0o600))
	}
	return r, err
}

// termOf returns a node's term.
func termOf(ctx context.Context, node *testcluster.Node) (int, error) {
	s, err := scrape(ctx, node)
	return int(s.term), err
}

func within(ctx context.Context, d time.Duration, fn func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	fn(ctx)
}

// starve starts processes that only use CPU time.
func starve(ctx context.Context, n int) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var running []*exec.Cmd
	stop = func() {
		cancel()
		for _, c := range running {
			_ = c.Wait() // it was killed
		}
	}
	for range n {
		c := exec.CommandContext(ctx, "/bin/sh", "-c", "while :; do :; done")
		if err := c.Start(); err != nil {
			stop()
			return nil, fmt.Errorf("starving the cores: %w", err)
		}
		running = append(running, c)
	}
	return stop, nil
}

// watch sends the load and samples the nodes.
type watch struct {
	plan     Plan
	traffic  *traffic
	begin    time.Time
	series   []*series
	compared int
	scrapes  error
}

// run alternates load with comparisons of the nodes' states. It returns how long the load ran.
func (w *watch) run(ctx context.Context, r *Report) (loaded time.Duration, err error) {
	for _, n := range w.plan.Cluster.Nodes {
		w.series = append(w.series, &series{node: n})
	}
	for left := w.plan.Duration; left > 0 && ctx.Err() == nil; left -= w.plan.Compare {
		length := min(left, w.plan.Compare)
		phase := time.Now()
		within(ctx, length, func(ctx context.Context) {
			var watching sync.WaitGroup
			watching.Go(func() { w.sample(ctx) })
			w.traffic.flow(ctx, r.Rate, w.plan.Workers)
			watching.Wait()
		})
		loaded += time.Since(phase)
		if wrong := w.traffic.lies(); len(wrong) > 0 {
			return loaded, fmt.Errorf("%d wrong answers, the first: %s", len(wrong), wrong[0])
		}
		for _, n := range w.plan.Cluster.Nodes { // OneState leaves a dead one out
			if !n.Alive() {
				return loaded, fmt.Errorf("%s ended by itself", n.Name)
			}
		}
		if r.Index, _, err = w.plan.Cluster.OneState(ctx); err != nil {
			return loaded, err
		}
		w.compared++
		w.plan.Log("after %.0f s: %d requests, %d failed kinds, states equal at index %d; %s",
			time.Since(w.begin).Seconds(), w.traffic.done.Load(), w.traffic.failures(), r.Index, w.state())
	}
	if err := w.traffic.audit(ctx); err != nil {
		return loaded, err
	}
	return loaded, ctx.Err()
}

// state summarizes the nodes' state in a few words.
func (w *watch) state() string {
	var parts []string
	for _, s := range w.series {
		if len(s.samples) > 0 {
			last := s.samples[len(s.samples)-1]
			parts = append(parts,
				fmt.Sprintf("%.0f MiB heap at the next collection, %.0f MiB resident, %.0f goroutines, term %.0f", mib(last.heap),
					mib(last.rss), last.goroutines, last.term))
		}
	}
	return strings.Join(parts, "; ")
}

func (w *watch) sample(ctx context.Context) {
	tick := time.NewTicker(w.plan.Sample)
	defer tick.Stop()
	for {
		for _, s := range w.series {
			p, err := scrape(ctx, s.node)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				w.scrapes = errors.Join(w.scrapes, err)
				continue
			}
			p.at = time.Since(w.begin)
			s.samples = append(s.samples, p)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (t *traffic) failures() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.reasons)
}

// verdict returns nil if the nodes behaved correctly.
func (w *watch) verdict(r *Report) error {
	errs := []error{w.scrapes}
	for _, s := range w.series {
		errs = append(errs, s.flat())
	}
	if r.Elections > 0 && !w.plan.Shared {
		errs = append(errs, fmt.Errorf("%d elections without a fault", r.Elections))
	}
	return errors.Join(errs...)
}

// finish counts the elections and writes the report's table.
func (r *Report) finish(t *traffic, w *watch) {
	for _, s := range w.series {
		if n := len(s.samples); n > 0 {
			r.Elections = max(r.Elections, int(s.samples[n-1].term-s.samples[0].term))
		}
	}
	var b strings.Builder
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tab, "maximum\t%.0f requests/s with %d at a time\n", r.Maximum, w.plan.Workers)
	fmt.Fprintf(tab, "load\t%.0f requests/s wanted, %.0f sent, %d requests, %d more than a second late\n", r.Rate,
		r.Achieved, r.Requests, r.Behind)
	fmt.Fprintf(tab, "elections\t%d, and %d while data was seeded and the maximum measured\n", r.Elections, r.Before)
	fmt.Fprintf(tab, "states\tcompared %d times, equal at index %d\n", r.Compared, r.Index)
	for _, s := range w.series {
		h1, h2 := s.halves(heapOf)
		m1, m2 := s.halves(rssOf)
		g1, g2 := s.halves(goroutinesOf)
		fmt.Fprintf(tab, "%s\theap at a collection %.0f then %.0f MiB, resident %.0f then %.0f MiB, "+
			"goroutines %.0f then %.0f (medians of the halves)\n",
			s.node.Base, mib(h1), mib(h2), mib(m1), mib(m2), g1, g2)
	}
	for what, n := range t.reasons {
		fmt.Fprintf(tab, "failed\t%d times %s\n", n, what)
	}
	tab.Flush()
	r.Failed, r.table = t.reasons, b.String()+t.Summary()
}
