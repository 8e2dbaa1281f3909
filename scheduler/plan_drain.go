package scheduler

import "bivouac.dev/bivouac/fsm"

// planDrained plans for a sandbox that should run, on a client that is drained or takes no jobs.
// It reports whether it did. A sandbox on a drained client is paused. Its desired state stays
// running, and it is started when the client takes jobs again, because its workspace is there.
func planDrained(d *Decision, s Situation) bool {
	o, st := s.Observed, &d.Status
	gone := !o.Exists || o.Stopped
	switch {
	case st.State == fsm.SandboxError:
		return planDrainedError(d, s)
	case gone && o.Live == 0:
		return pausedByClient(d, s)
	case !closed(o):
		return false
	case gone:
		at := s.StoppingSince.Add(s.Limits.Stop)
		if st.State != fsm.SandboxRunning || !s.Now.Before(at) {
			return false
		}
		d.Observe = false
		wake(d, at)
	case o.Failure != nil:
		return false
	case o.Placement == nil && !mayBeClaimed(s.Sandbox):
		// Nomad stopped it, or would wait for the client.
		d.Step, d.Observe = StepStop, false
	case o.Placement == nil:
		st.Reason, st.Detail = fsm.ReasonClient, o.ClientDetail+"; the member is replaced"
	case o.Client != ClientDraining || st.State != fsm.SandboxRunning:
		return false
	default:
		if !byAllocation(s) {
			d.Probe = o.Placement
		}
		if !mayBeClaimed(s.Sandbox) {
			d.Step = StepStop
		}
		st.Reason, st.Detail = fsm.ReasonClient, o.ClientDetail+"; the sandbox is being paused"
	}
	return true
}

// mayBeClaimed reports whether a start may claim the member of a pool. Its row says first that its
// client is drained, which ends that, and its job is stopped then: the user would get a workspace
// on that client.
func mayBeClaimed(sb *fsm.Sandbox) bool {
	return sb.Member() && sb.Status.State == fsm.SandboxRunning && sb.Status.Reason != fsm.ReasonClient
}

// planDrainedError plans for a sandbox in ERROR whose workspace an operator moves off its client: nothing
// of it may run then. It reports whether it did.
func planDrainedError(d *Decision, s Situation) bool {
	o := s.Observed
	if s.Mark != fsm.ClientDraining || o.Client != ClientDraining || !movableInError(s.Sandbox) {
		return false
	}
	d.Step, d.Observe = stopUnless(!o.Exists || o.Stopped), false
	return true
}

// movableInError reports whether a sandbox in ERROR has a workspace of its own that can be moved. It is
// started again where it is then.
func movableInError(sb *fsm.Sandbox) bool {
	st := sb.Status
	if sb.Desired != fsm.DesiredRunning || st.Generation != sb.Generation || st.State != fsm.SandboxError ||
		st.Workspace == "" {
		return false
	}
	return st.Reason != fsm.ReasonWorkspace && st.Reason != fsm.ReasonForeignJob && st.Reason != fsm.ReasonHeld
}

// closed reports whether a client is known to take no jobs.
func closed(o Observed) bool { return o.Client == ClientDraining || o.Client == ClientClosed }

// pausedByClient makes the status PAUSED for a sandbox without a live allocation while its client
// takes no jobs. A sandbox that never ran may start elsewhere.
func pausedByClient(d *Decision, s Situation) bool {
	o, st := s.Observed, &d.Status
	waits := st.State == fsm.SandboxPaused && st.Reason == fsm.ReasonClient
	if !closed(o) && (!waits || o.Client == "") || !ran(*st) {
		return false
	}
	if st.State != fsm.SandboxPaused {
		st.State, st.Since = fsm.SandboxPaused, micro(s.Now)
	}
	st.Placement, st.Reason = nil, fsm.ReasonClient
	st.Detail = o.ClientDetail + "; the sandbox is resumed when the client takes jobs again"
	return true
}

// ran reports whether the sandbox was ever RUNNING, as far as its status says.
func ran(st fsm.SandboxStatus) bool {
	return st.State != fsm.SandboxStarting || st.Workspace != "" || st.Job.Registered
}
