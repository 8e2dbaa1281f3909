package workload

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// ActorOptions configures Actors.
type ActorOptions struct {
	Cluster *testcluster.Cluster
	// Specs are the sandboxes' specs.
	Specs []string
	// Actors is the number of clients, and Each how many sandboxes each has at most; 0 means two. Run
	// starts them all first where Each is set.
	Actors, Each int
	// Keys are those of the clients' users, one each; nil means that all use an operator's.
	Keys []string
	// Resume: Check resumes what is paused, so that each file is read.
	Resume bool
	// Seed decides the clients' choices, but not their timing.
	Seed uint64
	// Strays allows keys in Vault without a sandbox: set it unless Check may wait for the
	// collector's grace.
	Strays bool
}

// Actors is the profile whose clients use sandboxes and know what became of each request.
type Actors struct {
	*generator
	o    ActorOptions
	list []*actor
	lives
	// shut counts requests with revoked keys, refused those that got a 401; the others reached a
	// node that could not decide.
	shut, refused int
}

// NewActors makes the clients.
func NewActors(o ActorOptions) *Actors {
	w := &Actors{
		generator: newGenerator(endpoints(o.Cluster.Nodes), o.Cluster.Nodes[0].Key, o.Seed), o: o,
		lives: lives{started: map[string]bool{}, ended: map[string]time.Time{}},
	}
	for range o.Actors {
		w.list = append(w.list, w.actor())
	}
	return w
}

// actor makes one more actor.
func (w *Actors) actor() *actor {
	c := w.client()
	a := &actor{
		client: c,
		of:     w,
		name:   fmt.Sprintf("actor-%d", c.id),
		key:    w.operator,
		plain:  &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
	if len(w.o.Keys) > 0 {
		a.key = w.o.Keys[c.id%len(w.o.Keys)]
	}
	return a
}

// Run runs the actors until ctx ends, and each one's last action until it is acknowledged.
func (w *Actors) Run(ctx context.Context) { w.all(func(a *actor) { a.live(ctx) }) }

func (w *Actors) all(do func(*actor)) {
	var group sync.WaitGroup
	for _, a := range w.list {
		group.Go(func() { do(a) })
	}
	group.Wait()
}

// Check waits until all has settled. Then it compares each sandbox with what its client knows,
// and Nomad and Vault with the sandboxes and the foreign jobs. It fails t for each broken
// promise, and returns the figures.
func (w *Actors) Check(t testing.TB, foreign ...testcluster.Foreign) string {
	t.Helper()
	w.all((*actor).reckon)
	expected := testcluster.Expected{Foreign: foreign}
	messages, again, destroyed := 0, 0, 0
	for _, a := range w.list {
		messages += len(a.sent)
		for _, m := range a.sent {
			again += max(0, m.heard-1)
		}
		for _, b := range a.sandboxes {
			if b.want == "RUNNING" {
				expected.Running = append(expected.Running, b.id)
			} else {
				expected.Paused = append(expected.Paused, b.id)
			}
		}
	}
	broken := w.Broken()
	if w.o.Cluster.Ledger != nil {
		list := w.o.Cluster.Ledger.Destroyed()
		destroyed = len(list)
		for _, err := range unexplained(list, w.lives) {
			broken = append(broken, err.Error())
		}
	}
	for _, b := range broken {
		t.Error(b)
	}
	if len(broken) == 0 {
		w.audit(t, expected)
	}
	operations := map[string]int{}
	for name, k := range w.kinds {
		operations[name] = k.took.seen
	}
	return fmt.Sprintf("operations %s; asked again %d times; longest %.1f s (%s); "+
		"starts that ended in ERROR and were resumed %s; %d messages acknowledged, "+
		"%d more deliveries where an answer had been lost; %d requests with keys that were gone, %d answered 401; "+
		"in the end %d running, %d paused; %d things destroyed in Nomad and Vault, each asked for",
		counted(operations), w.retries, w.longest.Seconds(), w.slowest, counted(w.reasons), messages, again, w.shut,
		w.refused, len(expected.Running), len(expected.Paused), destroyed)
}

func counted(m map[string]int) string {
	var list []string
	sum := 0
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list, sum = append(list, fmt.Sprintf("%s %d", k, m[k])), sum+m[k]
	}
	return fmt.Sprintf("%d (%s)", sum, strings.Join(list, ", "))
}

// reckon checks all of the actor's sandboxes after the run.
func (a *actor) reckon() {
	for _, b := range slices.Clone(a.sandboxes) {
		if a.of.o.Resume && b.want == "PAUSED" && a.change(b, "resume") != nil {
			return
		}
		err := a.settled(b)
		if err != nil || b.want == "RUNNING" && (a.read(b) != nil || a.hear(b) != nil) {
			return
		}
	}
}

// audit compares Nomad and Vault with the expectation.
func (w *Actors) audit(t testing.TB, e testcluster.Expected) {
	t.Helper()
	patience := testcluster.Patience
	if w.o.Strays {
		e.Strays = w.retries // each may have left a key of a start that was not accepted
	} else {
		patience = 6 * time.Minute
	}
	if err := testcluster.Await(patience, func() error { return w.o.Cluster.Audit(e) }); err != nil {
		t.Errorf("Nomad or Vault hold something else than the sandboxes: %v", err)
	}
	listed := map[string]bool{}
	for _, a := range w.list {
		var page struct{ Items []testcluster.Sandbox }
		c := testcluster.Client{Base: a.nodes[0].Base, Key: a.key}
		if err := c.Get("/api/v1/sandboxes/search?limit=100", &page); err != nil {
			t.Error(err)
		}
		for _, sb := range page.Items {
			listed[sb.ID] = true
			if !slices.Contains(e.Running, sb.ID) && !slices.Contains(e.Paused, sb.ID) {
				t.Errorf("sandbox %s (%s) was not asked for, or was deleted", sb.ID, sb.Status)
			}
		}
	}
	if len(listed) != len(e.Running)+len(e.Paused) {
		t.Errorf("%d sandboxes are listed, %d should be", len(listed), len(e.Running)+len(e.Paused))
	}
}
