package scheduler_test

import (
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// TestPlan_DrainedMember: the job of a member that a start may claim is not stopped before its row
// says that its client is drained, which ends that. A claim in between would get a workspace on
// that client.
func TestPlan_DrainedMember(t *testing.T) {
	t.Parallel()
	running := fsm.SandboxStatus{State: fsm.SandboxRunning, Generation: 1, Placement: here}
	leaving := running
	leaving.Reason, leaving.Detail = fsm.ReasonClient, "its client is drained"
	starting := fsm.SandboxStatus{State: fsm.SandboxStarting, Generation: 1}
	placed := scheduler.Observed{
		SandboxID: "a", Exists: true, ModifyIndex: 7, Live: 1, Placement: here, Client: scheduler.ClientDraining,
	}
	unplaced := placed
	unplaced.Live, unplaced.Placement = 0, nil
	for _, c := range []struct {
		name string
		sb   *fsm.Sandbox
		o    scheduler.Observed
		want scheduler.Step
	}{
		{"a member that may be claimed", sandbox(fsm.DesiredRunning, 1, running), placed, scheduler.StepNone},
		{"a member that may not", sandbox(fsm.DesiredRunning, 1, leaving), placed, scheduler.StepStop},
		{"a user's sandbox", owned(sandbox(fsm.DesiredRunning, 1, running)), placed, scheduler.StepStop},
		{"Nomad stopped it, it may be claimed", sandbox(fsm.DesiredRunning, 1, running), unplaced, scheduler.StepNone},
		{"Nomad stopped it, it may not", sandbox(fsm.DesiredRunning, 1, leaving), unplaced, scheduler.StepStop},
		{"a member that starts", sandbox(fsm.DesiredRunning, 1, starting), unplaced, scheduler.StepStop},
	} {
		c.o.ClientDetail = "its client is drained"
		d := scheduler.Plan(scheduler.Situation{Sandbox: c.sb, Known: true, Observed: c.o, Now: epoch})
		if d.Step != c.want {
			t.Errorf("%s: the step is %q, want %q", c.name, d.Step, c.want)
		}
		if d.Step == scheduler.StepNone && (!d.Observe || d.Status.Reason != fsm.ReasonClient) {
			t.Errorf("%s: its row would not say why: %s", c.name, words(d))
		}
	}
}

// TestPlan_MoveUnderAHold: a sandbox that its user resumes under a hold, and whose workspace is to be
// moved, says what it waits for.
func TestPlan_MoveUnderAHold(t *testing.T) {
	t.Parallel()
	sb := owned(sandbox(fsm.DesiredRunning, 2, fsm.SandboxStatus{State: fsm.SandboxPaused, Generation: 1}))
	sb.Move = &fsm.Move{From: "n1"}
	for _, holding := range []bool{true, false} {
		d := scheduler.Plan(scheduler.Situation{Sandbox: sb, Known: true, Now: epoch, Holding: holding})
		if got := strings.Contains(d.Status.Detail, "the cluster holds"); got != holding || !d.Observe {
			t.Errorf("holding %t: %s", holding, words(d))
		}
	}
}
