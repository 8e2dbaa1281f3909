package bench

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// patient is a start timeout longer than Nomad alone needs to place a thousand jobs at once.
const patient = `start_timeout = "10m"`

// TestScale starts many sandboxes of the mock driver at once and compares that with the same
// jobs submitted to Nomad directly. Then it measures the idle leader.
func TestScale(t *testing.T) {
	wanted(t)
	for _, n := range slices.Compact([]int{100, size(t, "BIVOUAC_BENCH_SANDBOXES", 1000)}) {
		t.Run(strconv.Itoa(n), func(t *testing.T) { scale(t, n) })
	}
}

// scale gives each side its own Nomad: a second one would find a client full of the first one's
// allocations, or busy with removing them.
func scale(t *testing.T, n int) {
	var theirs, ours time.Duration
	t.Run("Nomad alone", func(t *testing.T) {
		theirs = submitted(t, mocks(t), n)
		t.Logf("%d jobs of the same shape: all run after %.1f s", n, theirs.Seconds())
	})
	t.Run("Bivouac", func(t *testing.T) {
		f := mocks(t)
		begin := time.Now()
		atOnce(n, func(i int) { f.Nodes[i%3].StartSandbox(t, "mock") })
		accepted := time.Since(begin)
		eventually(t, "all are RUNNING", func() error {
			running, err := gauge(f.Leader(t), `bivouac_sandboxes{state="RUNNING"}`)
			if err == nil && int(running) != n {
				err = fmt.Errorf("%v are", running)
			}
			return err
		})
		ours = time.Since(begin)
		t.Logf("%d sandboxes: accepted after %.1f s, all RUNNING after %.1f s", n, accepted.Seconds(), ours.Seconds())
		rest(t, f, n)
	})
	t.Logf("%d sandboxes of mock_driver: RUNNING after %.1f s; Nomad alone %.1f s; ratio %.2f", n, ours.Seconds(),
		theirs.Seconds(), ours.Seconds()/theirs.Seconds())
}

// mocks starts a test cluster whose sandboxes have no process: nothing listens on their ports
// or uses their memory.
func mocks(t *testing.T) *testcluster.Cluster {
	t.Helper()
	f := testcluster.Start(t, testcluster.Options{
		Specs: testcluster.MockSpec(patient),
		Nomad: "client {\n  memory_total_mb = 65536\n  min_dynamic_port = 33000\n  max_dynamic_port = 60000\n}\n",
	})
	f.SetDefault(t, "mock")
	return f
}

// atOnce calls fn for every number below n, a few dozen concurrently.
func atOnce(n int, fn func(i int)) {
	work := make(chan int)
	var wg sync.WaitGroup
	for range 48 {
		wg.Go(func() {
			for i := range work {
				fn(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
}

// submitted registers as many jobs of the same form and returns how long it took until all ran.
func submitted(t *testing.T, f *testcluster.Cluster, n int) time.Duration {
	t.Helper()
	model := f.Nodes[0].StartSandbox(t, "mock")
	f.Nodes[0].AwaitSandbox(t, model, "RUNNING")
	var job map[string]any
	if err := f.Nomad.Do(t.Context(), http.MethodGet, "job/sandbox-"+model, nil, &job); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	atOnce(n, func(i int) {
		mine := maps.Clone(job)
		id := fmt.Sprintf("alone-%d", i)
		mine["ID"], mine["Name"] = id, id
		if err := f.Nomad.Do(context.Background(), http.MethodPost, "jobs", map[string]any{"Job": mine}, nil); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "Nomad runs all", running(t, f, n+1))
	return time.Since(begin)
}

// running checks that exactly that many allocations run.
func running(t *testing.T, f *testcluster.Cluster, n int) func() error {
	return func() error {
		var list []struct{ ID string }
		err := f.Nomad.Do(t.Context(), http.MethodGet,
			"allocations?task_states=false&filter="+url.QueryEscape(`ClientStatus == "running"`), nil, &list)
		if err == nil && len(list) != n {
			err = fmt.Errorf("%d run", len(list))
		}
		return err
	}
}

// window is how long an idle leader is measured: more than twice the interval of full listings.
const window = 65 * time.Second

// slow bounds waits with a thousand sandboxes on a busy machine. lookout is the polling
// interval, which is long because polling so many is work.
const (
	slow    = 8 * time.Minute
	lookout = 200 * time.Millisecond
)

// eventually waits with those two.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	if err := testcluster.Poll(slow, lookout, check); err != nil {
		t.Fatalf("%s: not within %s: %v", what, slow, err)
	}
}

// rest measures the leader while there are no requests.
func rest(t *testing.T, f *testcluster.Cluster, n int) {
	t.Helper()
	leader := f.Leader(t)
	const listing = "bivouac_scheduler_pass_duration_seconds"
	listed, spent := listings(t, leader, listing)
	begin, cpu := time.Now(), cpuTime(t, leader.Pid())
	<-time.After(window) // no requests meanwhile
	after, total := listings(t, leader, listing)
	if after == listed {
		t.Fatalf("%s listed nothing in %s; it leads no more?", leader.Name, window)
	}
	used, quiet := cpuTime(t, leader.Pid())-cpu, time.Since(begin)
	t.Logf("%d sandboxes at rest for %.0f s: the leader used %.1f %% of a CPU and has %d MiB; "+
		"a full reconciliation pass took %.0f ms",
		n, quiet.Seconds(), 100*used.Seconds()/quiet.Seconds(), memory(t, leader.Pid()), 1000*(total-spent)/(after-listed))
	stages(t, f)
}

// listings returns the number of full passes and their duration in seconds.
func listings(t *testing.T, n *testcluster.Node, name string) (count, sum float64) {
	t.Helper()
	count, err := gauge(n, name+`_count{pass="listing"}`)
	if err == nil {
		sum, err = gauge(n, name+`_sum{pass="listing"}`)
	}
	if err != nil {
		t.Fatal(err)
	}
	return count, sum
}

// gauge reads one series.
func gauge(n *testcluster.Node, series string) (float64, error) {
	values, err := n.Metrics(context.Background())
	value, ok := values[series]
	if err == nil && !ok {
		err = fmt.Errorf("%s has no metric %s", n.Name, series)
	}
	return value, err
}

// cpuTime returns the process's CPU time, from /proc (100 ticks per second).
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// memory returns the process's resident memory in MiB.
func memory(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(raw))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize() >> 20
}
