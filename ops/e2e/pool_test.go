package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// setPool sets the size of a spec's warm pool and waits until it is reached.
func setPool(t testing.TB, c testcluster.Client, spec string, size int) {
	t.Helper()
	c.SetPool(t, spec, size)
	awaitPool(t, c, spec, size)
}

func awaitPool(t testing.TB, c testcluster.Client, spec string, size int) {
	t.Helper()
	testcluster.Eventually(t, fmt.Sprintf("the pool of %s has %d members", spec, size), func() error {
		ready, all, err := c.Pool(spec)
		if err == nil && (ready != size || all != size) {
			err = fmt.Errorf("%d of %d are ready", ready, all)
		}
		return err
	})
}

// TestWarmPool claims warm sandboxes through every node on real Nomad and Vault, pauses and
// resumes one whose job was collected, and kills the leader in between.
func TestWarmPool(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{Docker: true})
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
	testcluster.Eventually(t, "nothing is left of the pools", func() error {
		// Each member that a lost leader was adding may leave two secrets.
		return f.Audit(testcluster.Expected{Running: mine, Strays: 2 * len(mine)})
	})
}

// TestWarmPool_KilledLeader kills the leader with SIGKILL between a claim and RUNNING, and
// while it fills the pool. Each claimed sandbox must belong to one user, run once, accept its
// key and have its workspace. The pool must be full again, and in the end nothing is left of
// it.
func TestWarmPool_KilledLeader(t *testing.T) {
	f := testcluster.Start(t, testcluster.Options{Tags: "drills"})
	d := &killDrill{Cluster: f, spec: "raw"}
	const size = 2
	setPool(t, f.Nodes[0].Client, d.spec, size)
	warm := 0
	for _, label := range []string{
		"before bind", "after bind", "before mark workspace", "after mark workspace", "before observe RUNNING",
		"after observe RUNNING",
		"before write init key", "before pool add",
	} {
		ok := t.Run(strings.ReplaceAll(label, " ", "_"), func(t *testing.T) {
			defer f.Restart(t)
			awaitPool(t, f.Nodes[0].Client, d.spec, size)
			members := jobIDs(t, f)
			here := f.Followers(t)[0]
			d.arm(t, label)
			id := here.StartSandbox(t, d.spec)
			here = d.died(t, label, append([]*testcluster.Node{here}, f.Nodes...)...)
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
	here.SetPool(t, "raw", 0)
	d.died(t, "before pool drop", f.Nodes...)
	f.Restart(t)
	awaitPool(t, here.Client, d.spec, 0)
	for _, id := range d.running {
		d.hasFile(t, here, id)
	}
	// Each term that ended, by a kill or because the machine was starved, may have left the
	// secrets of one unfinished member.
	terms := 0
	for _, n := range f.Nodes {
		raw, err := os.ReadFile(n.Log)
		if err != nil {
			t.Fatal(err)
		}
		terms += strings.Count(string(raw), "scheduling begins")
	}
	d.Holds(t, testcluster.Expected{Running: d.running, Strays: 2 * terms})
}

func jobIDs(t testing.TB, f *testcluster.Cluster) (ids []string) {
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
