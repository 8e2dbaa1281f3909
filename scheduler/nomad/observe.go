package nomad

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// jobFacts has the fields used of a job; its JSON is Nomad's.
type jobFacts struct {
	ID             string
	Meta           map[string]string
	Stop           bool
	Version        uint64
	Priority       int
	JobModifyIndex uint64
	ModifyIndex    uint64
}

// allocFacts has the fields used of an allocation.
type allocFacts struct {
	ID                string
	JobID             string
	NodeID            string
	NodeName          string
	DesiredStatus     string
	ClientStatus      string
	ClientDescription string
	// JobVersion is set by listings, not by events.
	JobVersion         *uint64
	AllocatedResources *api.AllocatedResources
	TaskStates         map[string]*api.TaskState
	CreateIndex        uint64
	ModifyIndex        uint64
	// sighted is when this runner first saw the allocation in this state of untaken; Nomad's own
	// times come from other clocks. Runner.see sets it.
	sighted time.Time
}

// evalFacts has the fields used of an evaluation.
type evalFacts struct {
	ID             string
	JobID          string
	Status         string
	JobModifyIndex uint64
	FailedTGAllocs map[string]*api.AllocationMetric
	CreateIndex    uint64
	ModifyIndex    uint64
}

// neverTaken is how long a stopped allocation without a report from its client still counts as
// live, from when we first saw it so. The client would have reported many times over.
const neverTaken = 10 * time.Second

// live reports whether the allocation's task runs or may still run. A client that is away
// ("unknown") may be running it.
func (a *allocFacts) live(now time.Time) bool {
	switch a.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return false
	case api.AllocClientStatusPending:
		// A client ignores an allocation that was stopped before the client received it.
		return !a.untaken() || a.sighted.IsZero() || now.Sub(a.sighted) < neverTaken
	}
	return true
}

// untaken reports whether the allocation was stopped before its client reported anything about
// it.
func (a *allocFacts) untaken() bool {
	return a.ClientStatus == api.AllocClientStatusPending && a.DesiredStatus != api.AllocDesiredStatusRun &&
		len(a.TaskStates) == 0
}

// observe makes the scheduler's observation of one job. job is nil when there is none; allocs and
// evals are the job's.
func observe(
	clusterID, sandboxID string, job *jobFacts, allocs []*allocFacts, evals []*evalFacts, now time.Time,
) scheduler.Observed {
	o := scheduler.Observed{SandboxID: sandboxID}
	if job != nil && (job.Meta[metaCluster] != clusterID || job.Meta[metaSandbox] != sandboxID) {
		o.Foreign = true
		return o
	}
	var placed, last *allocFacts
	var on []string
	for _, a := range allocs {
		if a.live(now) {
			o.Live++
			on = append(on, a.NodeID)
			if a.DesiredStatus == api.AllocDesiredStatusRun && (placed == nil || a.CreateIndex > placed.CreateIndex) {
				placed = a
			}
		}
		if last == nil || a.CreateIndex > last.CreateIndex {
			last = a
		}
	}
	slices.Sort(on)
	o.LiveOn = strings.Join(on, " ")
	if last != nil && last.ClientStatus == api.AllocClientStatusUnknown {
		o.Client = scheduler.ClientAwayNow
	}
	if job == nil {
		return o
	}
	o.Exists, o.Stopped, o.ModifyIndex, o.Birth = true, job.Stop, job.JobModifyIndex, job.Meta[metaBirth]
	o.Rotations, _ = strconv.ParseUint(job.Meta[metaRotations], 10, 64) // 0 where there is none
	if job.Stop {
		return o
	}
	o.Spare = job.Priority > 0 && job.Priority < userPriority
	switch {
	case placed != nil:
		o.Placement = placement(placed, job.Meta[metaWorkspace])
		o.Version = job.Version
		if placed.JobVersion != nil {
			o.Version = *placed.JobVersion
		}
		o.Waiting = waitingTask(placed)
		o.Up = placed.ClientStatus == api.AllocClientStatusRunning
	case last != nil && last.CreateIndex > job.JobModifyIndex && last.DesiredStatus == api.AllocDesiredStatusRun:
		o.Failure = failedTask(last)
	default:
		o.Waiting = waitingEval(job, last, evals)
		if o.Waiting != nil && last != nil && last.ClientStatus == api.AllocClientStatusLost {
			o.Waiting.Detail = lostDetail(last) + ": " + o.Waiting.Detail
		}
	}
	nameWorkspace(o.Failure, job.Meta[metaWorkspace])
	nameWorkspace(o.Waiting, job.Meta[metaWorkspace])
	return o
}

