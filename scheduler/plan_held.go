package scheduler

import (
	"time"

	"bivouac.dev/bivouac/fsm"
)

// heldWords is what users are told of a sandbox that a hold keeps from starting.
const heldWords = "the sandbox's job is not there, and the cluster holds: it is started when an operator releases the hold, or when you resume it"

// planHeld decides for a sandbox that is left as it is: its status stays true,
// and a job that runs is adopted.
func planHeld(s Situation) Decision {
	o := s.Observed
	switch {
	case s.Sandbox.Desired == fsm.DesiredDeleted:
		return Decision{}
	case !s.Known || o.Foreign:
	case s.Sandbox.Desired == fsm.DesiredPaused && o.Exists && !o.Stopped:
		return Decision{Step: StepAdopt}
	case s.Sandbox.Desired == fsm.DesiredRunning && (!o.Exists || o.Stopped):
		d := Decision{Observe: true, Status: newStatus(s)}
		if d.Status.State != fsm.SandboxError {
			// Not STARTING: nothing starts it, and clients would wait.
			fail(&d, s, &Failure{Reason: fsm.ReasonHeld, Detail: heldWords})
		}
		return d
	}
	d := planWished(s)
	d.Step = StepNone
	return d
}

// unsurePause is the time between two looks at a step that waits for the mark.
const unsurePause = 2 * time.Second

// planUnsure keeps a decision from stopping or removing what no user asked to be
// stopped or removed: the state may be older than what was done in the backend,
// and the mark does not say that it is not.
func planUnsure(d *Decision, s Situation) {
	if d.Step != StepStop && d.Step != StepRemove || askedFor(s, d.Status.State) {
		return
	}
	d.Step, d.Observe = StepNone, false
	wake(d, s.Now.Add(unsurePause))
}

// askedFor reports whether a stop or a removal is part of what the user asked
// for last, and was not done since. state is what the sandbox is to be shown in.
func askedFor(s Situation, state fsm.SandboxState) bool {
	sb := s.Sandbox
	switch sb.Desired {
	case fsm.DesiredRunning:
		// What a former try left is in the way of a start. Once the sandbox ran,
		// or failed, whatever stops it is the leader's own doing.
		return state == fsm.SandboxStarting
	case fsm.DesiredPaused:
		done := sb.Status.State == fsm.SandboxPaused && sb.Status.Generation == sb.Generation
		return !done && sb.PausedBy != fsm.PausedByIdle && sb.PausedBy != fsm.PausedByMaxRunning
	case fsm.DesiredDeleted:
		return !sb.KeepWorkspace && !sb.Member()
	}
	return false
}
