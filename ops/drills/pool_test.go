package drills

import (
	"fmt"
	"net/http"
	"os"
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
		// Two entries of a member that a lost leader was about to add, of a few.
		return f.Audit(fleet.Expected{Running: mine, Strays: 2 * len(mine)})
	})
}

// TestWarmPool_KilledLeader kills -9 the leader on the way from a claim to
// RUNNING, and while it tends the pool. Each claimed sandbox must be one
// user's, run once, take its key and have its workspace; the pool must be full
// again, and nothing be left of it in the end.
func TestWarmPool_KilledLeader(t *testing.T) {
	f := fleet.Start(t, fleet.Options{Tags: "drills"})
	d := &killDrill{Fleet: f, spec: "raw"}
	defer func() {
		for _, n := range f.Nodes {
			if t.Failed() {
				t.Logf("%s said last:\n%s", n.Name, fleet.Tail(n.Log, 30))
			}
		}
	}()
	const size = 2
	setPool(t, f.Nodes[0].Client, d.spec, size)
	warm := 0
	for _, label := range []string{
		"before bind", "after bind", "before mark workspace", "after mark workspace", "before observe RUNNING", "after observe RUNNING",
		"before write init key", "before pool add",
	} {
		ok := t.Run(strings.ReplaceAll(label, " ", "_"), func(t *testing.T) {
			defer f.Restart(t)
			awaitPool(t, f.Nodes[0].Client, d.spec, size)
			members := jobIDs(t, f)
			here := f.Followers(t)[0]
			d.arm(t, label)
			id := here.StartSandbox(t, d.spec)
			here = d.died(t, label, append([]*fleet.Node{here}, f.Nodes...)...)
			if slices.Contains(members, "sandbox-"+id) {
				warm++
			}
			d.keepFile(t, here, id)
			d.running = append(d.running, id)
		})
		if !ok {
			return
		}
	}
	if once := slices.Compact(slices.Sorted(slices.Values(d.running))); len(once) != len(d.running) || warm != len(once) {
		t.Errorf("%d starts were given %d sandboxes, %d of them warm", len(d.running), len(once), warm)
	}
	awaitPool(t, f.Nodes[0].Client, d.spec, size)
	here := f.Followers(t)[0]
	d.arm(t, "before pool drop")
	here.Sure(t, http.MethodPost, "/api/v1/operator/specs/raw/pool", map[string]int{"size": 0}, nil)
	d.died(t, "before pool drop", f.Nodes...)
	f.Restart(t)
	awaitPool(t, here.Client, d.spec, 0)
	for _, id := range d.running {
		d.hasFile(t, here, id)
	}
	// Each term that ended, by a kill or for want of processor time, may have left
	// what it wrote for one member that never was.
	terms := 0
	for _, n := range f.Nodes {
		raw, err := os.ReadFile(n.Log)
		if err != nil {
			t.Fatal(err)
		}
		terms += strings.Count(string(raw), "scheduling begins")
	}
	d.audit(t, fleet.Expected{Running: d.running, Strays: 2 * terms})
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