// nameWorkspace corrects the reason of a raw_exec failure. The driver has checked that the
// program exists, so what is missing is its working directory, our workspace, or the interpreter
// of a script.
func nameWorkspace(f *scheduler.Failure, dir string) {
	if f == nil || f.Reason != fsm.ReasonDriver || !strings.Contains(f.Detail, "fork/exec") ||
		!strings.Contains(f.Detail, "no such file or directory") {
		return
	}
	f.Reason = fsm.ReasonWorkspace
	f.Detail = "the workspace directory " + dir + " is gone from its Nomad client (or the " +
		"command's interpreter is): " + f.Detail
}

// placement returns where the allocation's task can be reached, nil before Nomad assigned its
// ports.
func placement(a *allocFacts, workspace string) *fsm.Placement {
	if a.AllocatedResources == nil || len(a.AllocatedResources.Shared.Ports) == 0 {
		return nil
	}
	p := &fsm.Placement{AllocID: a.ID, NodeID: a.NodeID, Workspace: workspace, Ports: map[string]int{}}
	for _, port := range a.AllocatedResources.Shared.Ports {
		p.Ports[port.Label] = port.Value
		if p.Address == "" || port.Label == fsm.PortAgentServer {
			p.Address = port.HostIP
		}
	}
	return p
}

// failedTask returns why an allocation that should run has ended.
func failedTask(a *allocFacts) *scheduler.Failure {
	if a.ClientStatus == api.AllocClientStatusLost {
		return &scheduler.Failure{
			Reason: fsm.ReasonScheduler, Detail: lostDetail(a),
		}
	}
	var why *scheduler.Failure
	for _, ev := range newestFirst(a) {
		f := classify(ev)
		switch {
		case f != nil && ev.Type == api.TaskKilling:
			return f // it caused the end of the task
		case why == nil:
			why = f
		}
		if why != nil && ev.Type == api.TaskStarted {
			return why // older events are of the run before
		}
	}
	if why != nil {
		return why
	}
	detail := cmp.Or(a.ClientDescription, "the sandbox's task has ended")
	return &scheduler.Failure{Reason: fsm.ReasonCrashed, Detail: detail}
}

// lostDetail describes a client that Nomad marked as lost.
func lostDetail(a *allocFacts) string {
	return fmt.Sprintf("the Nomad client %s was lost, and the sandbox with it", a.NodeName)
}

// waitingTask returns what a live allocation's task waits for, nil when it runs or has only just
// begun.
func waitingTask(a *allocFacts) *scheduler.Failure {
	if a.ClientStatus == api.AllocClientStatusUnknown {
		return &scheduler.Failure{
			Reason: fsm.ReasonScheduler, Detail: fmt.Sprintf("the Nomad client %s is away, and the sandbox with it", a.NodeName),
		}
	}
	events := newestFirst(a)
	if len(events) == 0 {
		return nil
	}
	switch ev := events[0]; ev.Type {
	case api.TaskStarted:
		return nil
	case api.TaskRestarting:
		for _, before := range events[1:] {
			if f := classify(before); f != nil {
				f.Detail += "; Nomad starts it again"
				return f
			}
		}
		return nil
	case "Template":
		return &scheduler.Failure{Reason: fsm.ReasonSecretStore, Detail: "the task waits for its key: " + ev.DisplayMessage}
	case api.TaskDriverMessage:
		return &scheduler.Failure{
			Detail:   ev.DisplayMessage,
			Progress: strings.Contains(strings.ToLower(ev.DisplayMessage), "image"),
		}
	default:
		return classify(ev)
	}
}

