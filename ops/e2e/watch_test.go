package e2e

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/ops/watch"
)

// watchScale is how much faster the rules are here than an operator's.
const watchScale = 60

// watched is a Prometheus beside a test cluster.
type watched struct {
	*testing.T
	server testcluster.Client
}

// query returns the number of series of an expression, and one value.
func (w watched) query(expr string) (series int, value string, err error) {
	var out struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := w.server.Get("/api/v1/query?query="+url.QueryEscape(expr), &out); err != nil {
		return 0, "", err
	}
	for _, r := range out.Data.Result {
		if value = fmt.Sprint(r.Value[1]); value != "NaN" {
			break
		}
	}
	return len(out.Data.Result), value, nil
}

// firing lists the alerts that fire.
func (w watched) firing() ([]string, error) {
	var out struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels struct {
					Name string `json:"alertname"`
				}
			}
		}
	}
	err := w.server.Get("/api/v1/alerts", &out)
	names := []string{}
	for _, a := range out.Data.Alerts {
		if a.State == "firing" && !slices.Contains(names, a.Labels.Name) {
			names = append(names, a.Labels.Name)
		}
	}
	slices.Sort(names)
	return names, err
}

// awaits waits until an alert fires, or no longer does.
func (w watched) awaits(alert string, fires bool) {
	w.Helper()
	begin := time.Now()
	// A backup must be three minutes old.
	err := testcluster.Await(5*time.Minute, func() error {
		names, err := w.firing()
		if err == nil && slices.Contains(names, alert) != fires {
			err = fmt.Errorf("what fires is %v", names)
		}
		return err
	})
	if err != nil {
		w.Fatalf("%s fires: not %v in five minutes: %v", alert, fires, err)
	}
	w.Logf("%s fires: %v, after %s", alert, fires, time.Since(begin).Round(100*time.Millisecond))
}

// brokenSpec is of sandboxes that fail: there is no such program.
const brokenSpec = `
spec "broken" {
  driver      = "raw_exec"
  isolation   = "none"
  command     = "/nonexistent/program"
  working_dir = "project"
  cpu         = 10
  memory      = 10
  port "AGENT_SERVER" {}
}
`

// TestWatch runs the real stack under light load with a real Prometheus. Every panel of every
// dashboard shows something, every rule can be evaluated, nothing fires; and then alerts fire
// whose fault is made: Vault is sealed, Nomad is frozen, nodes are killed. The long form makes more.
func TestWatch(t *testing.T) {
	backups := filepath.Join(t.TempDir(), "backups")
	o := testcluster.Options{
		Config: fmt.Sprintf("backup {\n  dir = %q\n  interval = \"10s\"\n}\n", backups),
		Specs:  brokenSpec,
	}
	var small string
	if long() {
		o.Config += "sandboxes {\n  removals_per_hour = 1\n}\n"
		small, o.DataDir = smallDisk(t)
	}
	f := testcluster.Start(t, o)
	var targets []string
	for _, n := range f.Nodes {
		targets = append(targets, strings.TrimPrefix(n.Base, "http://"))
	}
	w := watched{t, f.StartPrometheus(t, targets, watch.Rules(watchScale))}
	atFirst := w.series(f)
	ctx, cancel := context.WithCancel(t.Context())
	loaded := make(chan struct{})
	go func() { defer close(loaded); lightLoad(ctx, f) }()
	defer func() { cancel(); <-loaded }()

	f.Nodes[0].SetPool(t, "raw", 1)
	task := f.Nodes[1].AwaitTask(t, f.Nodes[0].StartConversation(t))
	f.Nodes[2].AwaitSandbox(t, *task.SandboxID, "RUNNING")
	f.Nodes[1].Change(t, *task.SandboxID, "pause")
	f.Nodes[0].AwaitSandbox(t, *task.SandboxID, "PAUSED")
	for _, p := range watch.PanelQueries("10s", testcluster.Scraped) {
		var shown string
		testcluster.Eventually(t, "the panel "+p.Where+" shows something: "+p.Expr, func() error {
			n, value, err := w.query(p.Expr)
			if err == nil && n == 0 {
				err = fmt.Errorf("no series")
			}
			shown = fmt.Sprintf("%d series, one is %s", n, value)
			return err
		})
		t.Logf("panel %s: %s", p.Where, shown)
	}
	w.rulesAreWell()
	for name := range w.series(f) {
		if !atFirst[name] && !strings.HasPrefix(name, "bivouac_raft_peer_lag_entries") &&
			!strings.HasPrefix(name, "bivouac_pool_") {
			t.Errorf("%s did not exist before its first event", name)
		}
	}
	names, err := w.firing()
	// This machine's disk may be nearly full.
	names = slices.DeleteFunc(names, func(name string) bool { return name == "BivouacDiskFillsUp" })
	if err != nil || len(names) > 0 {
		t.Errorf("without a fault %v fire, %v", names, err)
	}

	begin := time.Now().Add(-20 * time.Second)
	w.faults(f, *task.SandboxID)
	w.pictures(f, begin)
	if long() {
		w.slowFaults(f, small, backups)
	}
}

