package workload

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/ops/e2e/lincheck"
)

// tally counts requests and operations by kind and outcome.
type tally struct {
	mu    sync.Mutex
	kinds map[string]*kind
	// reasons counts failures by their text.
	reasons map[string]int
	retries int
	// acked are the ends of acknowledged writes.
	acked []time.Duration
	// broken are answers that no client should get, and broken promises.
	broken []string
	// longest is the duration of the slowest operation, slowest its name.
	longest time.Duration
	slowest string
}

// kind is what is known of one kind of request or operation.
type kind struct {
	outcomes map[lincheck.Outcome]int
	took     latencies
}

func newTally() *tally {
	t := &tally{}
	t.reset()
	return t
}

// reset forgets all counts.
func (t *tally) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kinds, t.reasons = map[string]*kind{}, map[string]int{}
}

// maxBroken is the number of stored broken responses.
const maxBroken = 20

// count counts one request or operation. The caller holds mu.
func (t *tally) count(name string, o lincheck.Outcome, took time.Duration) {
	if t.kinds[name] == nil {
		t.kinds[name] = &kind{outcomes: map[lincheck.Outcome]int{}}
	}
	t.kinds[name].outcomes[o]++
	t.kinds[name].took.add(took)
}

// request counts a request by its method and path.
func (t *tally) request(method, path string, r reply) {
	name := requestName(method, path)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count(name, r.Outcome, r.Return-r.Call)
	if method != http.MethodGet && r.ok() {
		t.acked = append(t.acked, r.Return)
	}
	refused := r.Status/100 == 4 && r.Status != http.StatusNotFound && r.Status != http.StatusTooManyRequests
	// A repeated request for a key is a conflict that names the key; once.go checks the name.
	repeated := path == pathKeys && madeBefore(post{collection: collectionKeys}, r) != ""
	if r.Status >= 500 && r.Status != http.StatusServiceUnavailable || refused && !repeated {
		if len(t.broken) < maxBroken {
			t.broken = append(t.broken, fmt.Sprintf("%s on %s at %s: %s", name, r.Node, r.Return, r.Error))
		}
	}
}

// requestName is the path without ids and query.
func requestName(method, path string) string {
	path, query, _ := strings.Cut(path, "?")
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if len(p) >= 20 {
			parts[i] = "*"
		}
	}
	name := method + " " + strings.Join(parts, "/")
	if query == staleQuery {
		name += " (stale)"
	}
	return name
}

// staleQuery asks for a stale read.
const staleQuery = "stale"

// operation counts an operation, which may take several requests. The first word of what is its
// kind.
func (t *tally) operation(what string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	op, _, _ := strings.Cut(what, " ")
	t.count(op, lincheck.Done, took)
	if took > t.longest {
		t.longest, t.slowest = took, what
	}
}

// again counts a repeated request.
func (t *tally) again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retries++
}

// failed counts a failure by its text.
func (t *tally) failed(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reasons[reason]++
}

// violation records a broken promise.
func (t *tally) violation(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = append(t.broken, err.Error())
	return err
}

// Broken lists what no client should get: a 5xx other than 503, a rejection of a valid request,
// a broken promise.
func (t *tally) Broken() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.broken)
}

// Summary has a line for each kind.
func (t *tally) Summary() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	all := map[lincheck.Outcome]int{}
	line := func(name string, c map[lincheck.Outcome]int, took string) {
		fmt.Fprintf(&b, "  %-60s %7d answered %6d refused %6d unknown%s\n", name, c[lincheck.Done], c[lincheck.Nothing],
			c[lincheck.Unknown], took)
	}
	for _, name := range slices.Sorted(maps.Keys(t.kinds)) {
		k := t.kinds[name]
		line(name, k.outcomes, fmt.Sprintf("; ms: %s (median / p99 / max)", &k.took))
		for o, n := range k.outcomes {
			all[o] += n
		}
	}
	line("all", all, "")
	return b.String()
}

// Gap returns the longest time without an acknowledged write, and its start.
func (t *tally) Gap() (longest, begin time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.Sort(t.acked)
	for i := 1; i < len(t.acked); i++ {
		if gap := t.acked[i] - t.acked[i-1]; gap > longest {
			longest, begin = gap, t.acked[i-1]
		}
	}
	return longest, begin
}
