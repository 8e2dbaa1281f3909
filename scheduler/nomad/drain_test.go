package nomad_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// cli runs one of Nomad's own commands.
func (b *bench) cli(args ...string) {
	b.Helper()
	binary, err := local.Tool(b.Context(), "nomad", os.Stderr)
	b.must(err)
	cmd := exec.CommandContext(b.Context(), binary, args...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+b.config.Address)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("nomad %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// A drain is reported at once and stops nothing before its deadline, so there is time to pause;
// with the sandbox stopped it ends early. A client that takes no jobs is reported and described
// too, and so is that it takes jobs again.
func TestRunner_Drain_IsToldAndLeavesTimeToPause(t *testing.T) {
	t.Parallel()
	b, memory := twoClients(t)
	reports := watching(t, b.r, b.cluster)
	job := b.mock(memory / 10)
	b.must(b.r.Start(t.Context(), job))
	o := b.look(job, "placement", func(o scheduler.Observed) bool { return o.Up && o.Placement != nil })
	home := o.Placement.NodeID
	client := func(state scheduler.ClientState) func(scheduler.Observed, bool) bool {
		return func(o scheduler.Observed, _ bool) bool { return o.Client == state }
	}
	b.until("Nomad taking it for healthy", func() error {
		a, _, err := b.s.client.Allocations().Info(o.Placement.AllocID, nil)
		if err == nil && (a.DeploymentStatus == nil || a.DeploymentStatus.Healthy == nil || !*a.DeploymentStatus.Healthy) {
			err = errors.New("it does not say so")
		}
		return err
	})
	b.cli("node", "drain", "-enable", "-yes", "-detach", "-deadline", "10m", home)
	reports.await(t, "the drain", job.SandboxID, patience, client(scheduler.ClientDraining))
	// Nomad's drainer acts within a second.
	stopped := awaitFor(t.Context(), 5*time.Second, func() error {
		if o = b.observed(job); o.Up && strings.HasSuffix(o.ClientDetail, " is drained") {
			return errors.New("it runs")
		}
		return nil
	})
	if stopped == nil {
		t.Fatalf("five seconds into a drain of ten minutes: %+v, waiting %v", o, o.Waiting)
	}
	job.ModifyIndex, job.RevertTo, job.HasVersion = o.ModifyIndex, o.Version, true
	job = b.paused(job)
	reports.await(t, "the drain's end", job.SandboxID, patience, client(scheduler.ClientClosed))
	// A leader that has not made the workspace knows as much.
	var err error
	b.r, err = nomad.New(b.config)
	b.must(err)
	t.Cleanup(b.r.Close)
	if o := b.observed(job); o.Client != scheduler.ClientClosed ||
		!strings.HasSuffix(o.ClientDetail, "takes no jobs (it is ineligible)") {
		t.Errorf("to another leader: %+v", o)
	}
	job.ModifyIndex = b.observed(job).ModifyIndex
	b.must(b.r.Start(t.Context(), job))
	o = b.look(job, "why it is not placed", func(o scheduler.Observed) bool { return o.Waiting != nil })
	if o.Waiting.Reason != fsm.ReasonNoCapacity || !strings.HasSuffix(o.Waiting.Detail,
		"takes no jobs (it is ineligible), and its workspace is there") {
		t.Errorf("a start on a client that takes no jobs waits for %+v", o.Waiting)
	}
	b.cli("node", "eligibility", "-enable", home)
	reports.await(t, "the client takes jobs again", job.SandboxID, patience, client(""))
	b.look(job, "placement", func(o scheduler.Observed) bool {
		return o.Up && o.Placement != nil &&
			o.Placement.NodeID == home
	})

	// The deadline still applies.
	b.cli("node", "drain", "-enable", "-yes", "-detach", "-deadline", "3s", home)
	reports.await(t, "stopped at the deadline", job.SandboxID, patience, func(o scheduler.Observed, _ bool) bool {
		return o.Exists && !o.Stopped && o.Live == 0 && o.Placement == nil
	})
}

// A sandbox that was never placed goes elsewhere when its client is drained, and shows what it
// waits for where there is no other.
func TestRunner_Drain_BeforeTheFirstPlacement_MovesOn(t *testing.T) {
	t.Parallel()
	b, memory := twoClients(t)
	filler := b.mock(memory * 9 / 10)
	other := b.mock(memory * 8 / 10)
	for _, job := range []scheduler.Job{filler, other} {
		b.must(b.r.Start(t.Context(), job))
		b.look(job, "placement", func(o scheduler.Observed) bool { return o.Up && o.Placement != nil })
	}
	job := b.mock(memory / 2)
	job.CreatedAt = time.Now()
	b.must(b.r.Start(t.Context(), job))
	b.look(job, "no room", func(o scheduler.Observed) bool { return o.Waiting != nil })
	home := b.volumes(job)[0].NodeID
	b.cli("node", "drain", "-enable", "-yes", "-detach", "-deadline", "10m", home)
	o := b.look(job, "the drain", func(o scheduler.Observed) bool { return o.Client == scheduler.ClientDraining })
	job.ModifyIndex = o.ModifyIndex
	job = b.paused(job)
	err := b.r.Start(t.Context(), job)
	if err == nil || !strings.Contains(err.Error(), "takes no jobs, and no other has room") {
		t.Fatalf("a start where its client is drained and no other has room: %v", err)
	}
	for _, full := range []scheduler.Job{filler, other} {
		b.remove(full)
	}
	b.must(b.r.Start(t.Context(), job))
	o = b.look(job, "placement", func(o scheduler.Observed) bool { return o.Up && o.Placement != nil })
	if o.Placement.NodeID == home {
		t.Error("it runs on the client that is drained")
	}
}

// A drain between the listing and the stream's first frame, which the stream does not report, is
// found, and so is a client that is gone.
func TestWatch_DrainInAGap(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	node := func(id string, drain bool, index uint64) map[string]any {
		return map[string]any{
			"ID": id, "Name": "name-of-" + id, "Status": "ready", "SchedulingEligibility": "eligible", "Drain": drain,
			"ModifyIndex": index,
		}
	}
	f.job("a", "one", "running", started)
	f.job("b", "two", "running", started)
	f.add("/v1/nodes", node("one", false, 5))
	f.add("/v1/nodes", node("two", false, 5))
	w := f.watch()
	client := func(state scheduler.ClientState, words string) func(scheduler.Observed, bool) bool {
		return func(o scheduler.Observed, reported bool) bool {
			return reported && o.Client == state && strings.Contains(o.ClientDetail, words)
		}
	}
	for _, id := range []string{"a", "b"} {
		w.await(t, "the listing", id, patience, client("", ""))
	}
	f.mu.Lock()
	f.index = 890
	f.tables["/v1/nodes"] = []map[string]any{node("one", true, 500)}
	f.mu.Unlock()
	f.frames <- frame(900, map[string]any{"Job": jobRow("other")})
	w.await(t, "a drain in the gap", "a", patience, client(scheduler.ClientDraining, "name-of-one is drained"))
	w.await(t, "a client that left in the gap", "b", patience, client(scheduler.ClientAwayNow, "no longer known to Nomad"))
	f.frames <- frame(910, map[string]any{"Node": node("one", false, 910)})
	w.await(t, "the drain is taken back", "a", patience, client("", ""))
	f.frames <- fmt.Sprintf(`{"Index":920,"Events":[{"Index":920,"Type":"NodeDrain",`+
		`"Payload":{"Node":{"ID":"one","Name":"one",`+
		`"Status":"ready","SchedulingEligibility":"ineligible","DrainStrategy":{"Deadline":1},"ModifyIndex":%d}}}]}`, 920)
	w.await(t, "a drain as events tell it", "a", patience, client(scheduler.ClientDraining, "one is drained"))
}
