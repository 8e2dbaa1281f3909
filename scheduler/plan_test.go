package scheduler_test

import (
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

var (
	epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

	limits = scheduler.Limits{
		Start: 2 * time.Minute, Progress: 15 * time.Minute, Stop: time.Minute, Placement: 15 * time.Second,
		Retry: 3 * time.Second, Health: 15 * time.Second, HealthFailures: 3,
		TermStart: epoch.Add(-time.Hour),
	}
	here = &fsm.Placement{
		AllocID: "a1",
		NodeID:  "n1",
		Address: "10.0.0.1",
		Ports:   map[string]int{fsm.PortAgentServer: 8000},
	}
	well = scheduler.ProbeResult{AllocID: "a1", URL: "http://10.0.0.1:8000", Answering: true, Proven: true}
)

func silent(failures int, since time.Time) scheduler.ProbeResult {
	return scheduler.ProbeResult{
		AllocID: "a1", URL: "http://10.0.0.1:8000", Proven: true, Failures: failures, FailingSince: since,
		Failure: &scheduler.Failure{Reason: fsm.ReasonHealth, Detail: "silent"},
	}
}

func sandbox(desired fsm.Desired, gen uint64, st fsm.SandboxStatus) *fsm.Sandbox {
	if st.Since.IsZero() {
		st.Since = epoch
	}
	return &fsm.Sandbox{ID: "a", Desired: desired, Generation: gen, DesiredAt: epoch, Status: st}
}

// errorOf is an ERROR after a crash.
func errorOf(detail string) fsm.SandboxStatus {
	return fsm.SandboxStatus{State: fsm.SandboxError, Reason: fsm.ReasonCrashed, Detail: detail, Generation: 1}
}

// owned gives it an owner.
func owned(sb *fsm.Sandbox) *fsm.Sandbox {
	sb.UserID = "u1"
	return sb
}

// leaving has its job run on for a while.
func leaving(sb *fsm.Sandbox, d time.Duration) *fsm.Sandbox {
	sb.StopAt = epoch.Add(d)
	return sb
}

// rotated gives it another key.
func rotated(sb *fsm.Sandbox) *fsm.Sandbox {
	sb.Rotations = 1
	return sb
}

// trusting makes the backend's report sufficient.
func trusting(sb *fsm.Sandbox) *fsm.Sandbox {
	sb.Template.Readiness = fsm.ReadinessAllocation
	return sb
}

func TestPlan(t *testing.T) {
	run, paused, deleted := fsm.DesiredRunning, fsm.DesiredPaused, fsm.DesiredDeleted
	starting := fsm.SandboxStatus{State: fsm.SandboxStarting, Generation: 1}
	running := fsm.SandboxStatus{
		State:      fsm.SandboxRunning,
		Generation: 1,
		Placement:  here,
		Job:        fsm.JobRef{Registered: true},
	}
	failed := fsm.SandboxStatus{State: fsm.SandboxError, Reason: fsm.ReasonHealth, Detail: "silent", Generation: 1}
	keylessError := fsm.SandboxStatus{
		State: fsm.SandboxError, Reason: fsm.ReasonSecretStore, Detail: "sealed", Generation: 1, Workspace: "token",
	}
	another := fsm.SandboxStatus{State: fsm.SandboxError, Reason: fsm.ReasonWorkspace, Detail: "another", Generation: 1}
	exists := scheduler.Observed{SandboxID: "a", Exists: true, ModifyIndex: 7}
	placed := exists
	placed.Live, placed.Placement = 1, here
	rekeyed := placed
	rekeyed.Rotations = 1
	spare := placed
	spare.Spare = true
	up := placed
	up.Up = true
	stopped := exists
	stopped.Stopped = true
	stopping := stopped
	stopping.Live = 1
	crashed := exists
	crashed.Failure = &scheduler.Failure{Reason: fsm.ReasonCrashed, Detail: "exit code 1"}
	keyless := exists
	keyless.Failure = &scheduler.Failure{Reason: fsm.ReasonSecretStore, Detail: "sealed"}
	full := exists
	full.Waiting = &scheduler.Failure{Reason: fsm.ReasonNoCapacity, Detail: "memory"}
	moved := placed
	moved.Placement = &fsm.Placement{AllocID: "a2", Address: "10.0.0.2", Ports: map[string]int{fsm.PortAgentServer: 8000}}
	pulling := placed
	pulling.Waiting = &scheduler.Failure{Detail: "Downloading image", Progress: true}
	foreign := scheduler.Observed{SandboxID: "a", Foreign: true}
	lost := well
	lost.Proven, lost.Failure = false, &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "another"}

	for _, c := range []struct {
		name   string
		sb     *fsm.Sandbox
		o      scheduler.Observed
		change func(s *scheduler.Situation)
		want   string
	}{
		{"nothing at all", nil, scheduler.Observed{}, nil, ""},
		{"a job without a sandbox", nil, placed, nil, "stop_orphan"},
		{"a stopping job without a sandbox", nil, stopping, granted, ""},
		{"a stopped job without a sandbox", nil, stopped, nil, "remove_orphan"},
		{
			"a job without a sandbox, not noted",
			nil,
			placed,
			func(s *scheduler.Situation) { s.Orphan.Record = nil },
			"note unowned",
		},
		{
			"a stranger's job, not noted", nil, placed,
			func(s *scheduler.Situation) { s.Orphan.Record, s.Orphan.Contained = nil, false }, "note stranger",
		},
		{"a stranger's job", nil, placed, stranger, ""},
		{"a stranger's workspace", nil, scheduler.Observed{Workspace: true}, stranger, ""},
		{
			"a stranger's job that was adopted", nil, placed,
			func(s *scheduler.Situation) { stranger(s); s.Orphan.Contained = true }, "note unowned",
		},
		{
			"a stranger's job that an operator deleted", nil, placed,
			func(s *scheduler.Situation) { stranger(s); s.Orphan.Record.Delete = true }, "stop_orphan",
		},
		{"a job without a sandbox, held", nil, placed, func(s *scheduler.Situation) { s.Orphan.MayRemove = false }, ""},
		{
			"a job without a sandbox, no history", nil, placed,
			func(s *scheduler.Situation) { s.Orphan = scheduler.OrphanFacts{} }, "",
		},
		{
			"a workspace within its retention", nil, scheduler.Observed{Workspace: true},
			func(s *scheduler.Situation) { s.Limits.Retention = time.Hour }, "",
		},
		{
			"a workspace that an operator deleted", nil, scheduler.Observed{Workspace: true},
			func(s *scheduler.Situation) { s.Limits.Retention, s.Orphan.Record.Delete = time.Hour, true }, "remove_orphan",
		},
		{
			"a job without a sandbox, seen for the first time", nil, placed,
			func(s *scheduler.Situation) { s.Limits.Orphan = time.Second }, "",
		},
		{
			"a job without a sandbox that never stops", nil, stopping,
			func(s *scheduler.Situation) { s.Orphan.GrantedAt = epoch.Add(-time.Hour) }, "remove_orphan",
		},
		{"a workspace without a sandbox", nil, scheduler.Observed{Workspace: true}, nil, "remove_orphan"},
		{"a foreign job without a sandbox", nil, foreign, nil, ""},

		{"new", sandbox(run, 1, starting), scheduler.Observed{}, nil, "start; STARTING"},
		{
			"new, backend never heard", sandbox(run, 1, starting), scheduler.Observed{},
			func(s *scheduler.Situation) { s.Known = false }, "STARTING",
		},
		{
			"new, backend away", sandbox(run, 1, starting), scheduler.Observed{},
			func(s *scheduler.Situation) {
				s.Away = &scheduler.Failure{Reason: fsm.ReasonScheduler, Detail: "away"}
			},
			"start; STARTING scheduler away",
		},
		{
			"start can't work", sandbox(run, 1, starting), scheduler.Observed{},
			func(s *scheduler.Situation) {
				s.StepFailed = &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "gone"}
			},
			"ERROR workspace gone",
		},
		{"registered", sandbox(run, 1, starting), exists, nil, "STARTING"},
		{"nobody to ask, placed", trusting(sandbox(run, 1, starting)), placed, nil, "STARTING"},
		{"nobody to ask, up", trusting(sandbox(run, 1, starting)), up, nil, "RUNNING"},
		{
			"nobody to ask, never up", trusting(sandbox(run, 1, starting)), placed,
			func(s *scheduler.Situation) { s.Now = epoch.Add(time.Hour) },
			"ERROR start_timeout not running after 2m0s: the backend has not said",
		},
		{"no room for a moment", sandbox(run, 1, starting), full, nil, "STARTING no_capacity memory"},
		{
			"no room for long", sandbox(run, 1, starting), full,
			func(s *scheduler.Situation) { s.UnplacedSince = epoch.Add(-time.Minute) }, "ERROR no_capacity memory",
		},
		{"placed", sandbox(run, 1, starting), placed, nil, "probe; STARTING"},
		{
			"answers", sandbox(run, 1, starting), placed,
			func(s *scheduler.Situation) { s.Probe = well }, "probe; RUNNING",
		},
		{
			"somebody else answered before", sandbox(run, 1, starting), moved,
			func(s *scheduler.Situation) { s.Probe = well }, "probe; STARTING",
		},
		{
			"silent until the deadline", sandbox(run, 1, starting), placed,
			func(s *scheduler.Situation) { s.Now = epoch.Add(2 * time.Minute); s.Probe = silent(9, epoch) },
			"probe; ERROR health not running after 2m0s: silent",
		},
		{
			"the template's own deadline", func() *fsm.Sandbox {
				sb := sandbox(run, 1, starting)
				sb.Template.StartTimeout = time.Hour
				return sb
			}(), placed,
			func(s *scheduler.Situation) { s.Now = epoch.Add(2 * time.Minute) },
			"probe; STARTING",
		},
		{
			"a late leader gives another quarter", sandbox(run, 1, starting), placed,
			func(s *scheduler.Situation) {
				s.Now = epoch.Add(time.Hour)
				s.Limits.TermStart = epoch.Add(time.Hour - 29*time.Second)
			},
			"probe; STARTING",
		},
		{
			"no key for the task", sandbox(run, 1, starting), keyless,
			func(s *scheduler.Situation) { s.FailedSince = epoch }, "STARTING secret_store sealed",
		},
		{
			"no key for the task, tried again", sandbox(run, 1, starting), keyless,
			func(s *scheduler.Situation) { s.FailedSince = epoch.Add(-time.Minute) }, "stop; STARTING secret_store sealed",
		},
		{
			"the key was lost while it ran", sandbox(run, 1, running), keyless,
			func(s *scheduler.Situation) { s.FailedSince = epoch }, "STARTING secret_store sealed",
		},
		{
			"the key was lost while it ran, tried again", sandbox(run, 1, running), keyless,
			func(s *scheduler.Situation) { s.FailedSince = epoch.Add(-time.Minute) }, "stop; STARTING secret_store sealed",
		},
		{
			"no key for one that ran, after the deadline", sandbox(run, 1, keylessError), keyless,
			func(s *scheduler.Situation) { s.FailedSince = epoch.Add(-59 * time.Second) }, "ERROR secret_store sealed",
		},
		{
			"no key for one that ran, tried again later", sandbox(run, 1, keylessError), keyless,
			func(s *scheduler.Situation) { s.FailedSince = epoch.Add(-time.Minute) }, "stop; ERROR secret_store sealed",
		},
		{
			"no key for one that ran, started again", sandbox(run, 1, keylessError), stopped, nil,
			"start; ERROR secret_store sealed",
		},
		{
			"no key for the task until the deadline", sandbox(run, 1, starting), keyless,
			func(s *scheduler.Situation) { s.Now = epoch.Add(2 * time.Minute) },
			"ERROR secret_store not running after 2m0s: sealed",
		},
		{
			"an image is pulled for longer than a start may take", sandbox(run, 1, starting), pulling,
			func(s *scheduler.Situation) { s.Now = epoch.Add(5 * time.Minute); s.ProgressAt = s.Now },
			"probe; STARTING Downloading image",
		},
		{
			"an image was pulled a moment ago", sandbox(run, 1, starting), placed,
			func(s *scheduler.Situation) {
				s.Now = epoch.Add(5 * time.Minute)
				s.ProgressAt = s.Now.Add(-time.Second)
			},
			"probe; STARTING",
		},
		{
			"an image is pulled for longer than anything may take", sandbox(run, 1, starting), pulling,
			func(s *scheduler.Situation) { s.Now = epoch.Add(16 * time.Minute); s.ProgressAt = s.Now },
			"probe; ERROR start_timeout not running after 15m0s: Downloading image",
		},
		{"crashed while starting", sandbox(run, 1, starting), crashed, nil, "ERROR crashed exit code 1"},
		{"a foreign job", sandbox(run, 1, starting), foreign, nil, "ERROR foreign_job"},

		{"runs", sandbox(run, 1, running), placed, func(s *scheduler.Situation) { s.Probe = well }, "probe; RUNNING"},
		{
			"runs, claimed from a pool",
			owned(sandbox(run, 1, running)),
			spare,
			func(s *scheduler.Situation) { s.Probe = well },
			"raise; probe; RUNNING",
		},
		{
			"runs, in a pool",
			sandbox(run, 1, running),
			spare,
			func(s *scheduler.Situation) { s.Probe = well },
			"probe; RUNNING",
		},
		{"runs, a new leader has not asked", sandbox(run, 1, running), placed, nil, "probe; RUNNING"},
		{
			"runs, backend never heard", sandbox(run, 1, running), scheduler.Observed{},
			func(s *scheduler.Situation) { s.Known = false }, "probe; RUNNING",
		},
		{
			"one failed probe", sandbox(run, 1, running), placed,
			func(s *scheduler.Situation) { s.Probe = silent(1, epoch.Add(-time.Hour)) }, "probe; RUNNING",
		},
		{
			"many failed probes at once", sandbox(run, 1, running), placed,
			func(s *scheduler.Situation) { s.Probe = silent(9, epoch) }, "probe; RUNNING",
		},
		{
			"silent for long", sandbox(run, 1, running), placed,
			func(s *scheduler.Situation) { s.Probe = silent(9, epoch.Add(-time.Minute)) }, "probe; ERROR health silent",
		},
		{"placed anew", sandbox(run, 1, running), moved, nil, "probe; STARTING the sandbox was placed anew"},
		{
			"purged by hand",
			sandbox(run, 1, running),
			scheduler.Observed{},
			nil,
			"start; STARTING the job was gone; starting it again",
		},
		{
			"stopped by hand",
			sandbox(run, 1, running),
			stopping,
			nil,
			"STARTING waiting for the former copy of the sandbox to stop",
		},
		{
			"purged, still live",
			sandbox(run, 1, running),
			scheduler.Observed{Live: 1},
			nil,
			"STARTING waiting for the former copy of the sandbox to stop",
		},
		{"crashed", sandbox(run, 1, running), crashed, nil, "ERROR crashed exit code 1"},
		{
			"crashed, and its last words known later", sandbox(run, 1, errorOf("exit code")), crashed, nil,
			"ERROR crashed exit code 1",
		},
		{
			"crashed, and its last words forgotten",
			sandbox(run, 1, errorOf("exit code 1; no plan")),
			crashed,
			nil,
			"ERROR crashed exit code 1; no plan",
		},

		{
			"another's workspace, first said", sandbox(run, 1, starting), placed,
			func(s *scheduler.Situation) { s.Probe = lost }, "probe; ERROR workspace another",
		},
		{
			"another's workspace, another failure was said", sandbox(run, 1, failed), placed,
			func(s *scheduler.Situation) { s.Probe = lost }, "probe; ERROR workspace another",
		},
		{
			"another's workspace, then stopped", sandbox(run, 1, another), placed,
			func(s *scheduler.Situation) { s.Probe = lost }, "stop; probe; ERROR workspace another",
		},
		{
			"another's workspace, silent before it was stopped", sandbox(run, 1, another), placed,
			func(s *scheduler.Situation) { s.Probe = silent(1, epoch) }, "stop; probe; ERROR workspace another",
		},
		{
			"another's workspace, a new leader has not asked",
			sandbox(run, 1, another),
			placed,
			nil,
			"probe; ERROR workspace another",
		},
		{"failed, not retried", sandbox(run, 1, failed), scheduler.Observed{}, nil, "ERROR health silent"},
		{
			"failed, answers after all", sandbox(run, 1, failed), placed,
			func(s *scheduler.Situation) { s.Probe = well }, "probe; RUNNING",
		},
		{"failed, resumed, dead", sandbox(run, 2, failed), crashed, nil, "stop"},
		{"failed, resumed, silent", sandbox(run, 2, failed), placed, nil, "stop"},
		{
			"failed, resumed, answers", sandbox(run, 2, failed), placed,
			func(s *scheduler.Situation) { s.Probe = well }, "take_over; probe; STARTING",
		},
		{
			"failed, resumed, answers, taken over", sandbox(run, 2, failed), placed,
			func(s *scheduler.Situation) { s.Probe, s.Attempted = well, 2 }, "probe; RUNNING",
		},
		{
			"failed, resumed, started again", sandbox(run, 2, failed), placed,
			func(s *scheduler.Situation) { s.Attempted = 2 }, "probe; STARTING",
		},
		{"failed, resumed, stopped", sandbox(run, 2, failed), stopped, nil, "start; STARTING"},

		{"another key, the job has the former", rotated(sandbox(run, 2, running)), placed, nil, "stop"},
		{
			"another key, the job is stopping",
			rotated(sandbox(run, 2, running)),
			stopping,
			nil,
			"STARTING waiting for the former copy of the sandbox to stop",
		},
		{"another key, the job is stopped", rotated(sandbox(run, 2, running)), stopped, nil, "start"},
		{"another key, the job has it", rotated(sandbox(run, 2, running)), rekeyed, nil, "take_over; probe"},
		{
			"another key, the job has it and was taken over", rotated(sandbox(run, 2, running)), rekeyed,
			func(s *scheduler.Situation) { s.Probe, s.Attempted = well, 2 }, "probe; RUNNING",
		},
		{"another key, the start failed before", rotated(sandbox(run, 2, failed)), crashed, nil, "stop"},
		{
			"another key, the job does not stop", rotated(sandbox(run, 2, running)), placed,
			func(s *scheduler.Situation) { s.Now = epoch.Add(2 * time.Minute) },
			"stop; ERROR scheduler not running after 2m0s: the copy of the sandbox with the former key has not stopped",
		},
		{"another key, a job of a lost history", sandbox(run, 1, running), rekeyed, nil, "stop"},
		{
			"another key, the mark can't be read", sandbox(run, 1, running), rekeyed,
			func(s *scheduler.Situation) { s.Unsure = true }, "",
		},
		{"another key, paused", rotated(sandbox(paused, 2, running)), stopped, nil, "PAUSED"},

		{"pause", sandbox(paused, 2, running), placed, nil, "stop"},
		{"pause of a page", leaving(sandbox(paused, 2, running), 30*time.Second), placed, nil, ""},
		{
			"pause of a page, its time is over", leaving(sandbox(paused, 2, running), 30*time.Second), placed,
			func(s *scheduler.Situation) { s.Now = epoch.Add(30 * time.Second) }, "stop",
		},
		{"pause of a page, ended by itself", leaving(sandbox(paused, 2, running), 30*time.Second), stopped, nil, "PAUSED"},
		{
			"pause of a page, does not stop", leaving(sandbox(paused, 2, running), 30*time.Second), stopping,
			func(s *scheduler.Situation) { s.Now = epoch.Add(time.Minute + 29*time.Second) }, "",
		},
		{"pausing", sandbox(paused, 2, running), stopping, nil, ""},
		{
			"pausing for too long", sandbox(paused, 2, running), stopping,
			func(s *scheduler.Situation) { s.Now = epoch.Add(time.Minute) },
			"ERROR scheduler the sandbox has not stopped within 1m0s",
		},
		{
			"pausing, backend away since the term began", sandbox(paused, 2, running), scheduler.Observed{},
			func(s *scheduler.Situation) {
				s.Known, s.Away, s.Now = false, &scheduler.Failure{
					Reason: fsm.ReasonScheduler,
					Detail: "away",
				}, epoch.Add(time.Minute)
			},
			"ERROR scheduler away",
		},
		{"paused", sandbox(paused, 2, running), stopped, nil, "PAUSED"},
		{"paused, collected", sandbox(paused, 2, running), scheduler.Observed{Workspace: true}, nil, "PAUSED"},
		{
			"paused, started by hand",
			sandbox(paused, 1, fsm.SandboxStatus{State: fsm.SandboxPaused, Generation: 1}),
			placed,
			nil,
			"stop",
		},
		{
			"resumed before the pause was carried out",
			sandbox(run, 3, running),
			placed,
			func(s *scheduler.Situation) { s.Probe = well },
			"take_over; probe",
		},
		{
			"resumed before the pause was carried out, taken over", sandbox(run, 3, running), placed,
			func(s *scheduler.Situation) { s.Probe, s.Attempted = well, 3 }, "probe; RUNNING",
		},
		{
			"resumed before the pause was carried out, and Nomad takes no change", sandbox(run, 3, running), placed,
			func(s *scheduler.Situation) { s.Probe, s.StepFailed = well, crash() }, "probe; RUNNING",
		},
		{
			"resumed before the pause was carried out, held", sandbox(run, 3, running), placed,
			func(s *scheduler.Situation) { s.Probe, s.Held = well, true }, "probe; RUNNING",
		},

		{"delete", sandbox(deleted, 2, running), placed, nil, "stop"},
		{"delete, stopping", sandbox(deleted, 2, running), stopping, nil, ""},
		{"delete, stopped", sandbox(deleted, 2, running), stopped, nil, "remove"},
		{"delete, nothing there", sandbox(deleted, 2, starting), scheduler.Observed{}, nil, "remove"},
		{"delete, foreign job", sandbox(deleted, 2, starting), foreign, nil, "remove"},

		{"held, deleted before", sandbox(deleted, 2, running), placed, held, ""},
		{"held, paused before, runs", sandbox(paused, 2, running), placed, held, "adopt"},
		{"held, paused", sandbox(paused, 2, running), stopped, held, "PAUSED"},
		{
			"held, running",
			sandbox(run, 1, running),
			placed,
			func(s *scheduler.Situation) { s.Held, s.Probe = true, well },
			"probe; RUNNING",
		},
		{
			"held, gone",
			sandbox(run, 1, running),
			scheduler.Observed{},
			held,
			"ERROR held the sandbox's job is not there, and the cluster holds",
		},
		{
			"held for long, gone", sandbox(run, 1, running), scheduler.Observed{},
			func(s *scheduler.Situation) { s.Held, s.Now = true, epoch.Add(100*time.Hour) },
			"ERROR held the sandbox's job is not there",
		},
		{
			"held, a stranger's job of its name", sandbox(run, 1, running), placed,
			func(s *scheduler.Situation) { s.Held, s.Stranger = true, true }, "ERROR foreign_job",
		},
		{
			"a stranger's job of its name, pause",
			sandbox(paused, 2, running),
			placed,
			func(s *scheduler.Situation) { s.Stranger = true },
			"PAUSED",
		},
		{
			"delete, does not stop", sandbox(deleted, 2, running), stopping,
			func(s *scheduler.Situation) { s.Now = epoch.Add(time.Minute) }, "remove",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := scheduler.Situation{
				Sandbox:     c.sb,
				Known:       true,
				Observed:    c.o,
				Now:         epoch,
				OrphanSince: epoch,
				Limits:      limits,
				Orphan:      unowned(),
			}
			if c.change != nil {
				c.change(&s)
			}
			if got := words(scheduler.Plan(s)); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
				t.Errorf("\n got %q\nwant %q", got, c.want)
			}
		})
	}
}

