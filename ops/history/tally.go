package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// tally counts requests by what they were and what came of them.
type tally struct {
	mu     sync.Mutex
	counts map[string]map[Outcome]int
	// acked are the ends of acknowledged writes.
	acked []time.Duration
	// broken are answers that no client should ever get.
	broken []string
}

func newTally() *tally { return &tally{counts: map[string]map[Outcome]int{}} }

// maxBroken is how many broken answers are kept in words.
const maxBroken = 20

func (t *tally) count(method, path string, r reply) {
	path, _, _ = strings.Cut(path, "?")
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if len(p) >= 20 {
			parts[i] = "*"
		}
	}
	name := method + " " + strings.Join(parts, "/")
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts[name] == nil {
		t.counts[name] = map[Outcome]int{}
	}
	t.counts[name][r.Outcome]++
	if method != "GET" && r.ok() {
		t.acked = append(t.acked, r.Return)
	}
	if r.Status >= 500 && r.Status != 503 || r.Status/100 == 4 && r.Status != 404 && r.Status != 429 {
		if len(t.broken) < maxBroken {
			t.broken = append(t.broken, fmt.Sprintf("%s on %s at %s: %s", name, r.Node, r.Return, r.Error))
		}
	}
}

// String is a line for each kind of request.
func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	total := map[Outcome]int{}
	for _, name := range slices.Sorted(maps.Keys(t.counts)) {
		c := t.counts[name]
		fmt.Fprintf(&b, "  %-60s %7d answered %6d refused %6d unknown\n", name, c[Done], c[Nothing], c[Unknown])
		for o, n := range c {
			total[o] += n
		}
	}
	fmt.Fprintf(&b, "  %-60s %7d answered %6d refused %6d unknown\n", "all", total[Done], total[Nothing], total[Unknown])
	return b.String()
}

// gap is the longest time between two acknowledged writes, and when it began.
func (t *tally) gap() (longest, begin time.Duration) {
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
