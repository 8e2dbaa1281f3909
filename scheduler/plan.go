package scheduler

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/access"
)

// Plan decides the next step for one sandbox and its status. It is pure. From any situation,
// repeated with the effects of its steps, it reaches the desired state. It never starts a job
// while an allocation of the sandbox is or may be live.
func Plan(s Situation) Decision {
	switch {
	case s.Sandbox == nil:
		return planOrphan(s)
	case s.Stranger:
		// For this sandbox the job is foreign.
		s.Observed = Observed{SandboxID: s.Observed.SandboxID, Foreign: true}
	}
	if s.Held {
		return planHeld(s)
	}
	d := planDesired(s)
	if s.Unsure {
		planUnsure(&d, s)
	}
	return d
}

// planDesired plans by the sandbox's desired state.
func planDesired(s Situation) Decision {
	switch s.Sandbox.Desired {
	case fsm.DesiredRunning:
		return planRunning(s)
	case fsm.DesiredPaused:
		return planPaused(s)
	case fsm.DesiredDeleted:
		return planDeleted(s)
	}
	return Decision{}
}

// newStatus returns the status of the sandbox's present generation: the row's, or a new STARTING
// when no observation covers the generation yet.
func newStatus(s Situation) fsm.SandboxStatus {
	sb := s.Sandbox
	if sb.Status.Generation >= sb.Generation {
		return sb.Status
	}
	return fsm.SandboxStatus{
		State: fsm.SandboxStarting, Generation: sb.Generation, Since: sb.DesiredAt, Job: sb.Status.Job,
		Workspace: sb.Status.Workspace, Proven: sb.Status.Proven, Challenged: sb.Status.Challenged,
		Acceptance: sb.Status.Acceptance,
	}
}

func planRunning(s Situation) Decision {
	d := Decision{Observe: true, Status: newStatus(s)}
	o := s.Observed
	if st := &d.Status; s.Known && st.State == fsm.SandboxError && st.Reason == fsm.ReasonHeld {
		// The hold is over, or the job exists again.
		st.State, st.Since, st.Reason, st.Detail = fsm.SandboxStarting, micro(s.Now), "", ""
	}
	gone := !o.Exists || o.Stopped
	// No start was accepted for this generation yet, so the job is from an earlier one.
	leftover := s.Sandbox.Status.Generation < s.Sandbox.Generation && s.Attempted < s.Sandbox.Generation
	switch {
	case !s.Known:
		// The agent server of a running sandbox can be probed without a listing.
		if !byAllocation(s) {
			d.Probe = d.Status.Placement
		}
		planAway(&d, s)
	case o.Foreign:
		fail(&d, s, &Failure{
			Reason: fsm.ReasonForeignJob,
			Detail: "a job with this sandbox's name belongs to somebody else; it was left alone",
		})
	case planMarked(&d, s):
	case planDrained(&d, s):
	case gone && o.Live > 0:
		starting(&d, s, &Failure{Detail: "waiting for the former copy of the sandbox to stop"})
		overdue(&d, s, fsm.ReasonScheduler, "the former copy of the sandbox has not stopped")
	case gone:
		planAbsent(&d, s)
	case o.Rotations != s.Sandbox.Rotations:
		planFormerKey(&d, s)
	case leftover && (o.Failure != nil || s.Sandbox.Status.State == fsm.SandboxError) && !healthy(s):
		d.Step = StepStop
		starting(&d, s, &Failure{Detail: "stopping what is left of the failed start"})
		overdue(&d, s, fsm.ReasonScheduler, "what is left of the failed start could not be stopped")
		// Once the generation is observed, an existing job counts as its own, for the next leader
		// too. The API shows STARTING all the same.
		d.Observe = d.Status.State == fsm.SandboxError
	case o.Failure != nil && o.Failure.Reason == fsm.ReasonSecretStore &&
		(d.Status.State != fsm.SandboxError || secretUnavailable(d.Status)):
		planSecretUnavailable(&d, s)
	case o.Failure != nil:
		fail(&d, s, o.Failure)
	case leftover && mayBeStopped(s):
		// RUNNING follows once the index has moved, because a late stop then fails.
		d.Step = StepTakeOver
		if !byAllocation(s) {
			d.Probe = o.Placement
		}
		starting(&d, s, nil)
		overdue(&d, s, fsm.ReasonScheduler, "the job that still runs could not be taken over")
	case o.Placement == nil:
		planUnplaced(&d, s)
	default:
		planPlaced(&d, s)
	}
	d.Observe = d.Observe && !uninformative(d, s)
	return d
}

