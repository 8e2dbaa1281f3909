package scheduler

import "bivouac.dev/bivouac/fsm"

// heldWords is what users are told of a sandbox that a hold keeps from starting.
const heldWords = "the sandbox's job is not there, and the cluster holds: an operator must release the hold before anything is started"

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
		starting(&d, s, &Failure{Detail: heldWords})
		return d
	}
	d := planWished(s)
	d.Step = StepNone
	return d
}
