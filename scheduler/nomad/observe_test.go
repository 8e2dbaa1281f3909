package nomad

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

var now = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func ourJob() *jobFacts {
	return &jobFacts{
		ID: "sandbox-a", Version: 3, JobModifyIndex: 10, ModifyIndex: 10,
		Meta: map[string]string{metaCluster: "c1", metaSandbox: "a", metaWorkspace: "/w"},
	}
}

func anAlloc(desired, client string) *allocFacts {
	a := &allocFacts{
		ID: "a1", JobID: "sandbox-a", NodeID: "n1", NodeName: "one", DesiredStatus: desired, ClientStatus: client,
		CreateIndex: 12, ModifyIndex: 12, sighted: now, AllocatedResources: &api.AllocatedResources{},
	}
	a.AllocatedResources.Shared.Ports = []api.PortMapping{{Label: "AGENT_SERVER", Value: 23456, HostIP: "10.0.0.1"}}
	return a
}

func events(evs ...*api.TaskEvent) map[string]*api.TaskState {
	return map[string]*api.TaskState{taskName: {Events: evs}}
}

func TestObserve(t *testing.T) {
	full := &evalFacts{
		ID: "e1", JobID: "sandbox-a", JobModifyIndex: 10, ModifyIndex: 11,
		FailedTGAllocs: map[string]*api.AllocationMetric{groupName: {
			NodesEvaluated: 2, NodesExhausted: 2, DimensionExhausted: map[string]int{"memory": 1, "cpu": 1},
		}},
	}
	after := *full
	after.ModifyIndex = 13
	later := &after
	for name, c := range map[string]struct {
		job    func(j *jobFacts)
		alloc  *allocFacts
		eval   *evalFacts
		change func(a *allocFacts)
		check  func(o scheduler.Observed) bool
	}{
		"registered": {check: func(o scheduler.Observed) bool {
			return o.Exists && !o.Stopped && o.ModifyIndex == 10 && o.Live == 0 && o.Placement == nil && o.Failure == nil &&
				o.Waiting == nil
		}},
		"placed, and the client has not said a word": {
			alloc: anAlloc("run", "pending"),
			check: func(o scheduler.Observed) bool {
				return o.Live == 1 && o.Version == 3 && o.Placement.Equal(&fsm.Placement{
					AllocID: "a1", NodeID: "n1", Address: "10.0.0.1", Workspace: "/w", Ports: map[string]int{"AGENT_SERVER": 23456},
				})
			},
		},
		"given up with its client, and no room elsewhere": {
			alloc: anAlloc("stop", "lost"), eval: later,
			check: func(o scheduler.Observed) bool {
				return o.Live == 0 && o.Waiting != nil && o.Waiting.Reason == fsm.ReasonNoCapacity &&
					strings.HasPrefix(o.Waiting.Detail, "the Nomad client one was lost, and the sandbox with it: no Nomad client")
			},
		},
		"on a client that is away": {
			alloc: anAlloc("run", "unknown"),
			check: func(o scheduler.Observed) bool {
				return o.Live == 1 && o.Placement != nil && !o.Up && o.Failure == nil && o.Waiting != nil &&
					strings.Contains(o.Waiting.Detail, "the Nomad client one is away")
			},
		},
		"another cluster's": {
			job: func(j *jobFacts) { j.Meta[metaCluster] = "c2" }, alloc: anAlloc("run", "running"),
			check: func(o scheduler.Observed) bool { return o.Foreign && !o.Exists && o.Live == 0 },
		},
		"another sandbox's mark": {
			job:   func(j *jobFacts) { j.Meta[metaSandbox] = "b" },
			check: func(o scheduler.Observed) bool { return o.Foreign },
		},
		"stopping": {
			job: func(j *jobFacts) { j.Stop = true }, alloc: anAlloc("stop", "running"),
			check: func(o scheduler.Observed) bool { return o.Stopped && o.Live == 1 && o.Placement == nil },
		},
		"stopped": {
			job: func(j *jobFacts) { j.Stop = true }, alloc: anAlloc("stop", "complete"),
			check: func(o scheduler.Observed) bool { return o.Stopped && o.Live == 0 },
		},
		"stopped before the client took it, a moment ago": {
			job: func(j *jobFacts) { j.Stop = true }, alloc: anAlloc("stop", "pending"),
			check: func(o scheduler.Observed) bool { return o.Live == 1 },
		},
		"stopped before the client took it, long ago": {
			job: func(j *jobFacts) { j.Stop = true }, alloc: anAlloc("stop", "pending"),
			change: func(a *allocFacts) { a.sighted = now.Add(-time.Minute) },
			check:  func(o scheduler.Observed) bool { return o.Live == 0 },
		},
		"the client is away": {
			alloc: anAlloc("run", "unknown"),
			check: func(o scheduler.Observed) bool { return o.Live == 1 && o.Placement != nil },
		},
		"the client is lost": {
			alloc: anAlloc("run", "lost"),
			check: func(o scheduler.Observed) bool {
				return o.Live == 0 && o.Failure != nil && o.Failure.Reason == fsm.ReasonScheduler &&
					strings.Contains(o.Failure.Detail, "one")
			},
		},
		"no room": {
			eval: full,
			check: func(o scheduler.Observed) bool {
				return o.Waiting != nil && o.Waiting.Reason == fsm.ReasonNoCapacity &&
					strings.Contains(o.Waiting.Detail, "cpu exhausted on 1, memory exhausted on 1")
			},
		},
		"no room, then room": {
			eval: full, alloc: anAlloc("run", "pending"),
			check: func(o scheduler.Observed) bool { return o.Waiting == nil && o.Placement != nil },
		},
		"no room for the job before": {
			job: func(j *jobFacts) { j.JobModifyIndex = 20 }, eval: full,
			check: func(o scheduler.Observed) bool { return o.Waiting == nil },
		},
		"failed": {
			alloc: anAlloc("run", "failed"),
			change: func(a *allocFacts) {
				a.TaskStates = events(
					&api.TaskEvent{Type: api.TaskTerminated, DisplayMessage: "Exit Code: 7"},
					&api.TaskEvent{Type: api.TaskNotRestarting, DisplayMessage: "Exceeded allowed attempts"})
			},
			check: func(o scheduler.Observed) bool {
				return o.Live == 0 && o.Failure != nil && o.Failure.Reason == fsm.ReasonCrashed &&
					strings.Contains(o.Failure.Detail, "Exit Code: 7")
			},
		},
		"failed under the version before": {
			job: func(j *jobFacts) { j.JobModifyIndex = 20 }, alloc: anAlloc("run", "failed"),
			check: func(o scheduler.Observed) bool { return o.Failure == nil },
		},
		"killed for want of Vault": {
			alloc: anAlloc("run", "failed"),
			change: func(a *allocFacts) {
				a.TaskStates = events(
					&api.TaskEvent{Type: api.TaskStarted, DisplayMessage: "Task started by client"},
					&api.TaskEvent{Type: api.TaskKilling, DisplayMessage: "Vault: failed to derive vault token: permission denied"},
					&api.TaskEvent{Type: api.TaskTerminated, DisplayMessage: "Exit Code: 0"},
					&api.TaskEvent{Type: api.TaskKilled, DisplayMessage: "Task successfully killed"})
			},
			check: func(o scheduler.Observed) bool {
				return o.Failure != nil && o.Failure.Reason == fsm.ReasonSecretStore &&
					strings.Contains(o.Failure.Detail, "derive vault token")
			},
		},
		"killed for want of Vault in the run before": {
			alloc: anAlloc("run", "failed"),
			change: func(a *allocFacts) {
				a.TaskStates = events(
					&api.TaskEvent{Type: api.TaskKilling, DisplayMessage: "Template failed: vault.read(secret/data/x)"},
					&api.TaskEvent{Type: api.TaskStarted, DisplayMessage: "Task started by client"},
					&api.TaskEvent{Type: api.TaskTerminated, DisplayMessage: "Exit Code: 7"})
			},
			check: func(o scheduler.Observed) bool { return o.Failure != nil && o.Failure.Reason == fsm.ReasonCrashed },
		},
		"out of memory": {
			alloc: anAlloc("run", "failed"),
			change: func(a *allocFacts) {
				a.TaskStates = events(&api.TaskEvent{Type: api.TaskTerminated, Details: map[string]string{"oom_killed": "true"}})
			},
			check: func(o scheduler.Observed) bool { return strings.Contains(o.Failure.Detail, "out of memory") },
		},
		"restarting": {
			alloc: anAlloc("run", "pending"),
			change: func(a *allocFacts) {
				a.TaskStates = events(
					&api.TaskEvent{Type: api.TaskTerminated, DisplayMessage: "Exit Code: 7"},
					&api.TaskEvent{Type: api.TaskRestarting, DisplayMessage: "Task restarting in 1s"})
			},
			check: func(o scheduler.Observed) bool {
				return o.Failure == nil && o.Waiting != nil && o.Waiting.Reason == fsm.ReasonCrashed
			},
		},
		"waiting for its key": {
			alloc: anAlloc("run", "pending"),
			change: func(a *allocFacts) {
				a.TaskStates = events(&api.TaskEvent{Type: "Template", DisplayMessage: "Missing: vault.read(secret/data/x)"})
			},
			check: func(o scheduler.Observed) bool { return o.Waiting != nil && o.Waiting.Reason == fsm.ReasonSecretStore },
		},
	} {
		t.Run(name, func(t *testing.T) {
			job := ourJob()
			if c.job != nil {
				c.job(job)
			}
			var allocs []*allocFacts
			if c.alloc != nil {
				if c.change != nil {
					c.change(c.alloc)
				}
				allocs = append(allocs, c.alloc)
			}
			var evals []*evalFacts
			if c.eval != nil {
				evals = append(evals, c.eval)
			}
			o := observe("c1", "a", job, allocs, evals, now)
			if !c.check(o) {
				t.Errorf("%+v, failure %v, waiting %v", o, o.Failure, o.Waiting)
			}
		})
	}
	if o := observe("c1", "a", nil, []*allocFacts{anAlloc("stop", "running")}, nil, now); o.Exists || o.Live != 1 {
		t.Errorf("purged, still running: %+v", o)
	}
}

