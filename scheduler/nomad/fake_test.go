package nomad_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// fakeNomad answers the runner's calls from tables, for what a real Nomad does only with hundreds
// of sandboxes or with clients that are away.
type fakeNomad struct {
	*testing.T
	*nomad.Runner
	server *httptest.Server
	frames chan string

	mu     sync.Mutex
	index  uint64
	tables map[string][]map[string]any
	// handle answers calls by "METHOD /path", before the tables do.
	handle map[string]http.HandlerFunc
	calls  map[string]int
}

// newFake makes an empty one. It serves until the test ends.
func newFake(t *testing.T, change func(*nomad.Config)) *fakeNomad {
	t.Helper()
	f := &fakeNomad{
		T: t, frames: make(chan string, 100), index: 100, tables: map[string][]map[string]any{},
		handle: map[string]http.HandlerFunc{}, calls: map[string]int{},
	}
	f.server = httptest.NewServer(f)
	t.Cleanup(f.server.Close)
	cfg := nomad.DefaultConfig()
	cfg.Address = f.server.URL
	if change != nil {
		change(&cfg)
	}
	var err error
	if f.Runner, err = nomad.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Runner.Close)
	return f
}

// ServeHTTP implements http.Handler.
func (f *fakeNomad) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	what := r.Method + " " + r.URL.Path
	for pattern, handler := range f.handle {
		if what == pattern || strings.HasSuffix(pattern, "/") && strings.HasPrefix(what, pattern) {
			f.calls[pattern]++
			f.mu.Unlock()
			handler(w, r)
			return
		}
	}
	f.calls[what]++
	table, index := f.tables[r.URL.Path], f.index
	raw, err := json.Marshal(table)
	f.mu.Unlock()
	if err != nil {
		f.Error(err)
	}
	switch {
	case r.URL.Path == "/v1/event/stream":
		f.stream(w, r)
	case table == nil && r.URL.Path != "/v1/jobs" && r.URL.Path != "/v1/allocations" && r.URL.Path != "/v1/evaluations" &&
		r.URL.Path != "/v1/volumes" && r.URL.Path != "/v1/nodes":
		http.Error(w, "not found", http.StatusNotFound)
	default:
		w.Header().Set("X-Nomad-Index", fmt.Sprint(index))
		if table == nil {
			raw = []byte("[]")
		}
		_, _ = w.Write(raw)
	}
}

func (f *fakeNomad) stream(w http.ResponseWriter, r *http.Request) {
	flush := w.(http.Flusher).Flush
	flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case frame := <-f.frames:
			if frame == "" {
				return
			}
			_, _ = w.Write([]byte(frame + "\n"))
			flush()
		}
	}
}

// silent is a handler that never responds.
func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// on sets a handler for calls: "METHOD /path", or everything below it where it ends with a slash.
func (f *fakeNomad) on(what string, handler http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handle[what] = handler
}

// count returns how often a call was made.
func (f *fakeNomad) count(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[what]
}

func (f *fakeNomad) add(path string, row map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	f.tables[path] = append(f.tables[path], row)
}

// job adds a job with one allocation on the client.
func (f *fakeNomad) job(id, client, status string, events ...map[string]any) {
	f.add("/v1/jobs", jobRow(id))
	f.add("/v1/allocations", allocRow(id, client, status, events...))
}

func jobRow(id string) map[string]any {
	return map[string]any{
		"ID": "sandbox-" + id, "Meta": map[string]string{
			"bivouac_cluster":   "c1",
			"bivouac_sandbox":   id,
			"bivouac_workspace": "/w",
		},
		"JobModifyIndex": 10, "ModifyIndex": 12,
	}
}

func allocRow(id, client, status string, events ...map[string]any) map[string]any {
	return map[string]any{
		"ID": "alloc-" + id, "JobID": "sandbox-" + id, "NodeID": client, "NodeName": client,
		"DesiredStatus": "run", "ClientStatus": status, "JobVersion": 0, "CreateIndex": 11, "ModifyIndex": 12,
		"ModifyTime": time.Now().UnixNano(),
		"TaskStates": map[string]any{"agent": map[string]any{"Events": events}},
		"AllocatedResources": map[string]any{
			"Shared": map[string]any{"Ports": []map[string]any{{"Label": "AGENT_SERVER", "Value": 2000, "HostIP": "10.0.0.1"}}},
		},
	}
}

// frame is a line of the event stream.
func frame(index uint64, payloads ...map[string]any) string {
	var events []map[string]any
	for _, p := range payloads {
		for _, row := range p {
			row.(map[string]any)["ModifyIndex"] = index
		}
		events = append(events, map[string]any{"Index": index, "Payload": p})
	}
	raw, _ := json.Marshal(map[string]any{"Index": index, "Events": events})
	return string(raw)
}

// watch collects what Watch reports until the test ends.
func (f *fakeNomad) watch() *reports { return watching(f.T, f.Runner, "c1") }

// watching collects what a runner's Watch reports until the test ends.
func watching(t *testing.T, r *nomad.Runner, cluster string) *reports {
	t.Helper()
	w := &reports{news: make(chan struct{}, 1), last: map[string]scheduler.Observed{}, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.ended <- r.Watch(ctx, cluster, w.add)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// reports has the last report of each sandbox.
type reports struct {
	news  chan struct{}
	ended chan error

	mu   sync.Mutex
	last map[string]scheduler.Observed
}

func (w *reports) add(o scheduler.Observed) {
	w.mu.Lock()
	w.last[o.SandboxID] = o
	w.mu.Unlock()
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// await waits until the report of the sandbox is as wanted.
func (w *reports) await(
	t *testing.T,
	what, id string,
	limit time.Duration,
	ok func(o scheduler.Observed, reported bool) bool,
) time.Duration {
	t.Helper()
	begin := time.Now()
	end := time.NewTimer(limit)
	defer end.Stop()
	for {
		w.mu.Lock()
		o, heard := w.last[id]
		w.mu.Unlock()
		if ok(o, heard) {
			return time.Since(begin)
		}
		select {
		case <-w.news:
		case err := <-w.ended:
			t.Fatalf("%s: the watch ended: %v", what, err)
		case <-end.C:
			t.Fatalf("not within %s: %s; reported %+v, failure %v", limit, what, o, o.Failure)
		}
	}
}
