package load

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// sample is what one node said of itself at one moment.
type sample struct {
	at                     time.Duration // since the load began
	heap, rss, goroutines  float64
	term, changes, applied float64
}

// series are one node's samples, oldest first.
type series struct {
	node    string
	samples []sample
}

// scrape reads a node's /metrics.
func scrape(ctx context.Context, client *http.Client, node string) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, node+"/metrics", nil)
	if err != nil {
		return sample{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return sample{}, err
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return sample{}, fmt.Errorf("reading the metrics of %s: %w", node, err)
	}
	var missing error
	value := func(name string) float64 {
		f := families[name]
		if f == nil || len(f.Metric) == 0 {
			missing = errors.Join(missing, fmt.Errorf("%s has no metric %s", node, name))
			return 0
		}
		if f.GetType() == dto.MetricType_COUNTER {
			return f.Metric[0].GetCounter().GetValue()
		}
		return f.Metric[0].GetGauge().GetValue()
	}
	s := sample{
		heap: value("go_memstats_heap_inuse_bytes"), rss: value("process_resident_memory_bytes"), goroutines: value("go_goroutines"),
		term: value("bivouac_raft_term"), changes: value("bivouac_raft_leader_changes_total"), applied: value("bivouac_raft_applied_index"),
	}
	return s, missing
}

// The bounds of flat: how much the median of the second half may lie above the
// first half's. The constant part is what a collection of garbage, or a burst of
// requests, moves by itself.
const (
	flatShare      = 1.10
	flatHeap       = 24 << 20
	flatGoroutines = 64
	// warmShare of the samples come first and are left out: connections are
	// opened, caches filled.
	warmShare = 0.2
)

// halves gives the medians of the two halves after warming up.
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

// flat is an error that says what grew.
func (s series) flat() error {
	var errs []error
	if len(s.samples) < 10 {
		return fmt.Errorf("%s was looked at only %d times", s.node, len(s.samples))
	}
	if a, b := s.halves(heapOf); b > flatShare*a+flatHeap {
		errs = append(errs, fmt.Errorf("the heap of %s grew from %.0f to %.0f MiB", s.node, mib(a), mib(b)))
	}
	if a, b := s.halves(goroutinesOf); b > flatShare*a+flatGoroutines {
		errs = append(errs, fmt.Errorf("the goroutines of %s grew from %.0f to %.0f", s.node, a, b))
	}
	return errors.Join(errs...)
}

func mib(bytes float64) float64 { return bytes / (1 << 20) }

// latencies keeps a share of the durations, all of them while there are few.
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
	// Spread over the whole run: every n-th takes the place of an older one.
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

// csv gives the samples of all nodes as a table for a plot.
func csv(all []*series) string {
	var b strings.Builder
	b.WriteString("node,seconds,heap_bytes,rss_bytes,goroutines,term,leader_changes,applied_index\n")
	for _, s := range all {
		for _, p := range s.samples {
			fmt.Fprintf(&b, "%s,%.1f,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f\n", s.node, p.at.Seconds(), p.heap, p.rss, p.goroutines, p.term, p.changes, p.applied)
		}
	}
	return b.String()
}
