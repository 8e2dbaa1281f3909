//go:build linux

package drills

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
	"bivouac.dev/bivouac/ops/history"
	"bivouac.dev/bivouac/ops/nemesis"
)

// The environment of this drill.
const (
	// envLinear is how long the nemesis is at work, as time.ParseDuration reads
	// it; envSeed repeats a schedule; envKinds names the kinds of faults, all where
	// it is empty; envKeep is the folder for what is to be looked at after a
	// failure.
	envLinear = "BIVOUAC_DRILL_LINEAR"
	envSeed   = "BIVOUAC_DRILL_SEED"
	envKinds  = "BIVOUAC_DRILL_KINDS"
	// envFleet is one fleet alone: wal3, wal5, boltdb3 or boltdb5.
	envFleet = "BIVOUAC_DRILL_FLEET"
	envKeep  = "BIVOUAC_DRILL_KEEP"
)

// linearOptions are one run.
type linearOptions struct {
	nodes     int
	logStore  string
	duration  time.Duration
	kinds     []nemesis.Kind
	mutations []nemesis.Mutation
	clients   history.Crowd
}

// linearVerdict is what a run came to.
type linearVerdict struct {
	history history.Verdict
	once    history.OnceVerdict
	wrong   []string
}

// TestLinearizable has clients on all nodes write and read settings,
// conversations, sandboxes and specs while a nemesis is at work, and repeat POSTs
// with their Idempotency-Key on every node at once. All that was answered must
// have an order that explains it, listings as one look at all they show; stale
// reads must only be stale, and what was asked for once must be there once.
func TestLinearizable(t *testing.T) {
	d := linearDuration(t, 30*time.Second, 10*time.Minute)
	fleets := []linearOptions{{logStore: "boltdb", nodes: 3}}
	if long() || os.Getenv(envLinear) != "" {
		fleets = []linearOptions{{logStore: "wal", nodes: 3}, {logStore: "boltdb", nodes: 5}, {logStore: "wal", nodes: 5}, {logStore: "boltdb", nodes: 3}}
		d /= 2 // two fleets at once have twice the faults in the time
	}
	if name := os.Getenv(envFleet); name != "" {
		fleets = []linearOptions{linearFleet(t, name)}
		d = linearDuration(t, 30*time.Second, 10*time.Minute)
	}
	for _, o := range fleets {
		t.Run(fmt.Sprintf("%s%d", o.logStore, o.nodes), func(t *testing.T) {
			t.Parallel()
			o.duration, o.kinds = d, linearKinds(t)
			o.clients = history.Crowd{Settings: 4, Conversations: 2, Sandboxes: 1, Specs: 1, Once: 2}
			v := runLinear(t, o)
			for _, w := range v.wrong {
				t.Error(w)
			}
		})
	}
}

// linearFleet reads the name of a log store with a number of nodes behind it.
func linearFleet(t *testing.T, name string) linearOptions {
	t.Helper()
	for _, store := range logStores() {
		rest, is := strings.CutPrefix(name, store)
		switch {
		case is && rest == "":
			return linearOptions{logStore: store, nodes: 3}
		case is && (rest == "3" || rest == "5"):
			return linearOptions{logStore: store, nodes: int(rest[0] - '0')}
		}
	}
	t.Fatalf("%s: there is no fleet %q: say boltdb or wal, and 3 or 5 behind it", envFleet, name)
	return linearOptions{}
}

