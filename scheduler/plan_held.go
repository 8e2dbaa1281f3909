package scheduler

import (
	"time"

	"bivouac.dev/bivouac/fsm"
)

// heldDetail is the detail users see of a sandbox that a hold keeps from starting.
const heldDetail = "the sandbox's job is not there, and the cluster holds: " +
	"it is started when an operator releases the hold, or when you resume it"

// planHeld plans for a sandbox under a hold, which takes no step on its job: its status still
// follows the observation, and a running job is adopted.
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
		if st := d.Status; st.State != fsm.SandboxError && (st.State != fsm.SandboxPaused || st.Reason != fsm.ReasonClient) {
			// Not STARTING: nothing starts it, and clients would wait.
			fail(&d, s, &Failure{Reason: fsm.ReasonHeld, Detail: heldDetail})
		}
		return d
	}
	d := planDesired(s)
	d.Step = StepNone
	return d
}

// unsurePause is the time between two looks at a step that waits for the mark.
const unsurePause = 2 * time.Second

// planUnsure drops a stop or removal that no user requested. The state may be older than what was
// done in the backend, and the mark does not exclude that.
func planUnsure(d *Decision, s Situation) {
	if d.Step != StepStop && d.Step != StepRemove || askedFor(s, d.Status.State) {
		return
	}
	d.Step, d.Observe = StepNone, false
	wake(d, s.Now.Add(unsurePause))
}

// askedFor reports whether a stop or a removal belongs to the user's last request and was not
// done since. state is the sandbox's new state.
func askedFor(s Situation, state fsm.SandboxState) bool {
	sb := s.Sandbox
	switch sb.Desired {
	case fsm.DesiredRunning:
		// The remains of an earlier try are in the way of a start. Once the sandbox ran or
		// failed, the leader stops it on its own.
		return state == fsm.SandboxStarting
	case fsm.DesiredPaused:
		done := sb.Status.State == fsm.SandboxPaused && sb.Status.Generation == sb.Generation
		return !done && sb.PausedBy != fsm.PausedByIdle && sb.PausedBy != fsm.PausedByMaxRunning
	case fsm.DesiredDeleted:
		return !sb.KeepWorkspace && !sb.Member()
	}
	return false
}
