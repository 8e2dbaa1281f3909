//go:build linux

package e2e

import (
	"cmp"
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

	"bivouac.dev/bivouac/ops/e2e/chaos"
	"bivouac.dev/bivouac/ops/e2e/lincheck"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/ops/e2e/workload"
)

// The environment variables of this drill.
const (
	// envLinear is how long the nemesis works, in the format of time.ParseDuration. envSeed
	// repeats a schedule. envKinds lists the kinds of faults; empty means all. envKeep is the
	// folder for a failure's evidence.
	envLinear = "BIVOUAC_DRILL_LINEAR"
	envSeed   = "BIVOUAC_DRILL_SEED"
	envKinds  = "BIVOUAC_DRILL_KINDS"
	// envNodes selects one test cluster, of 3 or 5 nodes.
	envNodes = "BIVOUAC_DRILL_NODES"
	envKeep  = "BIVOUAC_DRILL_KEEP"
)

// linearOptions configures one run.
type linearOptions struct {
	nodes     int
	duration  time.Duration
	kinds     []chaos.Kind
	mutations []chaos.Mutation
	clients   workload.Crowd
	// keep is the folder for a failure's evidence, "" for the one that envKeep names.
	keep string
}

// linearVerdict is the result of a run.
type linearVerdict struct {
	history lincheck.Verdict
	once    workload.OnceVerdict
	wrong   []string
}

// TestLinearizable: clients on all nodes write and read settings, conversations, sandboxes and
// specs while a nemesis works, and send each POST with the same Idempotency-Key to every node
// at once. The responses must be linearizable, a listing as one read of all its items. Stale
// reads may only be stale, and each key must have one effect.
func TestLinearizable(t *testing.T) {
	d := linearDuration(t, 30*time.Second, 10*time.Minute)
	clusters := []linearOptions{{nodes: 3}}
	if long() || os.Getenv(envLinear) != "" {
		clusters = []linearOptions{{nodes: 3}, {nodes: 5, mutations: []chaos.Mutation{chaos.SmallSegments}}}
	}
	if nodes := setting(t, envNodes, 0); nodes > 0 {
		clusters = []linearOptions{{nodes: nodes}}
	}
	for _, o := range clusters {
		t.Run(fmt.Sprintf("%d nodes", o.nodes), func(t *testing.T) {
			t.Parallel()
			o.duration, o.kinds = d, drillKinds(t, chaos.Kinds(), append(chaos.Kinds(), chaos.StackKinds()...))
			o.clients = workload.Crowd{Settings: 4, Conversations: 2, Sandboxes: 1, Specs: 1, Once: 2}
			v := runLinear(t, o)
			for _, w := range v.wrong {
				t.Error(w)
			}
		})
	}
}

// linearDuration is how long the nemesis works: the environment's value, or else brief, or
// nightly in the long drill.
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

// drillKinds returns the kinds of faults in the environment, or the usual ones.
func drillKinds(t *testing.T, usual, possible []chaos.Kind) (kinds []chaos.Kind) {
	t.Helper()
	if os.Getenv(envKinds) == "" {
		return usual
	}
	for _, name := range strings.FieldsFunc(os.Getenv(envKinds), func(r rune) bool { return r == ',' || r == ' ' }) {
		if !slices.Contains(possible, chaos.Kind(name)) {
			t.Fatalf("%s: there is no kind %q, there are %v", envKinds, name, possible)
		}
		kinds = append(kinds, chaos.Kind(name))
	}
	return kinds
}

// drillSeed returns the seed in the environment, or a new one.
func drillSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv(envSeed)
	if text == "" {
		return rand.Uint64N(1e9)
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", envSeed, err)
	}
	return seed
}

