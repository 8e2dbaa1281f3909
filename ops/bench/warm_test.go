package bench

import (
	"fmt"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestWarmStarts measures starts that claim a member of a warm pool, each through another node.
// The pool is full before each, and nothing else starts or stops. It compares them with cold
// starts of the same job by Nomad alone.
func TestWarmStarts(t *testing.T) {
	wanted(t)
	rounds := size(t, "BIVOUAC_BENCH_ROUNDS", 20)
	f := testcluster.Start(t, testcluster.Options{Docker: true})
	r := newReport()
	defer r.print(t)
	for _, spec := range f.Drivers() {
		alone := newAlone(t, f, spec)
		var theirs durations
		for range min(rounds, 10) {
			cold, _ := alone.round(t)
			theirs = append(theirs, cold)
		}
		var calm, churn claims
		f.Nodes[0].SetPool(t, spec, 2)
		for i := range rounds + 3 {
			full(t, f.Nodes[0], spec, 2)
			settled(t, f, calm.last)
			calm.claim(t, f.Nodes[i%len(f.Nodes)], spec, i >= 3) // the first ones warm up
		}
		// One start per second, each followed by a deletion, whatever the pool's state.
		f.Nodes[0].SetPool(t, spec, 8)
		full(t, f.Nodes[0], spec, 8)
		pace := time.NewTicker(time.Second)
		for i := range rounds {
			churn.claim(t, f.Nodes[i%len(f.Nodes)], spec, true)
			<-pace.C
		}
		pace.Stop()
		f.Nodes[0].SetPool(t, spec, 0)
		settled(t, f, churn.last)
		r.compare("warm start, "+spec+" (Nomad: cold)", calm.usable, theirs)
		r.compare("warm start, "+spec+", while the pool refills", churn.usable, theirs)
		t.Logf("%s: %s", spec, &calm)
		t.Logf("%s, while the pool refills: %s", spec, &churn)
	}
	stages(t, f)
}

// claims measures starts from a warm pool.
type claims struct {
	answered, usable durations
	// late counts starts that were not RUNNING in their first response.
	late int
	last string
}

// claim starts a sandbox, deletes it and, with counts, records the duration.
func (c *claims) claim(t testing.TB, node *testcluster.Node, spec string, counts bool) {
	t.Helper()
	begin := time.Now()
	sb := node.NewSandbox(t, spec)
	answered := time.Since(begin)
	late := sb.Status != "RUNNING" || sb.Inside().Get("/health", nil) != nil
	if late {
		usable(t, node, sb.ID)
	}
	took := time.Since(begin)
	node.Change(t, sb.ID, "delete")
	c.last = sb.ID
	if !counts {
		return
	}
	c.answered, c.usable = append(c.answered, answered), append(c.usable, took)
	if late {
		c.late++
	}
}

func (c *claims) String() string {
	return fmt.Sprintf("%d starts, p99 %.1f ms; first answer after %s ms, %d of them not RUNNING; in turn: %.1f",
		len(c.usable), ms(c.usable.at(.99)), c.answered, c.late, c.usable.ms())
}

// settled waits until no allocation is starting or ending, including the deleted sandbox's.
func settled(t testing.TB, f *testcluster.Cluster, deleted string) {
	t.Helper()
	testcluster.Eventually(t, "quiet on Nomad", func() error {
		allocs, err := f.Allocs()
		if err != nil {
			return err
		}
		for _, a := range allocs {
			if a.Live() && (a.ClientStatus != "running" || a.DesiredStatus != "run" || a.JobID == "sandbox-"+deleted) {
				return fmt.Errorf("%s is %s and should %s", a.JobID, a.ClientStatus, a.DesiredStatus)
			}
		}
		return nil
	})
}

// full waits until a spec's pool has all its members.
func full(t testing.TB, n *testcluster.Node, spec string, size int) {
	t.Helper()
	testcluster.Eventually(t, "the pool of "+spec, func() error {
		ready, _, err := n.Pool(spec)
		if err == nil && ready != size {
			err = fmt.Errorf("%d members are ready", ready)
		}
		return err
	})
}
