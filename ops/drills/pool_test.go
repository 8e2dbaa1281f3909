package drills

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

// setPool sets the size of a spec's warm pool and waits until it is reached.
func setPool(t testing.TB, c fleet.Client, spec string, size int) {
	t.Helper()
	c.Sure(t, http.MethodPost, "/api/v1/operator/specs/"+spec+"/pool", map[string]int{"size": size}, nil)
	awaitPool(t, c, spec, size)
}

func awaitPool(t testing.TB, c fleet.Client, spec string, size int) {
	t.Helper()
	fleet.Eventually(t, fmt.Sprintf("the pool of %s has %d members", spec, size), func() error {
		a, err := c.Try(http.MethodGet, "/api/v1/operator/specs", nil)
		if err != nil {
			return err
		}
		var out struct {
			Items []struct {
				ID      string `json:"id"`
				Members struct {
					Ready int `json:"ready"`
					All   int `json:"all"`
				} `json:"pool_members"`
			} `json:"items"`
		}
		if err := a.Decode(&out); err != nil {
			return err
		}
		for _, s := range out.Items {
			if s.ID == spec && s.Members.Ready == size && s.Members.All == size {
				return nil
			}
		}
		return fmt.Errorf("%s", a)
	})
}

// TestWarmPool claims warm sandboxes through every node, on real Nomad and
// Vault, takes one through a pause after its job was collected, and lets the
// leader die in between.
func TestWarmPool(t *testing.T) {
	f := fleet.Start(t, fleet.Options{Docker: true})
	var mine []string
	for _, spec := range f.Drivers() {
		setPool(t, f.Nodes[0].Client, spec, 2)
		jobs := jobIDs(t, f)
		for i, n := range f.Nodes {
			begin := time.Now()
			id := n.StartSandbox(t, spec)
			n.AwaitSandbox(t, id, "RUNNING")
			t.Logf("%s: RUNNING after %s", spec, time.Since(begin).Round(time.Millisecond))
			if i == 0 && !slices.Contains(jobs, "sandbox-"+id) {
				t.Errorf("%s: %s was started cold although members were ready", spec, id)
			}
			mine = append(mine, id)
		}
	}
	for _, id := range mine {
		if sb := f.Nodes[1].AwaitSandbox(t, id, "RUNNING"); sb.SpecID != "docker" {
			keepFile(t, sb, workspaceFile)
		}
	}
	for _, id := range mine {
		f.Nodes[0].Change(t, id, "pause")
		f.Nodes[2].AwaitSandbox(t, id, "PAUSED")
	}
	f.GC(t)
	f.Leader(t).Kill()
	f.Restart(t)
	for _, id := range mine {
		f.Nodes[1].Change(t, id, "resume")
		if sb := f.Nodes[0].AwaitSandbox(t, id, "RUNNING"); sb.SpecID != "docker" {
			hasFile(t, sb, workspaceFile)
		}
	}
	for _, spec := range f.Drivers() {
		awaitPool(t, f.Nodes[0].Client, spec, 2)
		setPool(t, f.Nodes[0].Client, spec, 0)
	}
	fleet.Eventually(t, "nothing is left of the pools", func() error {
		return f.Audit(fleet.Expected{Running: mine, Strays: 3 * len(mine)})
	})
}

func jobIDs(t testing.TB, f *fleet.Fleet) (ids []string) {
	t.Helper()
	jobs, err := f.Jobs()
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		if strings.HasPrefix(j.ID, "sandbox-") {
			ids = append(ids, j.ID)
		}
	}
	return ids
}
