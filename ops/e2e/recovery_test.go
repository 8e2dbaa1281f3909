//go:build linux

package e2e

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/chaos"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// recoveryBound is the limit until every node accepts writes again after the fault. It is
// generous: seconds are usual, but the drills' machines are busy.
const recoveryBound = 15 * time.Second

// faultLasts is long enough for every exponential backoff to reach its maximum.
const faultLasts = 25 * time.Second

// faulted is a test cluster on its own network, with one writer per node.
type faulted struct {
	*testcluster.Cluster
	net *chaos.Network
	key string
}

// TestRecovery keeps faults up until all backoffs have grown, ends them, and measures when
// writes through every node are acknowledged again.
func TestRecovery(t *testing.T) {
	if !long() {
		t.Skip("takes minutes; BIVOUAC_DRILL=long runs it")
	}
	chaos.Need(t, testcluster.Need)
	r := faulted{net: chaos.NewNetwork(t, 5, 1)}
	r.Cluster = testcluster.Start(t, testcluster.Options{Nodes: 5, Net: r.net})
	r.key = r.Nodes[0].NewKey(t, "ada")

	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	defer writers.Wait()
	defer stop()
	for i := range r.Nodes {
		writers.Go(func() {
			for ctx.Err() == nil {
				_ = r.write(ctx, i)
				testcluster.Pause(ctx, 20*time.Millisecond)
			}
		})
	}
	for _, c := range []struct {
		name  string
		fault func(t *testing.T, leader int) (undo func())
	}{
		{"the leader cut off", func(_ *testing.T, leader int) func() { return r.apart([]int{leader}) }},
		{
			"the leader and another cut off",
			func(_ *testing.T, leader int) func() { return r.apart([]int{leader, (leader + 1) % 5}) },
		},
		{"a majority cut off from each other", func(_ *testing.T, leader int) func() {
			return r.apart([]int{leader}, []int{(leader + 1) % 5}, []int{(leader + 2) % 5})
		}},
		{"two followers killed, the others after their return", r.relay},
		{"every node killed", func(t *testing.T, _ int) func() { return r.killed(t, 0, 1, 2, 3, 4) }},
	} {
		leader := slices.Index(r.Nodes, r.Leader(t))
		undo := c.fault(t, leader)
		testcluster.Pause(ctx, faultLasts)
		undo()
		r.recovers(t, c.name)
	}
	t.Logf("--- verdict: writes through every node again within %s of each fault's end: %t", recoveryBound, !t.Failed())
}

// apart partitions groups of nodes from all others. The function that it returns heals the
// partition.
func (r *faulted) apart(groups ...[]int) func() {
	group := map[int]int{}
	for i, g := range groups {
		for _, node := range g {
			group[node] = i + 1
		}
	}
	for i := range r.Nodes {
		for j := range r.Nodes {
			if group[i] != group[j] {
				r.net.Set(i, j, chaos.Link{Cut: true})
			}
		}
	}
	return r.net.Heal
}

// killed kills nodes. The function that it returns starts them again.
func (r *faulted) killed(t *testing.T, nodes ...int) func() {
	for _, i := range nodes {
		r.Nodes[i].Kill()
	}
	return func() {
		for _, i := range nodes {
			r.Nodes[i].Start(t)
		}
	}
}

// relay kills two followers and, when they are back, the other two: the majority then needs the
// nodes that have just returned.
func (r *faulted) relay(t *testing.T, leader int) func() {
	back := r.killed(t, (leader+1)%5, (leader+2)%5)
	return func() {
		back()
		r.killed(t, (leader+3)%5, (leader+4)%5)
	}
}

// recovers waits for a write through every running node and prints how long that took.
func (r *faulted) recovers(t *testing.T, what string) {
	t.Helper()
	begin := time.Now()
	took := make([]time.Duration, len(r.Nodes))
	var waiting sync.WaitGroup
	for i, n := range r.Nodes {
		if n.Alive() {
			waiting.Go(func() {
				for took[i] == 0 && time.Since(begin) < 4*recoveryBound {
					if err := r.write(t.Context(), i); err == nil {
						took[i] = time.Since(begin)
					} else {
						testcluster.Pause(t.Context(), 20*time.Millisecond) // rejected at once
					}
				}
			})
		}
	}
	waiting.Wait()
	t.Logf("%s: writes through each node again after %s", what, took)
	for i, d := range took {
		if n := r.Nodes[i]; n.Alive() && (d == 0 || d > recoveryBound) {
			t.Errorf("%s: %s took writes again after %s, 0 means never", what, n.Name, d)
		}
	}
	r.Restart(t)
}

// write sends one write through a node, with a timeout of one second.
func (r *faulted) write(ctx context.Context, node int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c := testcluster.Client{Base: r.Nodes[node].Base, Key: r.key}
	a, err := c.Send(ctx, http.MethodPost, "/api/settings", map[string]int{"max_iterations": 1 + node})
	if err != nil {
		return err
	}
	return a.Decode(nil)
}
