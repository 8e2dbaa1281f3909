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

	"bivouac.dev/bivouac/ops/fleet"
)

// mockSpec costs nothing to run: Nomad's word is enough. Its deadline is longer
// than Nomad alone needs to place a thousand jobs that came at once.
const mockSpec = `
spec "mock" {
  driver      = "mock_driver"
  readiness   = "allocation"
  start_timeout = "10m"
  working_dir = "project"
  cpu         = 10
  memory      = 10
  port "AGENT_SERVER" {}
}
`

// TestScale starts many sandboxes of the mock driver at once, against the same
// jobs submitted to Nomad directly, and looks at the leader when all is quiet.
func TestScale(t *testing.T) {
	wanted(t)
	for _, n := range slices.Compact([]int{100, size(t, "BIVOUAC_BENCH_SANDBOXES", 1000)}) {
		t.Run(strconv.Itoa(n), func(t *testing.T) { scale(t, n) })
	}
}

// scale gives each its own Nomad: whoever came second would find a client that is
// full of the other's allocations, or busy with clearing them away.
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
	t.Logf("%d sandboxes of mock_driver: RUNNING after %.1f s; Nomad alone %.1f s; ratio %.2f", n, ours.Seconds(), theirs.Seconds(), ours.Seconds()/theirs.Seconds())
}

// mocks is a fleet whose sandboxes cost nothing: nothing listens on their ports,
// and nothing uses their memory.
func mocks(t *testing.T) *fleet.Fleet {
	t.Helper()
	f := fleet.Start(t, fleet.Options{
		Specs: mockSpec,
		Nomad: "client {\n  memory_total_mb = 65536\n  min_dynamic_port = 33000\n  max_dynamic_port = 60000\n}\n",
	})
	f.SetDefault(t, "mock")
	return f
}

// atOnce calls fn for every number below n, a few dozen at a time.
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

// submitted registers as many jobs of the same shape and gives how long it took
// until all of them ran.
func submitted(t *testing.T, f *fleet.Fleet, n int) time.Duration {
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

// running checks that so many allocations run.
func running(t *testing.T, f *fleet.Fleet, n int) func() error {
	return func() error {
		var list []struct{ ID string }
		err := f.Nomad.Do(t.Context(), http.MethodGet, "allocations?task_states=false&filter="+url.QueryEscape(`ClientStatus == "running"`), nil, &list)
		if err == nil && len(list) != n {
			err = fmt.Errorf("%d run", len(list))
		}
		return err
	}
}

// window is how long a leader at rest is watched: longer than the pause between
// two full listings, twice.
const window = 65 * time.Second

// slow bounds what takes long with a thousand sandboxes on a busy machine, and
// lookout is the pause between two looks at so many: a look is work itself.
const (
	slow    = 8 * time.Minute
	lookout = 200 * time.Millisecond
)

// eventually waits with that patience, at that pace.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	tick := time.NewTicker(lookout)
	defer tick.Stop()
	deadline := time.After(slow)
	for err := check(); err != nil; err = check() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %s: %v", what, slow, err)
		}
	}
}

// rest watches the leader for a while in which nothing happens.
func rest(t *testing.T, f *fleet.Fleet, n int) {
	t.Helper()
	leader := f.Leader(t)
	const listing = "bivouac_scheduler_pass_seconds"
	listed, spent := listings(t, leader, listing)
	begin, cpu := time.Now(), cpuTime(t, leader.Pid())
	<-time.After(window) // nobody asks anything meanwhile
	after, total := listings(t, leader, listing)
	if after == listed {
		t.Fatalf("%s listed nothing in %s; it leads no more?", leader.Name, window)
	}
	used, quiet := cpuTime(t, leader.Pid())-cpu, time.Since(begin)
	t.Logf("%d sandboxes at rest for %.0f s: the leader used %.1f %% of a CPU and has %d MiB; a full reconciliation pass took %.0f ms",
		n, quiet.Seconds(), 100*used.Seconds()/quiet.Seconds(), memory(t, leader.Pid()), 1000*(total-spent)/(after-listed))
	stages(t, f)
}

// listings gives how many full passes there were, and how many seconds they took.
func listings(t *testing.T, n *fleet.Node, name string) (count, sum float64) {
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
func gauge(n *fleet.Node, series string) (float64, error) {
	a, err := n.Try(http.MethodGet, "/metrics", nil)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(a.Body)) {
		if text, ok := strings.CutPrefix(line, series+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(text), 64)
		}
	}
	return 0, fmt.Errorf("%s does not tell %s", n.Name, series)
}

// cpuTime is what the process has used, by /proc (100 ticks to the second).
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

// memory is the process's resident memory in MiB.
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