// mayBeStopped reports whether a stop for an earlier desired state may still reach the running
// job: a pause that was taken back before it was confirmed. A claim follows no pause, a hold
// changes no job, and a take-over that the backend refused is not repeated.
func mayBeStopped(s Situation) bool {
	sb := s.Sandbox
	claim := sb.Claimed && sb.CreatedAt.Equal(sb.DesiredAt)
	return sb.Generation > 1 && !claim && !s.Held && s.StepFailed == nil && !s.TakeOverRefused
}

// uninformative reports whether the status is not worth a command, which would only delay RUNNING:
// for a generation without an observation the API shows STARTING anyway.
func uninformative(d Decision, s Situation) bool {
	st := s.Sandbox.Status
	return st.Generation < s.Sandbox.Generation && st.State != fsm.SandboxError &&
		d.Status.State == fsm.SandboxStarting && d.Status.Reason+d.Status.Detail == ""
}

// planFormerKey plans for a job that has another key than the row. Tasks get their key when they
// start, so the job is stopped, and started when nothing of it is left. The row keeps the status
// until then, so that the conversations are paused first.
func planFormerKey(d *Decision, s Situation) {
	d.Step = StepStop
	overdue(d, s, fsm.ReasonScheduler, "the copy of the sandbox with the former key has not stopped")
	d.Observe = d.Status.State == fsm.SandboxError
}

// planAway plans while nothing is known about the job yet.
func planAway(d *Decision, s Situation) {
	if d.Status.State == fsm.SandboxStarting && s.Away != nil {
		starting(d, s, s.Away)
		overdue(d, s, s.Away.Reason, s.Away.Detail)
	}
}

// planAbsent plans for a missing or stopped job without a live allocation.
func planAbsent(d *Decision, s Situation) {
	switch {
	case s.StepFailed != nil:
		fail(d, s, s.StepFailed)
	case secretUnavailable(d.Status):
		d.Step = StepStart
	case d.Status.State == fsm.SandboxError:
	default:
		why := s.Away
		if d.Status.State == fsm.SandboxRunning {
			why = &Failure{Detail: "the job was gone; starting it again"}
		}
		starting(d, s, why)
		if s.Away != nil {
			overdue(d, s, s.Away.Reason, s.Away.Detail)
		} else {
			overdue(d, s, fsm.ReasonStartTimeout, "the job could not be started")
		}
		if d.Status.State == fsm.SandboxStarting {
			d.Step = StepStart
		}
	}
}

// lateRetry is the pause before another start of a sandbox that ran and whose key could not be
// fetched before the deadline.
const lateRetry = time.Minute

// secretUnavailable reports whether a sandbox that ran is in ERROR because of the secret store
// alone. The store is expected to come back, so starts are retried without end.
func secretUnavailable(st fsm.SandboxStatus) bool {
	return st.State == fsm.SandboxError && st.Reason == fsm.ReasonSecretStore && st.Workspace != ""
}

// planSecretUnavailable plans for a task that ended because its key could not be fetched, at its
// start or later. The secret store is expected to come back, so the start is retried until the
// deadline, and after it at a slower pace for a sandbox that ran.
func planSecretUnavailable(d *Decision, s Situation) {
	f, pause := s.Observed.Failure, s.Limits.Retry
	starting(d, s, f)
	overdue(d, s, f.Reason, f.Detail)
	if d.Status.State != fsm.SandboxStarting {
		if !secretUnavailable(d.Status) {
			return
		}
		pause = lateRetry
	}
	if at := s.FailedSince.Add(pause); s.Now.Before(at) {
		wake(d, at)
		return
	}
	d.Step = StepStop
}

// planUnplaced plans for a job without an allocation to probe.
func planUnplaced(d *Decision, s Situation) {
	if d.Status.State == fsm.SandboxError {
		return
	}
	w := s.Observed.Waiting
	starting(d, s, w)
	if w != nil && w.Reason == fsm.ReasonNoCapacity && !s.UnplacedSince.IsZero() {
		at := s.UnplacedSince.Add(s.Limits.Placement)
		if !s.Now.Before(at) {
			fail(d, s, w)
			return
		}
		wake(d, at)
	}
	if w != nil {
		overdue(d, s, w.Reason, w.Detail)
	} else {
		overdue(d, s, fsm.ReasonStartTimeout, "no client was given the sandbox's task")
	}
}

// quietProbe is how long an agent server may fail its probes after the placement before the
// status says so. Nearly every server does for a moment.
const quietProbe = 3 * time.Second

