package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestFirstSlice runs the main path: a conversation that was started through one node runs when
// it is read through another. A second one finishes although the leader is killed meanwhile. A
// docker sandbox has its file after pause and resume. The nodes' metrics are valid Prometheus
// text.
func TestFirstSlice(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{Docker: true})
	spec := f.Drivers()[len(f.Drivers())-1]
	f.SetDefault(t, spec)
	first := f.Nodes[0].StartConversation(t)
	task := f.Nodes[1].AwaitTask(t, first)
	f.Nodes[2].AwaitSandbox(t, *task.SandboxID, "RUNNING")

	leader, followers := f.Leader(t), f.Followers(t)
	second := followers[0].StartConversation(t)
	leader.Kill()
	again := followers[1].AwaitTask(t, second)
	running := []string{*task.SandboxID, *again.SandboxID}
	f.Restart(t)
	for _, n := range f.Nodes {
		for _, id := range running {
			n.AwaitSandbox(t, id, "RUNNING")
		}
		if count, err := n.Count("/api/v1/app-conversations/search"); err != nil || count != 2 {
			t.Errorf("%s shows %d conversations: %v", n.Name, count, err)
		}
	}
	id := running[1]
	keepFile(t, f.Nodes[0].AwaitSandbox(t, id, "RUNNING"), workspaceFile)
	f.Nodes[1].Change(t, id, "pause")
	f.Nodes[2].AwaitSandbox(t, id, "PAUSED")
	f.Nodes[0].Change(t, id, "resume")
	hasFile(t, f.Nodes[1].AwaitSandbox(t, id, "RUNNING"), workspaceFile)
	f.Holds(t, testcluster.Expected{Running: running})
	t.Run("Prometheus", func(t *testing.T) { scraped(t, f) })
}

// scraped checks each node's metrics with promtool and scrapes all three with a real
// Prometheus.
func scraped(t *testing.T, f *testcluster.Cluster) {
	promtool, err := exec.LookPath("promtool")
	testcluster.Need(t, "prometheus", err == nil)
	var targets []string
	for _, n := range f.Nodes {
		a, err := n.Try(http.MethodGet, "/metrics", nil)
		if err != nil || a.Status != http.StatusOK {
			t.Fatalf("%s: %v, %v", n.Name, a, err)
		}
		check := exec.CommandContext(t.Context(), promtool, "check", "metrics")
		check.Stdin = strings.NewReader(string(a.Body))
		if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("promtool check metrics of %s: %v\n%s", n.Name, err, out)
		}
		targets = append(targets, strings.TrimPrefix(n.Base, "http://"))
	}
	server := f.StartPrometheus(t, targets, nil)
	for _, query := range []string{"up == 1", "sum by (instance) (bivouac_sandboxes)"} {
		testcluster.Eventually(t, "Prometheus answers "+query, func() error { return answered(server, query, targets) })
	}
}

// answered checks that the query has a value for every target.
func answered(server testcluster.Client, query string, targets []string) error {
	var out struct {
		Data struct {
			Result []struct{ Metric struct{ Instance string } }
		}
	}
	if err := server.Get("/api/v1/query?query="+url.QueryEscape(query), &out); err != nil {
		return err
	}
	var seen []string
	for _, r := range out.Data.Result {
		seen = append(seen, r.Metric.Instance)
	}
	for _, target := range targets {
		if !slices.Contains(seen, target) {
			return fmt.Errorf("nothing of %s yet, only of %v (%s)", target, seen, time.Now().Format(time.TimeOnly))
		}
	}
	return nil
}
