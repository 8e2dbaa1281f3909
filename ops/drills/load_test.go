package drills

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
	"bivouac.dev/bivouac/ops/load"
)

// soakRaft is a production node's raft block, but for snapshots every few
// seconds of load.
const soakRaft = `  snapshot_interval = "10s"
  log_store         = "STORE"`

// setting reads a number from the environment.
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

// TestLoad keeps three nodes at 70 % of what they bear: a few seconds with few
// users in `make test`, as long as BIVOUAC_SOAK says with 5,000 users' data in
// `make soak DURATION=1h`. Every answer is checked, memory and goroutines stay
// flat, nobody is elected, and all nodes have one state.
func TestLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("keeps the machine busy for twenty seconds")
	}
	p := load.Plan{
		Shape: load.Shape{Users: 200, Conversations: 5}, Measure: 2 * time.Second, Duration: 12 * time.Second,
		Share: 0.7, Workers: 32, Compare: 6 * time.Second, Sample: 400 * time.Millisecond, Log: t.Logf,
		Shared: true, // with the other packages' tests
	}
	if text := os.Getenv("BIVOUAC_SOAK"); text != "" {
		duration, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("BIVOUAC_SOAK: %v", err)
		}
		p.Duration, p.Measure, p.Compare, p.Sample = duration, 20*time.Second, time.Minute, min(5*time.Second, duration/40)
		p.Shared = false
		p.Shape = load.Shape{Users: setting(t, "BIVOUAC_SOAK_USERS", 5000), Conversations: 10}
	}
	out := os.Getenv("BIVOUAC_SOAK_OUT")
	if out != "" {
		if err := os.MkdirAll(out, 0o700); err != nil {
			t.Fatal(err)
		}
		p.Samples = filepath.Join(out, "samples.csv")
	}
	p.Starve = setting(t, "BIVOUAC_SOAK_STARVE", 0)
	f := fleet.StartBare(t, fleet.BareOptions{Raft: raftBlock(soakRaft, os.Getenv("BIVOUAC_SOAK_STORE"))})
	for _, n := range f.Nodes {
		p.Nodes, p.Peers = append(p.Nodes, n.Base), append(p.Peers, n.PeerClient(t))
	}
	r, err := load.Run(t.Context(), p)
	for _, n := range f.Nodes {
		if out != "" {
			keepLog(t, n, out)
		}
	}
	t.Logf("\n%s", r)
	if err != nil {
		t.Errorf("VERDICT: %v", err)
		for _, n := range f.Nodes {
			t.Logf("%s (%s) said last:\n%s", n.Name, n.Base, fleet.Tail(n.Log, 30))
		}
		return
	}
	if failed := r.FailedRequests(); failed > 0 && p.Starve == 0 && r.Elections == 0 {
		t.Errorf("VERDICT: %d requests failed on a healthy cluster", failed)
		return
	}
	t.Logf("VERDICT: as it should be: %d requests, nothing lost, %d elections, states equal %d times, memory and goroutines flat", r.Requests, r.Elections, r.Compared)
}

// keepLog copies a node's log to a folder that stays.
func keepLog(t *testing.T, n *fleet.Node, folder string) {
	t.Helper()
	raw, err := os.ReadFile(n.Log)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, n.Name+".log"), raw, 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}
