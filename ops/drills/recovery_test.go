//go:build linux

package drills

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
	"bivouac.dev/bivouac/ops/nemesis"
)

// recoveryBound is how soon every node takes writes again once nothing is wrong
// any more. It is generous: seconds are usual, and machines that drills run on
// are busy.
const recoveryBound = 15 * time.Second

// faultLasts is long enough for every pause that grows to be at its longest.
const faultLasts = 25 * time.Second

// recovery is a fleet on a network of its own, with somebody writing through
// every node all the time.
type recovery struct {
	*fleet.Fleet
	net *nemesis.Network
	key string
}

// TestRecovery lets faults last for long enough that everybody who counts
// failures has counted many, undoes them and asks when writes through every node
// are acknowledged again.
func TestRecovery(t *testing.T) {
	if !long() {
		t.Skip("takes minutes; BIVOUAC_DRILL=long runs it")
	}
	nemesis.Need(t, fleet.Need)
	r := recovery{net: nemesis.NewNetwork(t, 5, 1)}
	r.Fleet = fleet.Start(t, fleet.Options{Nodes: 5, Net: r.net})
	var made struct{ Key string }
	r.Nodes[0].Sure(t, http.MethodPost, "/api/v1/operator/keys", map[string]string{"user": "ada", "name": "drill"}, &made)
	r.key = made.Key

	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	defer writers.Wait()
	defer stop()
	for i := range r.Nodes {
		writers.Go(func() {
			for ctx.Err() == nil {
				_ = r.write(ctx, i)
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
	}
	for _, c := range []struct {
		name  string
		fault func(t *testing.T, leader int) (undo func())
	}{
		{"the leader cut off", func(_ *testing.T, leader int) func() { return r.apart([]int{leader}) }},
		{"the leader and another cut off", func(_ *testing.T, leader int) func() { return r.apart([]int{leader, (leader + 1) % 5}) }},
		{"a majority cut off from each other", func(_ *testing.T, leader int) func() {
			return r.apart([]int{leader}, []int{(leader + 1) % 5}, []int{(leader + 2) % 5})
		}},
		{"two followers killed, the others after their return", r.relay},
		{"every node killed", func(t *testing.T, _ int) func() { return r.killed(t, 0, 1, 2, 3, 4) }},
	} {
		leader := slices.Index(r.Nodes, r.Leader(t))
		undo := c.fault(t, leader)
		select {
		case <-time.After(faultLasts):
		case <-ctx.Done():
		}
		undo()
		r.recovers(t, c.name)
	}
	t.Logf("--- verdict: writes through every node again within %s of each fault's end: %t", recoveryBound, !t.Failed())
}

// apart cuts groups of nodes off from all others, and gives what heals that.
func (r *recovery) apart(groups ...[]int) func() {
	group := map[int]int{}
	for i, g := range groups {
		for _, node := range g {
			group[node] = i + 1
		}
	}
	for i := range r.Nodes {
		for j := range r.Nodes {
			if group[i] != group[j] {
				r.net.Set(i, j, nemesis.Link{Cut: true})
			}
		}
	}
	return r.net.Heal
}

// killed kills nodes, and gives what starts them again.
func (r *recovery) killed(t *testing.T, nodes ...int) func() {
	for _, i := range nodes {
		r.Nodes[i].Kill()
	}
	return func() {
		for _, i := range nodes {
			r.Nodes[i].Start(t)
		}
	}
}

// relay kills two followers; when they are back, the other two: the majority
// needs those that have just come.
func (r *recovery) relay(t *testing.T, leader int) func() {
	back := r.killed(t, (leader+1)%5, (leader+2)%5)
	return func() {
		back()
		r.killed(t, (leader+3)%5, (leader+4)%5)
	}
}

// recovers waits for a write through every living node and tells how long that took.
func (r *recovery) recovers(t *testing.T, what string) {
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
						<-time.After(20 * time.Millisecond) // refused at once
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
	for _, n := range r.Nodes {
		if !n.Alive() {
			n.Start(t)
		}
	}
	for _, n := range r.Nodes {
		n.Ready(t)
	}
}

// write is one write through a node, given up after a second.
func (r *recovery) write(ctx context.Context, node int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	body := strings.NewReader(fmt.Sprintf(`{"max_iterations": %d}`, 1+node))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.Nodes[node].Base+"/api/settings", body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Session-API-Key", r.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return errors.New(resp.Status)
	}
	return nil
}
