package bench

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

// TestWarmStarts measures starts that claim a member of a warm pool, each
// through another node, with the pool full before it; beside them the same job
// started cold by Nomad alone.
func TestWarmStarts(t *testing.T) {
	wanted(t)
	rounds := size(t, "BIVOUAC_BENCH_ROUNDS", 20)
	f := fleet.Start(t, fleet.Options{Docker: true})
	r := newReport()
	defer r.print(t)
	for _, spec := range f.Drivers() {
		alone := newAlone(t, f, spec)
		poolOf(t, f.Nodes[0], spec, 2)
		var ours, theirs durations
		for i := range rounds + 2 {
			full(t, f.Nodes[0], spec, 2)
			node := f.Nodes[i%len(f.Nodes)]
			begin := time.Now()
			id := node.StartSandbox(t, spec)
			usable(t, node, id)
			took := time.Since(begin)
			cold, _ := alone.round(t)
			node.Change(t, id, "delete")
			if i >= 2 {
				ours, theirs = append(ours, took), append(theirs, cold)
			}
		}
		poolOf(t, f.Nodes[0], spec, 0)
		r.compare("warm start, "+spec+" (Nomad: cold)", ours, theirs)
	}
	stages(t, f)
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
