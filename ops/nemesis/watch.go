//go:build linux

package nemesis

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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

// leader asks every node at once and gives the one that leads in the newest
// term, -1 for none.
func (w *watch) leader(ctx context.Context) int {
	type status struct {
		State string
		Term  uint64
	}
	said := make([]status, len(w.fleet.Nodes))
	var asking sync.WaitGroup
	for i, node := range w.fleet.Nodes {
		asking.Go(func() {
			_ = w.get(ctx, node.Base+"/api/v1/operator/status", &said[i])
		})
	}
	asking.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	leader, newest := -1, uint64(0)
	for i, s := range said {
		w.terms = max(w.terms, s.Term)
		if s.State != "leader" {
			continue
		}
		if s.Term > newest {
			leader, newest = i, s.Term
		}
		w.note(s.Term, w.fleet.Nodes[i].Name)
	}
	return leader
}

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
		w.two = append(w.two, fmt.Sprintf("term %d: %s and %s", term, other, name))
	}
}

func (w *watch) figures() (elections, terms int, two []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(0, len(w.leaders)-1), int(max(w.terms, w.first) - w.first), w.two
}
