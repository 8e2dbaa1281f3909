package scheduler_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// While the mark can't be read, a stop or a removal must belong to a user's request.
func TestPlan_Unsure(t *testing.T) {
	running := fsm.SandboxStatus{State: fsm.SandboxRunning, Generation: 1, Placement: here}
	failed := fsm.SandboxStatus{State: fsm.SandboxError, Reason: fsm.ReasonHealth, Generation: 1}
	another := fsm.SandboxStatus{State: fsm.SandboxError, Reason: fsm.ReasonWorkspace, Detail: "another", Generation: 1}
	placed := scheduler.Observed{SandboxID: "a", Exists: true, ModifyIndex: 7, Live: 1, Placement: here}
	keyless := scheduler.Observed{
		SandboxID:   "a",
		Exists:      true,
		ModifyIndex: 7,
		Failure:     &scheduler.Failure{Reason: fsm.ReasonSecretStore},
	}
	gone := scheduler.Observed{SandboxID: "a"}
	lost := well
	lost.Proven, lost.Failure = false, &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "another"}
	with := func(sb *fsm.Sandbox, change func(sb *fsm.Sandbox)) *fsm.Sandbox {
		sb.UserID = "u1"
		if change != nil {
			change(sb)
		}
		return sb
	}
	policy := func(reason string) func(*fsm.Sandbox) { return func(sb *fsm.Sandbox) { sb.PausedBy = reason } }
	for _, c := range []struct {
		name  string
		sb    *fsm.Sandbox
		o     scheduler.Observed
		probe scheduler.ProbeResult
		want  scheduler.Step
	}{
		{
			"a start",
			with(sandbox(fsm.DesiredRunning, 1, fsm.SandboxStatus{State: fsm.SandboxStarting, Generation: 1}), nil),
			gone,
			well,
			scheduler.StepStart,
		},
		{
			"a resume over a failed start",
			with(sandbox(fsm.DesiredRunning, 2, failed), nil),
			placed,
			silent(1, epoch),
			scheduler.StepStop,
		},
		{
			"a start without its key",
			with(sandbox(fsm.DesiredRunning, 1, fsm.SandboxStatus{State: fsm.SandboxStarting, Generation: 1}), nil),
			keyless,
			well,
			scheduler.StepStop,
		},
		{"another's workspace", with(sandbox(fsm.DesiredRunning, 1, another), nil), placed, lost, scheduler.StepNone},
		{"a user's pause", with(sandbox(fsm.DesiredPaused, 2, running), nil), placed, well, scheduler.StepStop},
		{
			"a pause for the user's limit",
			with(sandbox(fsm.DesiredPaused, 2, running), policy(fsm.PausedByLimit)),
			placed,
			well,
			scheduler.StepStop,
		},
		{
			"a pause for being idle",
			with(sandbox(fsm.DesiredPaused, 2, running), policy(fsm.PausedByIdle)),
			placed,
			well,
			scheduler.StepNone,
		},
		{
			"a pause for the running time",
			with(sandbox(fsm.DesiredPaused, 2, running), policy(fsm.PausedByMaxRunning)),
			placed,
			well,
			scheduler.StepNone,
		},
		{
			"what runs and was paused long ago",
			with(sandbox(fsm.DesiredPaused, 2, fsm.SandboxStatus{State: fsm.SandboxPaused, Generation: 2}),
				nil), placed, well, scheduler.StepNone,
		},
		{"a user's deletion", with(sandbox(fsm.DesiredDeleted, 2, running), nil), gone, well, scheduler.StepRemove},
		{
			"a policy's deletion",
			with(sandbox(fsm.DesiredDeleted, 2, running),
				func(sb *fsm.Sandbox) { sb.KeepWorkspace = true }), gone, well, scheduler.StepNone,
		},
		{
			"a pool's member",
			with(sandbox(fsm.DesiredDeleted, 2, running),
				func(sb *fsm.Sandbox) { sb.UserID = "" }), gone, well, scheduler.StepNone,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := scheduler.Situation{
				Sandbox: c.sb, Known: true, Observed: c.o, Probe: c.probe, Limits: limits, Now: epoch.Add(30 * time.Second),
				FailedSince: epoch,
			}
			sure := scheduler.Plan(s)
			s.Unsure = true
			d := scheduler.Plan(s)
			if d.Step != c.want {
				t.Errorf("step %q, want %q", d.Step, c.want)
			}
			if waits := sure.Step != d.Step; waits && (d.Observe || d.Wake.IsZero()) {
				t.Errorf("it waits for the mark and says %+v", d)
			}
			if sure.Step == scheduler.StepNone {
				t.Error("with the mark there would be no step: the case shows nothing")
			}
		})
	}
}

// A hold keeps a sandbox without a job from starting, and its status says so. It starts when the
// hold ends, or when the job exists again.
func TestPlan_Held_SaysSo(t *testing.T) {
	sb := sandbox(fsm.DesiredRunning, 1, fsm.SandboxStatus{State: fsm.SandboxRunning, Generation: 1, Placement: here})
	s := scheduler.Situation{
		Sandbox:  sb,
		Known:    true,
		Observed: scheduler.Observed{SandboxID: "a"},
		Limits:   limits,
		Now:      epoch,
		Held:     true,
	}
	d := scheduler.Plan(s)
	if d.Step != scheduler.StepNone || !d.Observe || d.Status.State != fsm.SandboxError ||
		d.Status.Reason != fsm.ReasonHeld {
		t.Fatalf("held: %+v", d)
	}
	sb.Status = d.Status
	if again := scheduler.Plan(s); again.Status != d.Status || again.Step != scheduler.StepNone {
		t.Errorf("held, again: %+v", again)
	}
	unheard := s
	unheard.Known, unheard.Held = false, false
	if d := scheduler.Plan(unheard); d.Status.State != fsm.SandboxError {
		t.Errorf("before the first listing: %+v", d)
	}
	back := s
	back.Observed = scheduler.Observed{SandboxID: "a", Exists: true, ModifyIndex: 7, Live: 1, Placement: here}
	back.Probe = well
	if d := scheduler.Plan(back); d.Step != scheduler.StepNone || d.Status.State != fsm.SandboxRunning {
		t.Errorf("its job is back: %+v", d)
	}
	s.Held, s.Now = false, epoch.Add(time.Hour)
	s.Limits.TermStart = s.Now.Add(-time.Minute)
	if d := scheduler.Plan(s); d.Step != scheduler.StepStart || d.Status.State != fsm.SandboxStarting {
		t.Errorf("released: %+v", d)
	}
}
