package bench

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// size reads an amount from the environment.
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

// wanted skips the test unless `make bench` runs it.
func wanted(t testing.TB) {
	t.Helper()
	if os.Getenv("BIVOUAC_BENCH") == "" {
		t.Skip("make bench runs this")
	}
}

// durations are the results of one kind of operation.
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

// pace is the polling interval for both sides. Much faster polling slows what it measures: a
// read from Bivouac is a linearizable read of three nodes on the CPUs on which Nomad starts the
// task, while a connection to a closed port costs nothing.
const pace = 10 * time.Millisecond

// until polls.
func until(t testing.TB, what string, check func() error) {
	t.Helper()
	if err := testcluster.Poll(testcluster.Patience, pace, check); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// TestStarts measures cold starts and resumes, alternating between Bivouac and Nomad.
func TestStarts(t *testing.T) {
	wanted(t)
	rounds := size(t, "BIVOUAC_BENCH_ROUNDS", 20)
	f := testcluster.Start(t, testcluster.Options{Docker: true})
	r := newReport()
	defer r.print(t)
	for _, spec := range f.Drivers() {
		alone := newAlone(t, f, spec)
		var ours, theirs, oursAgain, theirsAgain durations
		for i := range rounds + 2 {
			start, resume := bivouac(t, f.Nodes[i%len(f.Nodes)], spec)
			coldStart, revert := alone.round(t)
			if i < 2 {
				continue // the first round is a warm-up
			}
			ours, theirs = append(ours, start), append(theirs, coldStart)
			oursAgain, theirsAgain = append(oursAgain, resume), append(theirsAgain, revert)
		}
		r.compare("cold start, "+spec, ours, theirs)
		r.compare("resume, "+spec, oursAgain, theirsAgain)
	}
	stages(t, f)
}

// bivouac starts, pauses, resumes and deletes a sandbox through a node. It returns how long
// start and resume took, from the request until the sandbox is RUNNING and its agent server
// responds.
func bivouac(t testing.TB, node *testcluster.Node, spec string) (start, resume time.Duration) {
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

func usable(t testing.TB, node *testcluster.Node, id string) {
	t.Helper()
	until(t, "sandbox "+id, func() error {
		sb, err := node.SandboxIn(id, "RUNNING")
		if err != nil {
			return err
		}
		return sb.Inside().Get("/health", nil)
	})
}

// stages prints the leader's metrics of the stages of a start.
func stages(t testing.TB, f *testcluster.Cluster) {
	t.Helper()
	for stage, mean := range means(t, f.Leader(t), "bivouac_sandbox_start_duration_seconds") {
		t.Logf("leader's own mean until %s: %.0f ms", stage, mean*1000)
	}
	for call, mean := range means(t, f.Leader(t), "bivouac_nomad_call_duration_seconds") {
		t.Logf("leader's mean of Nomad call %s: %.1f ms", call, mean*1000)
	}
}

// means returns the mean of each series of a histogram, by its labels.
func means(t testing.TB, n *testcluster.Node, name string) map[string]float64 {
	t.Helper()
	values, err := n.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for series, count := range values {
		if labels, ok := strings.CutPrefix(series, name+"_count"); ok && count > 0 {
			out[labels] = values[name+"_sum"+labels] / count
		}
	}
	return out
}