// keepDir is the folder for a failure's evidence.
func (o linearOptions) keepDir(t *testing.T, seed uint64) string {
	t.Helper()
	base := cmp.Or(o.keep, os.Getenv(envKeep), os.TempDir())
	dir := filepath.Join(base, fmt.Sprintf("bivouac-linear-%d-%d", seed, os.Getpid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// runLinear starts a test cluster on its own network, runs clients and nemesis, prints verdict
// and figures, and keeps the evidence of a failure.
func runLinear(t *testing.T, o linearOptions) linearVerdict {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	chaos.Need(t, testcluster.Need)
	seed := drillSeed(t)
	begin := time.Now()
	say := func(format string, args ...any) { t.Logf(format, args...) }
	say("seed %d, %d nodes, %s: repeat it with %s=%d", seed, o.nodes, o.duration, envSeed, seed)

	overlay, err := chaos.Build(t.TempDir(), o.mutations...)
	if err != nil {
		t.Fatal(err)
	}
	net := chaos.NewNetwork(t, o.nodes, seed)
	f := testcluster.Start(t, testcluster.Options{
		Nodes: o.nodes, Net: net, Overlay: overlay,
		Raft: "snapshot_threshold = 32\nsnapshot_interval = \"1s\"\ntrailing_logs = 8",
	})
	n := chaos.New(t, f, net, chaos.NewSchedule(seed, o.kinds...), say)
	work := workload.NewRecorded(endpoints(f, n), f.Nodes[0].Key, seed)
	say("the cluster serves after %s", time.Since(begin).Round(time.Millisecond))

	// The clients run a little longer than the nemesis, to see the recovered cluster. An
	// interrupted run is checked up to the interrupt.
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
		v.wrong = append(v.wrong, fmt.Sprintf("the cluster did not recover: %v", recovered))
	}
	keep := o.keepDir(t, seed)
	ops := work.Rec.Ops()
	judging := time.Now()
	v.history = lincheck.Judge(ops, keep)
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
	v.wrong = append(append(v.wrong, figures.Ended...), figures.Taken...)
	say("requests:\n%s", work.Summary())
	say("nemesis: %v", figures)
	gap, at := work.Gap()
	say("longest time without an acknowledged write: %s, from %s on", gap.Round(time.Millisecond),
		at.Round(time.Millisecond))
	say("linearizability: %d requests about %d objects checked in %s; %d stale reads, %d of them behind; "+
		"a restarted node fell back by at most %d entries",
		v.history.Ops, v.history.Objects, judged.Round(time.Millisecond), v.history.StaleReads, v.history.Behind,
		v.history.Backwards)
	say("exactly once: %d POSTs answered %d times: %v", v.once.Requests, v.once.Answers, v.once.Counts)
	if recovered == nil {
		index, sum, err := f.OneState(t.Context())
		if err != nil {
			v.wrong = append(v.wrong, err.Error())
		}
		say("the nodes' state at index %d: %.12s; %v", index, sum, err)
	}
	keepEvidence(t, keep, f, ops, v.wrong)
	verdict := "LINEARIZABLE AND EXACTLY ONCE"
	if len(v.wrong) > 0 {
		verdict = fmt.Sprintf("%d FINDINGS, kept in %s", len(v.wrong), keep)
	}
	say("verdict: %s (%s of nemesis, %d nodes, seed %d; %s in all)", verdict, lasted, o.nodes, seed,
		time.Since(begin).Round(time.Second))
	return v
}

// endpoints returns the nodes as clients see them.
func endpoints(f *testcluster.Cluster, n *chaos.Nemesis) (list []workload.Endpoint) {
	for i, node := range f.Nodes {
		list = append(list, workload.Endpoint{Name: node.Name, Base: node.Base, Life: func() uint64 { return n.Life(i) }})
	}
	return list
}

// keepEvidence keeps the whole history, the nodes' logs and the findings. Without findings it
// keeps nothing.
func keepEvidence(t *testing.T, keep string, f *testcluster.Cluster, ops []lincheck.Op, wrong []string) {
	t.Helper()
	if len(wrong) == 0 {
		_ = os.RemoveAll(keep)
		return
	}
	if err := lincheck.Save(filepath.Join(keep, "history.json"), ops); err != nil {
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
	if err := os.WriteFile(filepath.Join(keep, "findings.txt"), []byte(strings.Join(wrong, "\n")+"\n"),
		0o600); err != nil {
		t.Log(err)
	}
}
