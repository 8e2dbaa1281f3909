package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// sample is one node's metrics at one moment.
type sample struct {
	at time.Duration // since the load began
	// heap is the size at which the next collection runs. It follows the live heap. The heap in
	// use rises by 128 MiB between two collections, which a short run takes for growth.
	heap                   float64
	rss, goroutines        float64
	term, changes, applied float64
}

// series are one node's samples, oldest first.
type series struct {
	node    *testcluster.Node
	samples []sample
}

// scrape reads a node's metrics.
func scrape(ctx context.Context, node *testcluster.Node) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	values, err := node.Metrics(ctx)
	if err != nil {
		return sample{}, fmt.Errorf("reading the metrics of %s: %w", node.Base, err)
	}
	value := func(name string) float64 {
		v, there := values[name]
		if !there {
			err = errors.Join(err, fmt.Errorf("%s has no metric %s", node.Base, name))
		}
		return v
	}
	s := sample{
		heap: value("go_memstats_next_gc_bytes"), rss: value("process_resident_memory_bytes"),
		goroutines: value("go_goroutines"),
		term:       value("bivouac_raft_term"), changes: value("bivouac_raft_leader_changes_total"),
		applied: value("bivouac_raft_applied_index"),
	}
	return s, err
}

// The bounds of "flat": how far the median of the second half may exceed the first half's. The
// constant part is the variation by a garbage collection or a burst of requests.
const (
	flatShare      = 1.10
	flatHeap       = 24 << 20
	flatGoroutines = 64
	// warmShare is the fraction of samples at the start that is ignored: connections open and
	// caches fill.
	warmShare = 0.2
)

// halves returns the medians of the two halves after the warm-up.
func (s series) halves(value func(sample) float64) (first, second float64) {
	kept := s.samples[int(warmShare*float64(len(s.samples))):]
	if len(kept) < 4 {
		return 0, 0
	}
	median := func(part []sample) float64 {
		var values []float64
		for _, p := range part {
			values = append(values, value(p))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return median(kept[:len(kept)/2]), median(kept[len(kept)/2:])
}

func heapOf(s sample) float64       { return s.heap }
func rssOf(s sample) float64        { return s.rss }
func goroutinesOf(s sample) float64 { return s.goroutines }

// flat returns an error that names what grew.
func (s series) flat() error {
	var errs []error
	if len(s.samples) < 10 {
		return fmt.Errorf("%s was looked at only %d times", s.node.Base, len(s.samples))
	}
	if a, b := s.halves(heapOf); b > flatShare*a+flatHeap {
		errs = append(errs,
			fmt.Errorf("the heap of %s at its next collection grew from %.0f to %.0f MiB", s.node.Base, mib(a), mib(b)))
	}
	if a, b := s.halves(goroutinesOf); b > flatShare*a+flatGoroutines {
		errs = append(errs, fmt.Errorf("the goroutines of %s grew from %.0f to %.0f", s.node.Base, a, b))
	}
	return errors.Join(errs...)
}

func mib(bytes float64) float64 { return bytes / (1 << 20) }

// latencies keeps a sample of the durations, all of them while there are few.
type latencies struct {
	seen int
	kept []time.Duration
}

const latenciesKept = 20000

func (l *latencies) add(d time.Duration) {
	l.seen++
	if len(l.kept) < latenciesKept {
		l.kept = append(l.kept, d)
		return
	}
	// Every n-th duration replaces an older one, so the sample covers the whole run.
	if step := l.seen/latenciesKept + 1; l.seen%step == 0 {
		l.kept[(l.seen/step)%latenciesKept] = d
	}
}

func (l *latencies) String() string {
	if len(l.kept) == 0 {
		return "none"
	}
	sorted := slices.Sorted(slices.Values(l.kept))
	at := func(share float64) float64 {
		return float64(sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]) / float64(time.Millisecond)
	}
	return fmt.Sprintf("%.1f / %.1f / %.1f", at(.5), at(.99), at(1))
}

// csv returns the samples of all nodes as a table for a plot.
func csv(all []*series) string {
	var b strings.Builder
	b.WriteString("node,seconds,next_gc_bytes,rss_bytes,goroutines,term,leader_changes,applied_index\n")
	for _, s := range all {
		for _, p := range s.samples {
			fmt.Fprintf(&b, "%s,%.1f,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f\n", s.node.Base, p.at.Seconds(), p.heap, p.rss,
				p.goroutines, p.term, p.changes, p.applied)
		}
	}
	return b.String()
}