// classify returns the Failure of a task event that reports one, nil for others.
func classify(ev *api.TaskEvent) *scheduler.Failure {
	text := cmp.Or(ev.DisplayMessage, ev.Message)
	low := strings.ToLower(text)
	switch ev.Type {
	case api.TaskDriverFailure, api.TaskSetupFailure, api.TaskFailedValidation, api.TaskArtifactDownloadFailed:
		reason := fsm.ReasonDriver
		switch {
		case strings.Contains(low, "vault"):
			reason = fsm.ReasonSecretStore
		case strings.Contains(low, "image") || strings.Contains(low, "pull"):
			reason = fsm.ReasonImage
		case strings.Contains(low, "volume") || strings.Contains(low, "mount"):
			reason = fsm.ReasonWorkspace
		}
		return &scheduler.Failure{Reason: reason, Detail: text}
	case api.TaskKilling:
		if strings.Contains(low, "template") || strings.Contains(low, "vault") {
			return &scheduler.Failure{Reason: fsm.ReasonSecretStore, Detail: text}
		}
	case api.TaskTerminated:
		detail := "the sandbox's task ended: " + text
		if ev.Details["oom_killed"] == "true" {
			detail = "the sandbox's task was killed because it ran out of memory"
		}
		return &scheduler.Failure{Reason: fsm.ReasonCrashed, Detail: detail}
	}
	return nil
}

func newestFirst(a *allocFacts) []*api.TaskEvent {
	st := a.TaskStates[taskName]
	if st == nil {
		return nil
	}
	events := slices.Clone(st.Events)
	slices.Reverse(events)
	return events
}

// waitingEval returns why the job has no allocation: the newest evaluation that could not place
// it, if nothing was placed since.
func waitingEval(job *jobFacts, last *allocFacts, evals []*evalFacts) *scheduler.Failure {
	var newest *evalFacts
	for _, e := range evals {
		if len(e.FailedTGAllocs) > 0 && max(e.JobModifyIndex, e.CreateIndex) >= job.JobModifyIndex &&
			(newest == nil || e.ModifyIndex > newest.ModifyIndex) {
			newest = e
		}
	}
	if newest == nil || last != nil && last.CreateIndex > newest.ModifyIndex {
		return nil
	}
	for _, m := range newest.FailedTGAllocs {
		return &scheduler.Failure{Reason: fsm.ReasonNoCapacity, Detail: metricText(m)}
	}
	return nil
}

// metricText describes what kept every client from running the sandbox.
func metricText(m *api.AllocationMetric) string {
	if m.NodesEvaluated == 0 {
		return "no Nomad client is there to run the sandbox"
	}
	var parts []string
	add := func(counts map[string]int, format string) {
		for _, what := range slices.Sorted(maps.Keys(counts)) {
			parts = append(parts, fmt.Sprintf(format, what, counts[what]))
		}
	}
	add(m.DimensionExhausted, "%s exhausted on %d")
	add(m.ConstraintFiltered, "%q not met by %d")
	add(m.ClassFiltered, "class %s excluded on %d")
	for _, q := range m.QuotaExhausted {
		parts = append(parts, "quota "+q+" exhausted")
	}
	if len(parts) == 0 {
		parts = append(parts, strconv.Itoa(m.NodesFiltered)+" excluded, "+strconv.Itoa(m.NodesExhausted)+" full")
	}
	return fmt.Sprintf("no Nomad client has room for the sandbox: of %d asked, %s", m.NodesEvaluated,
		strings.Join(parts, ", "))
}
