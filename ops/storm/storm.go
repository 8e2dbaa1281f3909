package storm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

// Options say how a storm goes.
type Options struct {
	Fleet *fleet.Fleet
	// Specs are what the sandboxes are made from.
	Specs []string
	// Actors is how many clients there are, of at most two sandboxes each.
	Actors int
	// Duration is how long the nemesis rages.
	Duration time.Duration
	// Seed chooses what clients and nemesis do; not when, which is the
	// machine's.
	Seed uint64
	// Strays is whether keys in Vault may be left that no sandbox refers to:
	// true unless the collector's grace is waited for.
	Strays bool
}

// Report is what happened.
type Report struct {
	// Operations, Faults and Reasons are counted by name; Reasons are those of
	// starts that ended in ERROR and were resumed.
	Operations, Faults, Reasons map[string]int
	// Retries is how often a client asked again.
	Retries int
	// Longest is how long the slowest operation took until it was acknowledged
	// or settled.
	Longest time.Duration
	Slowest string
	// Messages were acknowledged. Again is how often one was delivered once more,
	// because an answer before had been lost.
	Messages, Again int
	// Running and Paused are how many sandboxes there were in the end.
	Running, Paused int
	// Destroyed is how many jobs, workspaces and secrets the nodes destroyed; each
	// was asked for.
	Destroyed int
}

// String is the drill's verdict, in one paragraph.
func (r Report) String() string {
	return fmt.Sprintf("operations %s; asked again %d times; longest %.1f s (%s); faults %s; starts that ended in ERROR and were resumed %s; %d messages acknowledged, %d more deliveries where an answer had been lost; in the end %d running, %d paused; %d things destroyed in Nomad and Vault",
		counts(r.Operations), r.Retries, r.Longest.Seconds(), r.Slowest, counts(r.Faults), counts(r.Reasons), r.Messages, r.Again, r.Running, r.Paused, r.Destroyed)
}

func counts(m map[string]int) string {
	var list []string
	sum := 0
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list, sum = append(list, fmt.Sprintf("%s %d", k, m[k])), sum+m[k]
	}
	return fmt.Sprintf("%d (%s)", sum, strings.Join(list, ", "))
}

// Run lets the storm rage, mends everything, waits until all has settled and
// compares each sandbox with what its client was told, and Nomad and Vault with
// the sandboxes. It fails t for each broken promise.
func Run(t testing.TB, o Options) Report {
	t.Helper()
	tally := newTally()
	var actors []*actor
	for i := range o.Actors {
		actors = append(actors, newActor(i, o, tally))
	}
	foreign := []fleet.Foreign{o.Fleet.AddForeign(t, "somebody-elses")}
	ctx, cancel := context.WithTimeout(t.Context(), o.Duration)
	defer cancel()
	var group sync.WaitGroup
	for _, a := range actors {
		group.Go(func() { a.live(ctx) })
	}
	// Should the nemesis fail the test, the actors end with it all the same.
	defer group.Wait()
	defer cancel()
	n := &nemesis{Fleet: o.Fleet, rng: rand.New(rand.NewPCG(o.Seed, 1<<32)), faults: map[string]int{}}
	n.rage(ctx, t)
	group.Wait()
	for _, a := range actors {
		group.Go(func() { a.reckon() })
	}
	group.Wait()
	r := Report{Operations: tally.done, Faults: n.faults, Reasons: tally.reasons, Retries: tally.retries, Longest: tally.longest, Slowest: tally.slowest}
	expected := fleet.Expected{Foreign: foreign}
	for _, a := range actors {
		r.Messages += len(a.sent)
		for _, m := range a.sent {
			r.Again += max(0, m.heard-1)
		}
		for _, b := range a.boxes {
			if b.want == "RUNNING" {
				expected.Running = append(expected.Running, b.id)
			} else {
				expected.Paused = append(expected.Paused, b.id)
			}
		}
	}
	r.Running, r.Paused = len(expected.Running), len(expected.Paused)
	if o.Fleet.Ledger != nil {
		destroyed := o.Fleet.Ledger.Destroyed()
		r.Destroyed = len(destroyed)
		tally.violated = append(tally.violated, unexplained(destroyed, tally.lives)...)
	}
	for _, err := range tally.violated {
		t.Error(err)
	}
	if len(tally.violated) == 0 {
		audit(t, o, expected, tally.retries)
	}
	return r
}

// reckon looks, after the storm, at every sandbox of the actor's once more.
func (a *actor) reckon() {
	for _, b := range a.boxes {
		if a.settled(b) != nil || b.want == "RUNNING" && (a.read(b) != nil || a.hear(b) != nil) {
			return
		}
	}
}

// audit compares what there is with what there must be.
func audit(t testing.TB, o Options, e fleet.Expected, retries int) {
	t.Helper()
	patience := fleet.Patience
	if o.Strays {
		e.Strays = retries // each may have written a key for a command that was never taken
	} else {
		patience = 6 * time.Minute
	}
	if err := fleet.Await(patience, func() error { return o.Fleet.Audit(e) }); err != nil {
		t.Errorf("Nomad or Vault hold something else than the sandboxes: %v", err)
	}
	listed := map[string]bool{}
	path := "/api/v1/sandboxes/search?limit=100"
	a, err := o.Fleet.Nodes[0].Try("GET", path, nil)
	var page struct{ Items []fleet.Sandbox }
	if err = errors.Join(err, a.Decode(&page)); err != nil {
		t.Error(err)
	}
	for _, sb := range page.Items {
		listed[sb.ID] = true
		if !slices.Contains(e.Running, sb.ID) && !slices.Contains(e.Paused, sb.ID) {
			t.Errorf("sandbox %s (%s) was not asked for, or was deleted", sb.ID, sb.Status)
		}
	}
	if len(listed) != len(e.Running)+len(e.Paused) {
		t.Errorf("%d sandboxes are listed, %d should be", len(listed), len(e.Running)+len(e.Paused))
	}
}