// planPlaced plans for a job with an address to probe.
func planPlaced(d *Decision, s Situation) {
	p := s.Observed.Placement
	if !byAllocation(s) {
		d.Probe = p
	}
	same := samePlacement(d.Status.Placement, p)
	if healthy(s) {
		if d.Status.State != fsm.SandboxRunning || !same {
			d.Status.Since = micro(s.Now)
		}
		d.Status.State, d.Status.Reason, d.Status.Detail = fsm.SandboxRunning, "", ""
		d.Status.Placement = p
		d.Status.Job = fsm.JobRef{Version: s.Observed.Version, Registered: true}
		d.Status.Challenged = d.Status.Challenged || s.Probe.Challenged
		if s.Probe.Deferred {
			d.Status.Job = fsm.JobRef{}
		}
		// Only after RUNNING is in the row: the answer to the claim does not wait for this step.
		if s.Observed.Spare && !s.Sandbox.Member() && s.Sandbox.Status.State == fsm.SandboxRunning {
			d.Step = StepRaise
		}
		if s.Probe.Marker != "" {
			d.Status.Workspace, d.Status.Acceptance = s.Probe.Marker, s.Probe.Acceptance
			d.Status.Proven = p.AllocID
		}
		return
	}
	if planLost(d, s) {
		return
	}
	switch d.Status.State {
	case fsm.SandboxError:
	case fsm.SandboxRunning:
		if !same {
			starting(d, s, &Failure{Detail: "the sandbox was placed anew"})
			d.Status.Placement = p
			return
		}
		if pr := s.Probe; probed(s) && pr.Failures >= s.Limits.HealthFailures {
			at := pr.FailingSince.Add(s.Limits.Health)
			if s.Now.Before(at) {
				wake(d, at)
				return
			}
			fail(d, s, withWaiting(pr.Failure, s.Observed.Waiting))
			d.Status.Placement = p
		}
	default:
		why := s.Observed.Waiting
		if probed(s) && s.Probe.Failure != nil && (why == nil || s.Probe.Answering) {
			why = s.Probe.Failure
		}
		if at := s.Probe.FailingSince.Add(quietProbe); why != nil && why == s.Probe.Failure &&
			why.Reason == fsm.ReasonHealth && s.Now.Before(at) {
			starting(d, s, nil)
			wake(d, at)
		} else {
			starting(d, s, why)
		}
		d.Status.Placement = p
		if why == nil && byAllocation(s) {
			why = &Failure{Detail: "the backend has not said that the task runs"}
		}
		if why == nil {
			why = &Failure{
				Reason: fsm.ReasonHealth,
				Detail: "the agent server at " + access.AgentURL(p) + " was not asked in time",
			}
		}
		overdue(d, s, why.Reason, why.Detail)
	}
}

// planLost reports whether the workspace is not the sandbox's, and plans for that. The row gets
// the reason before the job is stopped: a stopped job shows no reason and would be started again,
// by this leader or the next. Once the row has it the job is stopped, even if its server fails
// for another reason by then.
func planLost(d *Decision, s Situation) bool {
	f := s.Probe.Failure
	if !probed(s) || f == nil {
		return false
	}
	if d.Status.State == fsm.SandboxError && d.Status.Reason == fsm.ReasonWorkspace {
		d.Step = StepStop
		return true
	}
	if f.Reason != fsm.ReasonWorkspace {
		return false
	}
	fail(d, s, f)
	return true
}

func planPaused(s Situation) Decision {
	d := Decision{Observe: true, Status: s.Sandbox.Status}
	o := s.Observed
	switch {
	case !s.Known && s.Away != nil:
		stopping(&d, s)
	case !s.Known:
		d.Observe = false
	case o.Exists && !o.Foreign && !o.Stopped && s.Now.Before(s.Sandbox.StopAt):
		d.Observe = false
		wake(&d, s.Sandbox.StopAt)
	case o.Exists && !o.Foreign && !o.Stopped:
		d.Step = StepStop
		stopping(&d, s)
	case o.Live > 0 && !o.Foreign:
		stopping(&d, s)
	default:
		st := &d.Status
		if st.State != fsm.SandboxPaused {
			st.Since = micro(s.Now)
		}
		st.State, st.Reason, st.Detail = fsm.SandboxPaused, "", ""
		st.Generation, st.Placement = s.Sandbox.Generation, nil
	}
	return d
}

// planDeleted stops the job first, because a workspace can't be deleted while a task uses it. If
// it does not stop in time, the removal goes on without waiting.
func planDeleted(s Situation) Decision {
	o := s.Observed
	at := latest(latest(s.Sandbox.DesiredAt, s.Limits.TermStart), s.Limits.Released).Add(s.Limits.Stop)
	late := !s.Now.Before(at)
	switch {
	case !s.Known:
		return Decision{}
	case late || o.Foreign:
	case o.Exists && !o.Stopped:
		return Decision{Step: StepStop, Wake: at}
	case o.Live > 0:
		return Decision{Wake: at}
	}
	return Decision{Step: StepRemove}
}