// A job that its sandbox's pause leaves is looked at again when it is to be stopped.
func TestPlan_ComesBackToAJobThatIsLeft(t *testing.T) {
	sb := leaving(sandbox(fsm.DesiredPaused, 2, fsm.SandboxStatus{State: fsm.SandboxRunning, Generation: 1}), time.Second)
	o := scheduler.Observed{SandboxID: "a", Exists: true, Live: 1, Placement: here}
	d := scheduler.Plan(scheduler.Situation{Sandbox: sb, Known: true, Observed: o, Now: epoch, Limits: limits})
	if d.Step != scheduler.StepNone || d.Observe || !d.Wake.Equal(sb.StopAt) {
		t.Errorf("%+v", d)
	}
}

// unowned is the facts of an orphan that may be removed.
func unowned() scheduler.OrphanFacts {
	return scheduler.OrphanFacts{
		Record: &fsm.Orphan{Reason: fsm.OrphanUnowned, Since: epoch}, Contained: true, MayRemove: true, Recorded: true,
	}
}

func stranger(s *scheduler.Situation) {
	s.Orphan.Record, s.Orphan.Contained = &fsm.Orphan{Reason: fsm.OrphanStranger, Since: epoch}, false
}

func granted(s *scheduler.Situation) { s.Orphan.GrantedAt = epoch }

func held(s *scheduler.Situation) { s.Held = true }

// words formats a decision as "step; probe; STATE reason detail".
func words(d scheduler.Decision) string {
	var parts []string
	if d.Step != scheduler.StepNone {
		parts = append(parts, string(d.Step))
	}
	if d.Probe != nil {
		parts = append(parts, "probe")
	}
	if d.Observe {
		parts = append(parts,
			strings.TrimSpace(strings.Join([]string{string(d.Status.State), d.Status.Reason, d.Status.Detail}, " ")))
	}
	if d.Note != nil {
		parts = append(parts, "note "+d.Note.Reason)
	}
	return strings.ReplaceAll(strings.Join(parts, "; "), "  ", " ")
}
