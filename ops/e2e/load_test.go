package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/ops/e2e/workload"
)

// soakRaft is a production node's raft block with snapshots every few seconds.
const soakRaft = `  snapshot_interval = "10s"`

// setting reads a number from the environment, with a default.
func setting(t *testing.T, name string, ordinary int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return ordinary
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s is %q, not a number", name, text)
	}
	return n
}

// TestLoad runs three nodes at 70 % of their capacity: a few seconds with few users in `make
// test`, for BIVOUAC_SOAK with the data of 5,000 users in `make soak DURATION=1h`. Every
// response is checked, memory and goroutines stay flat, no election happens, and all nodes have
// the same state.
func TestLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("keeps the machine busy for twenty seconds")
	}
	p := workload.Plan{
		Shape: workload.Shape{Users: 200, Conversations: 5}, Measure: 2 * time.Second, Duration: 12 * time.Second,
		Share: 0.7, Workers: 32, Compare: 6 * time.Second, Sample: 400 * time.Millisecond, Log: t.Logf,
		Shared: true, // runs beside the other packages' tests
	}
	if text := os.Getenv("BIVOUAC_SOAK"); text != "" {
		duration, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("BIVOUAC_SOAK: %v", err)
		}
		p.Duration, p.Measure, p.Compare, p.Sample = duration, 20*time.Second, time.Minute, min(5*time.Second, duration/40)
		p.Shared = false
		p.Shape = workload.Shape{Users: setting(t, "BIVOUAC_SOAK_USERS", 5000), Conversations: 10}
	}
	out := os.Getenv("BIVOUAC_SOAK_OUT")
	if out != "" {
		if err := os.MkdirAll(out, 0o700); err != nil {
			t.Fatal(err)
		}
		p.Samples = filepath.Join(out, "samples.csv")
	}
	p.Rate = float64(setting(t, "BIVOUAC_SOAK_RATE", 0))
	p.Starve = setting(t, "BIVOUAC_SOAK_STARVE", 0)
	f := testcluster.Start(t, testcluster.Options{Bare: true, Raft: soakRaft})
	p.Cluster = f
	r, err := workload.Run(t.Context(), p)
	for _, n := range f.Nodes {
		if out != "" {
			keepLog(t, n, out)
		}
	}
	t.Logf("\n%s", r)
	if err != nil {
		t.Errorf("VERDICT: %v", err)
		return
	}
	if failed := r.FailedRequests(); failed > 0 && p.Starve == 0 && r.Elections == 0 {
		t.Errorf("VERDICT: %d requests failed on a healthy cluster", failed)
		return
	}
	t.Logf(
		"VERDICT: as it should be: %d requests, nothing lost, %d elections, states equal %d times, "+
			"memory and goroutines flat",
		r.Requests,
		r.Elections,
		r.Compared,
	)
}

// keepLog copies a node's log to a permanent folder.
func keepLog(t *testing.T, n *testcluster.Node, folder string) {
	t.Helper()
	raw, err := os.ReadFile(n.Log)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, n.Name+".log"), raw, 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}