// faults causes what fires within seconds.
func (w watched) faults(f *testcluster.Cluster, sandbox string) {
	must := func(err error) {
		w.Helper()
		if err != nil {
			w.Fatal(err)
		}
	}
	must(f.Vault.Seal(w.Context()))
	w.awaits("BivouacVaultUnavailable", true)
	must(f.Vault.Unseal(w.Context()))
	w.awaits("BivouacVaultUnavailable", false)

	must(f.Nomad.Freeze())
	w.awaits("BivouacNomadUnavailable", true)
	if long() {
		f.Nodes[1].Change(w, sandbox, "delete")
		w.awaits("BivouacSandboxStuck", true)
	}
	must(f.Nomad.Thaw())
	w.awaits("BivouacNomadUnavailable", false)
	w.awaits("BivouacSandboxStuck", false)

	leader, followers := f.Leader(w), f.Followers(w)
	followers[0].Kill()
	w.awaits("BivouacNodeDown", true)
	leader.Kill()
	w.awaits("BivouacNoLeader", true)
	w.awaits("BivouacNodeNotReady", true)
	w.awaits("BivouacErrorBudgetBurnsFast", true)
	f.Restart(w)
	w.awaits("BivouacNoLeader", false)
	w.awaits("BivouacNodeDown", false)
	w.awaits("BivouacNodeNotReady", false)
	if long() { // its long window takes half a minute
		w.awaits("BivouacErrorBudgetBurnsFast", false)
	}
}

// series returns the names and labels of what the nodes show of Bivouac's.
func (w watched) series(f *testcluster.Cluster) map[string]bool {
	w.Helper()
	names := map[string]bool{}
	for _, n := range f.Nodes {
		values, err := n.Metrics(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		for name := range values {
			if strings.HasPrefix(name, "bivouac_") {
				names[name] = true
			}
		}
	}
	return names
}

// rulesAreWell checks that Prometheus can evaluate every rule.
func (w watched) rulesAreWell() {
	w.Helper()
	var out struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	if err := w.server.Get("/api/v1/rules", &out); err != nil {
		w.Fatal(err)
	}
	rules := 0
	for _, g := range out.Data.Groups {
		for _, r := range g.Rules {
			rules++
			if r.Health != "ok" {
				w.Errorf("rule %s is %s: %s", r.Name, r.Health, r.LastError)
			}
		}
	}
	if want := len(watch.Alerts(1)) + len(watch.Recordings(1)); rules != want {
		w.Errorf("Prometheus has %d rules, want %d", rules, want)
	}
}

// lightLoad reads and writes on all nodes until ctx ends.
func lightLoad(ctx context.Context, f *testcluster.Cluster) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n := f.Nodes[i%len(f.Nodes)]
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		// What fails during a fault is the fault's.
		switch {
		case i%50 == 0:
			_, _ = n.Send(ctx, http.MethodPost, "/api/settings", map[string]any{"llm_api_key": fmt.Sprint("sk-", i)})
		case i%5 == 0:
			_, _ = n.Send(ctx, http.MethodPost, "/api/settings", map[string]any{"language": "en"})
		default:
			_, _ = n.Send(ctx, http.MethodGet, "/api/v1/sandboxes/search", nil)
		}
		cancel()
	}
}

// pictures draws the key panels over the faults into the folder that BIVOUAC_PICTURES names.
func (w watched) pictures(f *testcluster.Cluster, begin time.Time) {
	dir, end := os.Getenv("BIVOUAC_PICTURES"), time.Now()
	for _, page := range []string{"oncall", "cluster"} {
		text, err := watch.Picture(page, begin, end, func(q watch.PanelQuery, legend string) ([]watch.Series, error) {
			var out struct {
				Data struct {
					Result []struct {
						Metric map[string]string
						Values [][2]any
					}
				}
			}
			err := w.server.Get("/api/v1/query_range?"+url.Values{
				"query": {q.Expr}, "step": {"1"}, "start": {fmt.Sprint(begin.Unix())}, "end": {fmt.Sprint(end.Unix())},
			}.Encode(), &out)
			var list []watch.Series
			for _, r := range out.Data.Result {
				name := legend
				for label, value := range r.Metric {
					name = strings.ReplaceAll(name, "{{"+label+"}}", value)
				}
				for _, n := range f.Nodes {
					name = strings.ReplaceAll(name, strings.TrimPrefix(n.Base, "http://"), n.Name)
				}
				one := watch.Series{Name: name}
				for _, v := range r.Values {
					at, _ := v[0].(float64)
					if n, err := strconv.ParseFloat(fmt.Sprint(v[1]), 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
						one.Points = append(one.Points, [2]float64{at, n})
					}
				}
				list = append(list, one)
			}
			return list, err
		})
		w.must(err)
		if dir != "" {
			w.must(os.WriteFile(filepath.Join(dir, page+".svg"), text, 0o644))
		}
	}
}
