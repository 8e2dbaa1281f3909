package scheduler

import (
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// withMarks returns the observation as operators' marks make it. What is said to run on a client that
// is lost does not. A sandbox that was moved is not on the client that its former job names.
func withMarks(v *fsm.View, sb *fsm.Sandbox, o Observed) Observed {
	if sb == nil {
		return o
	}
	lost := func(client string) bool { return v.ClientMark(client) == fsm.ClientLost }
	if on := strings.Fields(o.LiveOn); slices.ContainsFunc(on, lost) {
		on = slices.DeleteFunc(on, lost)
		o.Live, o.LiveOn = len(on), strings.Join(on, " ")
	}
	if o.Placement != nil && lost(o.Placement.NodeID) {
		o.Placement, o.Up, o.Failure, o.Waiting = nil, false, nil, nil
	}
	if sb.Home != nil && o.Home != sb.Home.Client {
		o.Home, o.Client, o.ClientDetail = sb.Home.Client, "", ""
	}
	if home := homeOf(sb, o); drains(v, home, sb) {
		o.Client, o.ClientDetail = ClientDraining, "its Nomad client "+home+" is drained (bivouac operator client drain)"
	}
	return o
}

// planMarked plans for a sandbox that should run and whose client an operator has marked as lost, or
// whose workspace is being moved. It reports whether it did.
func planMarked(d *Decision, s Situation) bool {
	o, st, sb := s.Observed, &d.Status, s.Sandbox
	gone := !o.Exists || o.Stopped
	if s.Mark != fsm.ClientLost {
		if sb.Move == nil || !gone || o.Live > 0 {
			return false
		}
		if st.State != fsm.SandboxPaused {
			st.State, st.Since = fsm.SandboxPaused, micro(s.Now)
		}
		st.Placement, st.Reason = nil, fsm.ReasonClient
		st.Detail = "the workspace is being moved from the Nomad client " + sb.Move.From
		if sb.Move.Orphan != "" {
			st.Detail = "the workspace is being restored from what the Nomad client " + sb.Move.From + " has"
		}
		st.Detail = whileMoving(st.Detail, s)
		return true
	}
	home := homeOf(sb, o)
	if st.State == fsm.SandboxError && !clientsFault(st.Reason) {
		return false
	}
	if sb.Copy == nil && ran(*st) {
		d.Step = stopUnless(gone)
		fail(d, s, &Failure{Reason: fsm.ReasonWorkspace, Detail: "the Nomad client " + home +
			" was lost for good, and there is no copy of the workspace: delete the sandbox"})
		return true
	}
	d.Step = stopUnless(gone)
	if st.State != fsm.SandboxStarting {
		st.State, st.Since = fsm.SandboxStarting, micro(s.Now)
	}
	st.Placement, st.Reason, st.Detail = nil, fsm.ReasonClient, "the Nomad client "+home+" was lost for good;"+
		" the sandbox gets another"
	if sb.Copy != nil {
		st.Detail = "the Nomad client " + home + " was lost for good; " +
			"the workspace comes back from the copy of " + sb.Copy.At.UTC().Format(time.RFC3339)
	}
	st.Detail = whileMoving(st.Detail, s)
	return true
}

func stopUnless(gone bool) Step {
	if gone {
		return StepNone
	}
	return StepStop
}

// whileMoving adds to a detail why the sandbox's workspace is not where it should be yet.
func whileMoving(detail string, s Situation) string {
	if s.MoveFailure != "" {
		detail += "; the last try failed: " + s.MoveFailure
	}
	if s.Holding {
		detail += "; the cluster holds: it goes on when an operator releases the hold"
	}
	return detail
}

// clientsFault reports whether a sandbox may be in ERROR for a reason because its client is lost.
func clientsFault(reason string) bool {
	switch reason {
	case fsm.ReasonScheduler, fsm.ReasonHealth, fsm.ReasonNoCapacity, fsm.ReasonStartTimeout, fsm.ReasonClient:
		return true
	}
	return false
}
