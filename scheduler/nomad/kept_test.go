package nomad_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/scheduler/nomad"
)

// listed counts what the runner reads of allocations: the index alone, all, or with their task states
// those of a filter.
type listed struct {
	mu                 sync.Mutex
	index, all, states int
	filters            []string
}

// countListings makes the fake count them, and answer as Nomad does.
func countListings(f *fakeNomad) *listed {
	l := &listed{}
	f.on("GET /v1/allocations", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		w.Header().Set("X-Nomad-Index", fmt.Sprint(f.index))
		rows := []map[string]any{}
		switch q := r.URL.Query(); {
		case q.Get("prefix") != "":
			l.index++
		case q.Get("task_states") == "true":
			l.states++
			l.filters = append(l.filters, q.Get("filter"))
			for _, row := range f.tables["/v1/allocations"] {
				if !strings.Contains(q.Get("filter"), "ID == ") || strings.Contains(q.Get("filter"), row["ID"].(string)+`"`) {
					rows = append(rows, row)
				}
			}
		default:
			l.all++
			for _, row := range f.tables["/v1/allocations"] {
				stub := map[string]any{}
				for name, value := range row {
					if name != "TaskStates" && name != "AllocatedResources" {
						stub[name] = value
					}
				}
				rows = append(rows, stub)
			}
		}
		if err := json.NewEncoder(w).Encode(rows); err != nil {
			f.Error(err)
		}
	})
	return l
}

func (l *listed) take() (index, all, states int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	index, all, states = l.index, l.all, l.states
	l.index, l.all, l.states = 0, 0, 0
	return index, all, states
}

// A Nomad in which nothing changed answers by its index, and one allocation that the stream did not
// bring is read alone, however many there are.
func TestListing_ReadsWhatChanged(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(c *nomad.Config) { c.CallTimeout = 5 * time.Minute })
	const many = 17_000 // more than the caches begin with
	for i := range many {
		f.job(fmt.Sprintf("s%d", i), "one", "running")
	}
	l := countListings(f)
	list := func(what string, index, all, states int) {
		t.Helper()
		got, err := f.List(t.Context(), "c1")
		if err != nil || len(got) < many || got[0].Placement == nil || got[len(got)-1].Live != 1 {
			t.Fatalf("%s: %d jobs, %v", what, len(got), err)
		}
		if i, a, s := l.take(); i != index || a != all || s != states {
			t.Errorf("%s: read %d indexes, %d listings and %d with states; want %d, %d and %d", what, i, a, s, index, all,
				states)
		}
	}
	list("the first", 0, 1, 1)
	list("unchanged", 1, 0, 0)
	f.job("new", "one", "running")
	list("one more", 1, 1, 1)
	last := l.filters[len(l.filters)-1]
	if !strings.Contains(last, `ID == "alloc-new"`) || strings.Contains(last, "alloc-s1") {
		t.Errorf("one more: read those of %.200s", last)
	}
	list("unchanged again", 1, 0, 0)
	for i := range 2 {
		f.mu.Lock()
		f.tables["/v1/allocations"][i]["ModifyIndex"] = 50
		f.index++
		f.mu.Unlock()
	}
	list("two changed", 1, 1, 1)
}
