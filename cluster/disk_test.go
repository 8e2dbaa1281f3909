package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/cluster"
)

// TestReal_LeadersDiskHangs_OthersLead: Raft's heartbeats don't wait for the disk, so the node
// itself holds them back. The others elect a leader while the node that led still runs, and it
// follows once its disk answers.
func TestReal_LeadersDiskHangs_OthersLead(t *testing.T) {
	t.Parallel()
	r := newReal(t, 3)
	answer := make(chan struct{})
	var mu sync.Mutex
	hung := -1 // the node whose disk hangs
	for i := range r.nodes {
		r.startWith(i, func(n *cluster.Node) {
			cluster.Hang(n, func() <-chan struct{} {
				mu.Lock()
				defer mu.Unlock()
				if i == hung {
					return answer
				}
				return nil
			})
		})
	}
	for i := range r.nodes {
		r.ready(i)
	}
	r.put(0, 1)
	former := r.leader()
	mu.Lock()
	hung = former
	mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() { _, _ = r.nodes[former].node.Propose(ctx, put("ada", 2)) })
	defer func() { cancel(); writing.Wait() }()
	eventually(t, func() bool {
		for i, n := range r.nodes {
			if i != former && n.node.Status().State == cluster.StateLeader && n.node.Ready() == nil {
				return true
			}
		}
		return false
	}, func() string { return fmt.Sprintf("nobody else leads: %+v", r.nodes[former].node.Status()) })
	if why := r.nodes[former].node.Ready(); why == nil || !strings.Contains(why.Error(), "does not answer") {
		t.Fatalf("another leads since the node whose disk hangs gave up: %v", why)
	}
	mu.Lock()
	hung = -1
	mu.Unlock()
	close(answer)
	cancel()
	writing.Wait()
	r.put(former, 3)
	r.want(3)
}
