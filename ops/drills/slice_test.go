package drills

import (
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

// TestFirstSlice is the first slice's acceptance: a conversation begun through
// one node runs when asked through another, a second one is finished although
// the leader is killed meanwhile, and a docker sandbox that is paused and
// resumed has its file. What the nodes say of themselves is clean Prometheus
// text.
func TestFirstSlice(t *testing.T) {
	f := fleet.Start(t, fleet.Options{Docker: true})
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
	fleet.Eventually(t, "Nomad and Vault hold what they must", func() error {
		return f.Audit(fleet.Expected{Running: running})
	})
	t.Run("Prometheus", func(t *testing.T) { scraped(t, f) })
}

// scraped has promtool read each node's metrics, and a real Prometheus scrape
// all three.
func scraped(t *testing.T, f *fleet.Fleet) {
	promtool, err := exec.LookPath("promtool")
	fleet.Need(t, "prometheus", err == nil)
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
	server := f.StartPrometheus(t, targets)
	for _, query := range []string{"up == 1", "sum by (instance) (bivouac_sandboxes)"} {
		fleet.Eventually(t, "Prometheus answers "+query, func() error { return answered(server, query, targets) })
	}
}

// answered: the query has a value for every target.
func answered(server fleet.Client, query string, targets []string) error {
	a, err := server.Try(http.MethodGet, "/api/v1/query?query="+strings.NewReplacer(" ", "%20", "=", "%3D", "(", "%28", ")", "%29").Replace(query), nil)
	if err != nil {
		return err
	}
	var out struct {
		Data struct {
			Result []struct{ Metric struct{ Instance string } }
		}
	}
	if err := a.Decode(&out); err != nil {
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
