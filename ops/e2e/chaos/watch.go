//go:build linux

package chaos

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

const (
	watchEvery = 150 * time.Millisecond
	// askPatience is short: a node that is paused or cut off does not answer.
	askPatience = 300 * time.Millisecond
)

// watch polls every node's status.
type watch struct {
	cluster *testcluster.Cluster
	http    *http.Client

	mu      sync.Mutex
	leaders map[uint64]string // by term
	last    uint64            // the newest term with a leader
	first   uint64
	terms   uint64
	two     []string
}

func newWatch(f *testcluster.Cluster) *watch {
	return &watch{cluster: f, leaders: map[uint64]string{}, http: &http.Client{
		Timeout: askPatience, Transport: &http.Transport{DisableKeepAlives: true},
	}}
}

// client returns an impatient client of a node.
func (w *watch) client(node int) testcluster.Client {
	c := w.cluster.Nodes[node].Client
	c.HTTP = w.http
	return c
}

// run polls until ctx ends.
func (w *watch) run(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		w.leader()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// ask reads every node's status at once. The status of a node without a response is empty.
func (w *watch) ask() []testcluster.Status {
	said := make([]testcluster.Status, len(w.cluster.Nodes))
	var asking sync.WaitGroup
	for i := range w.cluster.Nodes {
		asking.Go(func() {
			if s, err := w.client(i).Status(); err == nil {
				said[i] = s
			}
		})
	}
	asking.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, s := range said {
		w.terms = max(w.terms, s.Term)
		if s.State == "leader" {
			w.note(s.Term, w.cluster.Nodes[i].Name)
		}
	}
	return said
}

// leading returns the node that leads in the newest term, -1 for none.
func leading(said []testcluster.Status) int {
	leader, newest := -1, uint64(0)
	for i, s := range said {
		if s.State == "leader" && s.Term > newest {
			leader, newest = i, s.Term
		}
	}
	return leader
}

// leader returns the current leader, -1 for none.
func (w *watch) leader() int { return leading(w.ask()) }

// note records a term's leader.
func (w *watch) note(term uint64, name string) {
	switch other, seen := w.leaders[term]; {
	case !seen:
		w.leaders[term] = name
		w.last = max(w.last, term)
		w.first = cmp.Or(w.first, term)
	case other != name:
		if said := fmt.Sprintf("term %d: %s and %s", term, other, name); !slices.Contains(w.two, said) {
			w.two = append(w.two, said)
		}
	}
}

func (w *watch) figures() (elections, terms int, two []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(0, len(w.leaders)-1), int(max(w.terms, w.first) - w.first), w.two
}