// linearDuration is how long the nemesis works: as the environment says, or
// brief, or nightly in the long drill.
func linearDuration(t *testing.T, brief, nightly time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(envLinear)
	if text == "" {
		if long() {
			return nightly
		}
		return brief
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// linearKinds are the kinds of faults that the environment names, or all.
func linearKinds(t *testing.T) (kinds []nemesis.Kind) {
	t.Helper()
	if os.Getenv(envKinds) == "" {
		return nemesis.Kinds()
	}
	for _, name := range strings.FieldsFunc(os.Getenv(envKinds), func(r rune) bool { return r == ',' || r == ' ' }) {
		if !slices.Contains(nemesis.Kinds(), nemesis.Kind(name)) {
			t.Fatalf("%s: there is no kind %q, there are %v", envKinds, name, nemesis.Kinds())
		}
		kinds = append(kinds, nemesis.Kind(name))
	}
	return kinds
}

func linearSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv(envSeed)
	if text == "" {
		return rand.Uint64N(1e9)
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return seed
}

// keepDir is where a failure's evidence is kept.
func keepDir(t *testing.T, seed uint64, store string) string {
	t.Helper()
	base := os.Getenv(envKeep)
	if base == "" {
		base = os.TempDir()
	}
	dir := filepath.Join(base, fmt.Sprintf("bivouac-linear-%d-%s-%d", seed, store, os.Getpid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// runLinear makes a fleet on a network of its own, lets clients and nemesis at
// it, prints the verdict and the figures, and keeps the evidence when something
// is wrong.
func runLinear(t *testing.T, o linearOptions) linearVerdict {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real fleet")
	}
	nemesis.Need(t, fleet.Need)
	seed := linearSeed(t)
	begin := time.Now()
	say := func(format string, args ...any) { t.Logf(format, args...) }
	say("seed %d, %d nodes, log store %s, %s: repeat it with %s=%d", seed, o.nodes, o.logStore, o.duration, envSeed, seed)

	overlay, err := nemesis.Build(t.TempDir(), o.mutations...)
	if err != nil {
		t.Fatal(err)
	}
	net := nemesis.NewNetwork(t, o.nodes, seed)
	f := fleet.Start(t, fleet.Options{
		Nodes: o.nodes, Net: net, Overlay: overlay,
		Raft: fmt.Sprintf("log_store = %q\nsnapshot_threshold = 32\nsnapshot_interval = \"1s\"\ntrailing_logs = 8", o.logStore),
	})
	n := nemesis.New(t, f, net, nemesis.NewSchedule(seed, o.kinds...), say)
	work := history.NewWork(endpoints(f, n), f.Nodes[0].Key, seed)
	say("the fleet serves after %s", time.Since(begin).Round(time.Millisecond))

	// The clients outlive the nemesis a little, to see the cluster whole again.
	// A run that is interrupted is judged as far as it went.
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt)
	working := make(chan struct{})
	go func() {
		defer close(working)
		work.Run(ctx, o.clients)
	}()
	disturbed, calm := context.WithTimeout(ctx, o.duration)
	began := time.Now()
	recovered := n.Run(disturbed)
	lasted := time.Since(began).Round(time.Second)
	calm()
	stop()
	<-working

	var v linearVerdict
	if recovered != nil {
		v.wrong = append(v.wrong, fmt.Sprintf("the fleet did not recover: %v", recovered))
	}
	keep := keepDir(t, seed, o.logStore)
	ops := work.Rec.Ops()
	judging := time.Now()
	v.history = history.Judge(ops, keep)
	judged := time.Since(judging)
	v.wrong = append(v.wrong, v.history.Wrong...)
	if o.clients.Once > 0 && recovered == nil {
		v.once = work.Once(t.Context())
		v.wrong = append(v.wrong, v.once.Wrong...)
	}
	v.wrong = append(v.wrong, work.Broken()...)
	figures := n.Figures()
	for _, two := range figures.TwoLeaders {
		v.wrong = append(v.wrong, "two leaders: "+two)
	}
	v.wrong = append(v.wrong, figures.Ended...)
	say("requests:\n%s", work.Summary())
	say("nemesis: %v", figures)
	gap, at := work.Gap()
	say("longest time without an acknowledged write: %s, from %s on", gap.Round(time.Millisecond), at.Round(time.Millisecond))
	say("linearizability: %d requests about %d objects checked in %s; %d stale reads, %d of them behind; a restarted node fell back by at most %d entries",
		v.history.Ops, v.history.Objects, judged.Round(time.Millisecond), v.history.StaleReads, v.history.Behind, v.history.Backwards)
	say("exactly once: %d POSTs answered %d times: %v", v.once.Requests, v.once.Answers, v.once.Counts)
	keepEvidence(t, keep, f, ops, v.wrong)
	if recovered == nil {
		index, sum := f.SameState(t)
		say("all nodes have one state at index %d: %.12s", index, sum)
	}
	verdict := "LINEARIZABLE AND EXACTLY ONCE"
	if len(v.wrong) > 0 {
		verdict = fmt.Sprintf("%d FINDINGS, kept in %s", len(v.wrong), keep)
	}
	say("verdict: %s (%s of nemesis, %d nodes, %s, seed %d; %s in all)", verdict, lasted, o.nodes, o.logStore, seed, time.Since(begin).Round(time.Second))
	return v
}

// endpoints are the nodes as clients see them.
func endpoints(f *fleet.Fleet, n *nemesis.Nemesis) (list []history.Endpoint) {
	for i, node := range f.Nodes {
		list = append(list, history.Endpoint{Name: node.Name, Base: node.Base, Life: func() uint64 { return n.Life(i) }})
	}
	return list
}

// keepEvidence keeps the whole history, the nodes' logs and what was found; of a
// run without findings nothing is kept.
func keepEvidence(t *testing.T, keep string, f *fleet.Fleet, ops []history.Op, wrong []string) {
	t.Helper()
	if len(wrong) == 0 {
		_ = os.RemoveAll(keep)
		return
	}
	if err := history.Save(filepath.Join(keep, "history.json"), ops); err != nil {
		t.Log(err)
	}
	for _, n := range f.Nodes {
		raw, err := os.ReadFile(n.Log)
		if err == nil {
			err = os.WriteFile(filepath.Join(keep, n.Name+".log"), raw, 0o600)
		}
		if err != nil {
			t.Log(err)
		}
	}
	if err := os.WriteFile(filepath.Join(keep, "findings.txt"), []byte(strings.Join(wrong, "\n")+"\n"), 0o600); err != nil {
		t.Log(err)
	}
}
