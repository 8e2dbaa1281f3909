//go:build linux

package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/chaos"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/ops/e2e/workload"
)

// TestStorm: clients start, use, pause, resume and delete sandboxes and send messages to them,
// while nodes, Nomad and Vault are killed, stopped and sealed. Afterwards each sandbox is as
// acknowledged to its client, with its file and its messages, and Nomad and Vault hold nothing
// else. BIVOUAC_DRILL_SEED repeats a run, BIVOUAC_DRILL_STORM sets its duration,
// BIVOUAC_DRILL_KINDS the kinds of faults (chaos.StackKinds).
func TestStorm(t *testing.T) {
	o, duration := workload.ActorOptions{Actors: 4, Seed: drillSeed(t), Strays: true}, 20*time.Second
	if long() {
		duration, o.Strays = 10*time.Minute, false
	}
	duration = stormTime(t, duration)
	var config string
	if !o.Strays {
		config = "unreferenced_grace = \"2m\"\ncollect_interval = \"10s\""
	}
	o.Cluster = testcluster.Start(t, testcluster.Options{Docker: true, Vault: config, Ledger: true})
	o.Specs = o.Cluster.Drivers()
	foreign := o.Cluster.AddForeign(t, "somebody-elses")
	t.Logf("seed %d, %s", o.Seed, duration)
	actors := workload.NewActors(o)
	nemesis := chaos.New(t, o.Cluster, nil,
		chaos.NewSchedule(o.Seed, drillKinds(t, chaos.StackKinds(), chaos.StackKinds())...), t.Logf)
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var working sync.WaitGroup
	working.Go(func() { actors.Run(ctx) })
	err := nemesis.Run(ctx)
	cancel()
	working.Wait()
	if err != nil {
		t.Fatalf("the stack did not recover: %v", err)
	}
	report, figures := actors.Check(t, foreign), nemesis.Figures()
	for _, two := range figures.TwoLeaders {
		t.Error("two leaders: " + two)
	}
	for _, ended := range figures.Ended {
		t.Error(ended)
	}
	verdict := "as it should be"
	if t.Failed() {
		verdict = "FAILED"
	}
	t.Logf("--- verdict: storm: %s: seed %d, %s: %s; %s", verdict, o.Seed, duration, figures, report)
}