// stopping keeps the row's status until the deadline of a pause.
func stopping(d *Decision, s Situation) {
	from := latest(s.Sandbox.DesiredAt, s.Sandbox.StopAt)
	at := latest(latest(from, s.Limits.TermStart), s.Limits.Released).Add(s.Limits.Stop)
	if s.Now.Before(at) {
		d.Observe = false
		wake(d, at)
		return
	}
	d.Status.Generation = s.Sandbox.Generation
	why := s.Away
	if why == nil {
		why = &Failure{Reason: fsm.ReasonScheduler, Detail: "the sandbox has not stopped within " + s.Limits.Stop.String()}
	}
	fail(d, s, why)
}

// starting makes the status STARTING with the reason why, unless it is ERROR already: an ERROR of
// this generation ends with a healthy probe or a resume.
func starting(d *Decision, s Situation, why *Failure) {
	st := &d.Status
	if st.State == fsm.SandboxError {
		return
	}
	if st.State != fsm.SandboxStarting {
		st.State, st.Since = fsm.SandboxStarting, micro(s.Now)
	}
	st.Reason, st.Detail, st.Placement = "", "", nil
	if why != nil {
		st.Reason, st.Detail = why.Reason, why.Detail
	}
}

// overdue turns STARTING into ERROR when its deadline has passed, and otherwise requests a pass
// at the deadline.
func overdue(d *Decision, s Situation, reason, detail string) {
	if d.Status.State != fsm.SandboxStarting {
		return
	}
	limit := s.Sandbox.Template.StartTimeout
	if limit <= 0 {
		limit = s.Limits.Start
	}
	quarter := limit / 4
	begin := latest(latest(d.Status.Since, s.Sandbox.DesiredAt), s.Limits.Released)
	at := begin.Add(limit)
	if more, bound := s.ProgressAt.Add(limit), begin.Add(s.Limits.Progress); more.After(at) {
		// An image was pulled: the steps after it get the whole time.
		limit = min(more.Sub(begin), max(bound.Sub(begin), limit)).Round(time.Second)
		at = begin.Add(limit)
	}
	if again := s.Limits.TermStart.Add(quarter); again.After(at) {
		at = again
	}
	if s.Now.Before(at) {
		wake(d, at)
		return
	}
	reason = cmp.Or(reason, fsm.ReasonStartTimeout)
	p := d.Status.Placement
	fail(d, s, &Failure{Reason: reason, Detail: fmt.Sprintf("not running after %s: %s", limit, detail)})
	d.Status.Placement = p
}

// fail makes the status ERROR.
func fail(d *Decision, s Situation, f *Failure) {
	st := &d.Status
	if st.State == fsm.SandboxError && st.Reason == f.Reason {
		if more := clipped(fsm.SandboxStatus{Detail: f.Detail}).Detail; strings.HasPrefix(more, st.Detail) {
			st.Detail = more // the last output of a crashed task arrives a moment later
		}
		return
	}
	if st.State != fsm.SandboxError {
		st.State, st.Since = fsm.SandboxError, micro(s.Now)
	}
	st.Reason, st.Detail, st.Placement = f.Reason, f.Detail, nil
}

func wake(d *Decision, at time.Time) {
	if d.Wake.IsZero() || at.Before(d.Wake) {
		d.Wake = at
	}
}

// probed reports whether the probe is of the present placement.
func probed(s Situation) bool {
	p := s.Observed.Placement
	return p != nil && s.Probe.AllocID == p.AllocID && s.Probe.URL == access.AgentURL(p) &&
		s.Probe.KeyRef == s.Sandbox.KeyRef
}

func healthy(s Situation) bool {
	if byAllocation(s) {
		return s.Observed.Placement != nil && s.Observed.Up
	}
	return probed(s) && s.Probe.Answering && s.Probe.Proven
}

// byAllocation reports whether the sandbox is ready when the backend says that its task runs.
func byAllocation(s Situation) bool {
	return s.Sandbox.Template.Readiness == fsm.ReadinessAllocation
}

func samePlacement(a, b *fsm.Placement) bool {
	return a != nil && b != nil && a.AllocID == b.AllocID && access.AgentURL(a) == access.AgentURL(b)
}

// micro returns a time with the precision of a command, in UTC.
func micro(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
