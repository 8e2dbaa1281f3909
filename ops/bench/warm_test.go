package bench

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

// TestWarmStarts measures starts that claim a member of a warm pool, each
// through another node, with the pool full before it and nothing else starting
// or stopping; beside them the same job started cold by Nomad alone.
func TestWarmStarts(t *testing.T) {
	wanted(t)
	rounds := size(t, "BIVOUAC_BENCH_ROUNDS", 20)
	f := fleet.Start(t, fleet.Options{Docker: true})
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
		poolOf(t, f.Nodes[0], spec, 2)
		for i := range rounds + 3 {
			full(t, f.Nodes[0], spec, 2)
			settled(t, f, calm.last)
			calm.claim(t, f.Nodes[i%len(f.Nodes)], spec, i >= 3) // connections of each node are cold
		}
		// A start every second, each followed by a deletion, whatever the pool does.
		poolOf(t, f.Nodes[0], spec, 8)
		full(t, f.Nodes[0], spec, 8)
		pace := time.NewTicker(time.Second)
		for i := range rounds {
			churn.claim(t, f.Nodes[i%len(f.Nodes)], spec, true)
			<-pace.C
		}
		pace.Stop()
		poolOf(t, f.Nodes[0], spec, 0)
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
	// late counts starts that were not RUNNING in their first answer.
	late int
	last string
}

// claim starts a sandbox, deletes it and notes how long it took when it counts.
func (c *claims) claim(t testing.TB, node *fleet.Node, spec string, counts bool) {
	t.Helper()
	begin := time.Now()
	sb := node.NewSandbox(t, spec)
	answered := time.Since(begin)
	late := sb.Status != "RUNNING" || healthy(sb.Inside()) != nil
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

// settled waits until no allocation is about to start or to end, those of the
// sandbox that was deleted last among them.
func settled(t testing.TB, f *fleet.Fleet, deleted string) {
	t.Helper()
	fleet.Eventually(t, "quiet on Nomad", func() error {
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

// poolOf sets the size of a spec's warm pool.
func poolOf(t testing.TB, n *fleet.Node, spec string, size int) {
	t.Helper()
	n.Sure(t, http.MethodPost, "/api/v1/operator/specs/"+spec+"/pool", map[string]int{"size": size}, nil)
}

// full waits until the pool of a spec has all its members.
func full(t testing.TB, n *fleet.Node, spec string, size int) {
	t.Helper()
	fleet.Eventually(t, "the pool of "+spec, func() error {
		a, err := n.Try(http.MethodGet, "/api/v1/operator/specs", nil)
		if err != nil {
			return err
		}
		var out struct {
			Items []struct {
				ID      string `json:"id"`
				Members struct {
					Ready int `json:"ready"`
				} `json:"pool_members"`
			} `json:"items"`
		}
		if err := a.Decode(&out); err != nil {
			return err
		}
		for _, s := range out.Items {
			if s.ID == spec && s.Members.Ready == size {
				return nil
			}
		}
		return fmt.Errorf("it has not %d members ready", size)
	})
}