// frames decodes lines as the event stream has them.
func frames(t *testing.T, lines ...string) []*frame {
	t.Helper()
	list := make([]*frame, len(lines))
	for i, line := range lines {
		list[i] = &frame{}
		if err := json.Unmarshal([]byte(line), list[i]); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

func TestPicture_RepeatedAndLateEvents_ChangeNothing(t *testing.T) {
	all := frames(t,
		`{}`,
		`{"Index":10,"Events":[{"Index":10,"Topic":"Job","Payload":{"Job":{"ID":"sandbox-a",`+
			`"Version":0,"JobModifyIndex":10,"ModifyIndex":10,"Meta":{"bivouac_cluster":"c1","bivouac_sandbox":"a"}}}}]}`,
		`{"Index":12,"Events":[{"Index":12,"Topic":"Allocation","Payload":{"Allocation":{"ID":"x","JobID":"sandbox-a",`+
			`"DesiredStatus":"run","ClientStatus":"pending","CreateIndex":12,"ModifyIndex":12}}}]}`,
		`{"Index":15,"Events":[{"Index":15,"Topic":"Allocation","Payload":{"Allocation":{"ID":"x","JobID":"sandbox-a",`+
			`"DesiredStatus":"run","ClientStatus":"running","CreateIndex":12,"ModifyIndex":15}}}]}`,
		`{"Index":20,"Events":[{"Index":20,"Topic":"Job","Payload":{"Job":{"ID":"sandbox-a",`+
			`"Stop":true,"Version":1,"JobModifyIndex":20,"ModifyIndex":20,"Meta":{"bivouac_cluster":"c1",`+
			`"bivouac_sandbox":"a"}}}}]}`,
		`{"Index":25,"Events":[{"Index":25,"Topic":"Allocation","Payload":{"Allocation":{"ID":"x","JobID":"sandbox-a",`+
			`"DesiredStatus":"stop","ClientStatus":"complete","CreateIndex":12,"ModifyIndex":25}}}]}`,
		`{"Index":26,"Events":[{"Index":26,"Topic":"Job","Payload":{"Job":{"ID":"other","ModifyIndex":26}}}]}`,
	)
	p := newObservation()
	for _, f := range all {
		p.take(f)
	}
	want := p.observe("c1", "sandbox-a")
	if !want.Exists || !want.Stopped || want.Live != 0 || want.ModifyIndex != 20 {
		t.Fatalf("%+v", want)
	}
	for _, f := range all {
		p.take(f)
		if got := p.observe("c1", "sandbox-a"); got.Live != 0 || !got.Stopped || got.ModifyIndex != 20 {
			t.Fatalf("after a late event: %+v", got)
		}
	}
	if len(p.jobs) != 1 {
		t.Errorf("jobs of others are kept: %v", p.jobs)
	}
	purged := frames(t,
		`{"Index":30,"Events":[{"Index":30,"Topic":"Job","Payload":{"Deleted":true,"Job":{"ID":"sandbox-a",`+
			`"JobModifyIndex":20,"ModifyIndex":22}}}]}`)
	if ids := p.take(purged[0]); len(ids) != 1 || p.observe("c1", ids[0]).Exists {
		t.Error("a purged job is still there")
	}
}

func TestMetricWords(t *testing.T) {
	for want, m := range map[string]*api.AllocationMetric{
		"no Nomad client is there": {},
		`"${attr.kernel.name}" not met by 1`: {
			NodesEvaluated: 1, ConstraintFiltered: map[string]int{"${attr.kernel.name}": 1},
		},
		"quota memory exhausted": {NodesEvaluated: 1, QuotaExhausted: []string{"memory"}},
		"1 excluded, 2 full":     {NodesEvaluated: 3, NodesFiltered: 1, NodesExhausted: 2},
	} {
		if got := metricText(m); !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}

// What the stream reported as gone while the second listing was read stays gone.
func TestPicture_MergeOfAnOlderListing_RevivesNothing(t *testing.T) {
	p := newObservation()
	p.addJob(ourJob(), false)
	p.addAlloc(anAlloc("run", "running"))
	other := ourJob()
	other.ID = "sandbox-b"
	p.addJob(other, false)
	former := anAlloc("run", "running")
	former.ID, former.JobID = "b1", other.ID
	p.addAlloc(former)

	later := newObservation()
	later.index = 20
	for _, j := range []*jobFacts{ourJob(), other} {
		later.addJob(j, false)
	}
	later.addAlloc(anAlloc("run", "running"))
	still := *former
	later.addAlloc(&still)

	p.expectMerge()
	ended := anAlloc("stop", "complete")
	ended.ModifyIndex = 21
	p.addAlloc(ended)
	gone := ourJob()
	gone.ModifyIndex = 22
	p.addJob(gone, true)
	replaced, next := *former, *former
	replaced.DesiredStatus, replaced.ClientStatus, replaced.ModifyIndex = "stop", "complete", 23
	next.ID, next.CreateIndex, next.ModifyIndex = "b2", 24, 24
	p.addAlloc(&replaced)
	p.addAlloc(&next)

	p.merge(later)
	if o := p.observe("c1", "sandbox-a"); o.Exists || o.Live != 0 {
		t.Errorf("a purged job: %+v", o)
	}
	if n := len(p.allocs["sandbox-b"]); n != 1 {
		t.Errorf("%d allocations of a job whose first one has ended, want 1", n)
	}
}

// A client that is away may run a copy of a purged job although a later copy has ended.
func TestPicture_PurgedJob_KeepsTheCopyThatMayRun(t *testing.T) {
	away, ended := anAlloc("stop", "unknown"), anAlloc("stop", "complete")
	ended.ID, ended.CreateIndex = "a2", 13
	for name, allocs := range map[string][]*allocFacts{"in order": {away, ended}, "newest first": {ended, away}} {
		p := newObservation()
		for _, a := range allocs {
			p.addAlloc(a)
		}
		if o := p.observe("c1", "sandbox-a"); o.Live != 1 {
			t.Errorf("%s: %d live, want 1", name, o.Live)
		}
	}
}
