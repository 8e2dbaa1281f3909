//go:build linux

package nemesis

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

const (
	watchEvery = 150 * time.Millisecond
	// askPatience is short: a node that is paused or cut off does not answer.
	askPatience = 300 * time.Millisecond
)

// watch looks at what every node says of itself, all the time.
type watch struct {
	fleet *fleet.Fleet
	http  *http.Client

	mu      sync.Mutex
	leaders map[uint64]string // by term
	last    uint64            // the newest term with a leader
	first   uint64
	terms   uint64
	two     []string
}

func newWatch(f *fleet.Fleet) *watch {
	return &watch{fleet: f, leaders: map[uint64]string{}, http: &http.Client{
		Timeout: askPatience, Transport: &http.Transport{DisableKeepAlives: true},
	}}
}

// get reads from a node; out may be nil.
func (w *watch) get(ctx context.Context, url string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Session-API-Key", w.fleet.Nodes[0].Key)
	resp, err := w.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d %s", resp.StatusCode, raw)
	}
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(raw, out)
}

// run looks until ctx ends.
func (w *watch) run(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		w.leader(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// status is what a node says of itself and the cluster.
type status struct {
	ID      string
	State   string
	Term    uint64
	Commit  uint64 `json:"commit_index"`
	Applied uint64 `json:"applied_index"`
	Servers []struct {
		Name, ID string
		Voter    bool
	}
}

// ask asks every node at once; one that does not answer says nothing.
func (w *watch) ask(ctx context.Context) []status {
	said := make([]status, len(w.fleet.Nodes))
	var asking sync.WaitGroup
	for i, node := range w.fleet.Nodes {
		asking.Go(func() {
			if w.get(ctx, node.Base+"/api/v1/operator/status", &said[i]) != nil {
				said[i] = status{}
			}
		})
	}
	asking.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, s := range said {
		w.terms = max(w.terms, s.Term)
		if s.State == "leader" {
			w.note(s.Term, w.fleet.Nodes[i].Name)
		}
	}
	return said
}

// leading is the node that leads in the newest term, -1 for none.
func leading(said []status) int {
	leader, newest := -1, uint64(0)
	for i, s := range said {
		if s.State == "leader" && s.Term > newest {
			leader, newest = i, s.Term
		}
	}
	return leader
}

// leader asks who leads.
func (w *watch) leader(ctx context.Context) int { return leading(w.ask(ctx)) }

// note remembers who leads a term.
func (w *watch) note(term uint64, name string) {
	switch other, seen := w.leaders[term]; {
	case !seen:
		w.leaders[term] = name
		w.last = max(w.last, term)
		if w.first == 0 {
			w.first = term
		}
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
