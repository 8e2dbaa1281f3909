package bench

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

// size reads how much to measure from the environment.
func size(t testing.TB, name string, ordinary int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return ordinary
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, not a number", name, text)
	}
	return n
}

// wanted skips what `make bench` did not ask for.
func wanted(t testing.TB) {
	t.Helper()
	if os.Getenv("BIVOUAC_BENCH") == "" {
		t.Skip("make bench runs this")
	}
}

// durations of one kind of thing.
type durations []time.Duration

func (d durations) at(share float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

func (d durations) String() string {
	return fmt.Sprintf("%.0f / %.0f / %.0f", ms(d.at(.5)), ms(d.at(.9)), ms(d.at(1)))
}

func (d durations) ms() (out []float64) {
	for _, one := range d {
		out = append(out, ms(one))
	}
	return out
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// report collects the rows of the table.
type report struct {
	text strings.Builder
	w    *tabwriter.Writer
}

func newReport() *report {
	r := &report{}
	r.w = tabwriter.NewWriter(&r.text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(r.w, "what\tBivouac, ms (median / p90 / max)\tNomad alone, ms\tratio of medians")
	return r
}

func (r *report) compare(what string, ours, theirs durations) {
	fmt.Fprintf(r.w, "%s\t%s\t%s\t%.2f\n", what, ours, theirs, ms(ours.at(.5))/ms(theirs.at(.5)))
}

func (r *report) print(t testing.TB) {
	r.w.Flush()
	t.Logf("\n%s", r.text.String())
}

// pace is the pause between two questions, the same for both sides. What asks
// far more often slows what it watches: a question to Bivouac is a linearizable
// read of three nodes on the CPUs on which Nomad starts the task, one to a port
// that is still closed costs nothing.
const pace = 10 * time.Millisecond

// until polls.
func until(t testing.TB, what string, check func() error) {
	t.Helper()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	deadline := time.After(fleet.Patience)
	for err := check(); err != nil; err = check() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// TestStarts measures cold starts and resumes, one of ours and one of Nomad's
// in turn.
func TestStarts(t *testing.T) {
	wanted(t)
	rounds := size(t, "BIVOUAC_BENCH_ROUNDS", 20)
	f := fleet.Start(t, fleet.Options{Docker: true})
	r := newReport()
	defer r.print(t)
	for _, spec := range f.Drivers() {
		alone := newAlone(t, f, spec)
		var ours, theirs, oursAgain, theirsAgain durations
		for i := range rounds + 2 {
			start, resume := bivouac(t, f.Nodes[i%len(f.Nodes)], spec)
			coldStart, revert := alone.round(t)
			if i < 2 {
				continue // caches and connections are cold
			}
			ours, theirs = append(ours, start), append(theirs, coldStart)
			oursAgain, theirsAgain = append(oursAgain, resume), append(theirsAgain, revert)
		}
		r.compare("cold start, "+spec, ours, theirs)
		r.compare("resume, "+spec, oursAgain, theirsAgain)
	}
	stages(t, f)
}

// bivouac starts, pauses, resumes and deletes a sandbox through a node and
// gives how long the start and the resume took, from the request until the
// sandbox is RUNNING and its agent server answers.
func bivouac(t testing.TB, node *fleet.Node, spec string) (start, resume time.Duration) {
	t.Helper()
	begin := time.Now()
	id := node.StartSandbox(t, spec)
	usable(t, node, id)
	start = time.Since(begin)
	node.Change(t, id, "pause")
	node.AwaitSandbox(t, id, "PAUSED")
	begin = time.Now()
	node.Change(t, id, "resume")
	usable(t, node, id)
	resume = time.Since(begin)
	node.Change(t, id, "delete")
	return start, resume
}

func usable(t testing.TB, node *fleet.Node, id string) {
	t.Helper()
	until(t, "sandbox "+id, func() error {
		sb, err := node.Sandbox(id)
		if err == nil && sb.Status != "RUNNING" {
			err = errors.New("it is " + sb.Status + " " + sb.Detail())
		}
		if err != nil {
			return err
		}
		return healthy(sb.Inside())
	})
}

func healthy(c fleet.Client) error {
	a, err := c.Try(http.MethodGet, "/health", nil)
	if err == nil && a.Status != http.StatusOK {
		err = errors.New(a.String())
	}
	return err
}

// stages prints what the leader says of where the time of starts goes.
func stages(t testing.TB, f *fleet.Fleet) {
	t.Helper()
	for stage, mean := range means(t, f.Leader(t), "bivouac_sandbox_start_seconds") {
		t.Logf("leader's own mean until %s: %.0f ms", stage, mean*1000)
	}
	for call, mean := range means(t, f.Leader(t), "bivouac_nomad_call_seconds") {
		t.Logf("leader's mean of Nomad call %s: %.1f ms", call, mean*1000)
	}
}

// means gives the mean of each series of a histogram, by its labels.
func means(t testing.TB, n *fleet.Node, name string) map[string]float64 {
	t.Helper()
	a, err := n.Try(http.MethodGet, "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	sums, out := map[string]float64{}, map[string]float64{}
	for line := range strings.Lines(string(a.Body)) {
		series, text, _ := strings.Cut(strings.TrimSpace(line), "} ")
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			continue
		}
		if labels, ok := strings.CutPrefix(series, name+"_sum{"); ok {
			sums[labels] = value
		}
		if labels, ok := strings.CutPrefix(series, name+"_count{"); ok && value > 0 {
			out[labels] = sums[labels] / value
		}
	}
	return out
}
