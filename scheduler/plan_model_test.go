package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
)

// model is a sandbox and its job, as far as Plan can distinguish them.
type model struct {
	sb        *fsm.Sandbox
	job       scheduler.Observed
	attempted uint64
	failed    *scheduler.Failure
	answering bool
	now       time.Time
	allocs    int
	// room and sane say whether a start can succeed.
	room, sane bool
	// lost: the workspace is not the one that was there before.
	lost    bool
	maxLive int
}

func (m *model) situation() scheduler.Situation {
	s := scheduler.Situation{
		Sandbox: m.sb, Known: true, Observed: m.job, Attempted: m.attempted, Now: m.now, Limits: limits, StepFailed: m.failed,
		OrphanSince: m.now, Orphan: unowned(),
	}
	if p := m.job.Placement; p != nil {
		s.Probe = scheduler.ProbeResult{
			AllocID:   p.AllocID,
			URL:       access.AgentURL(p),
			Answering: m.answering,
			Proven:    m.answering,
		}
		if !m.answering {
			s.Probe.Failures, s.Probe.FailingSince = 99, m.now.Add(-time.Minute)
			s.Probe.Failure = &scheduler.Failure{Reason: fsm.ReasonHealth, Detail: "silent"}
		}
	}
	if m.lost && m.answering {
		s.Probe.Proven, s.Probe.Failure = false, &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "another"}
	}
	if m.job.Waiting != nil {
		s.UnplacedSince = m.now.Add(-time.Minute)
	}
	return s
}

// pass plans and carries it out, as the loop and Nomad would.
func (m *model) pass() scheduler.Decision {
	d := scheduler.Plan(m.situation())
	if d.Observe && m.sb != nil && d.Status.Generation == m.sb.Generation {
		sb := *m.sb
		sb.Status = d.Status
		m.sb = &sb
	}
	switch d.Step {
	case scheduler.StepStart:
		m.start()
	case scheduler.StepStop:
		m.job.Stopped, m.job.Placement, m.job.Failure, m.job.Waiting = true, nil, nil, nil
		m.job.ModifyIndex++
	case scheduler.StepTakeOver:
		m.attempted = m.sb.Generation
		m.job.ModifyIndex++
	case scheduler.StepStopOrphan:
		m.job.Stopped, m.job.Placement, m.job.Failure, m.job.Waiting = true, nil, nil, nil
	case scheduler.StepRemove:
		m.job, m.sb = scheduler.Observed{}, nil
	case scheduler.StepRemoveOrphan:
		m.job = scheduler.Observed{}
	}
	return d
}

func (m *model) start() {
	m.attempted = m.sb.Generation
	if !m.sane {
		m.failed = &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "gone"}
		return
	}
	m.job.Exists, m.job.Stopped, m.job.Foreign = true, false, false
	m.job.ModifyIndex++
	if m.room {
		m.place()
	} else {
		m.job.Waiting = &scheduler.Failure{Reason: fsm.ReasonNoCapacity, Detail: "full"}
	}
	m.maxLive = max(m.maxLive, m.job.Live)
}

func (m *model) place() {
	m.allocs++
	m.job.Live++
	m.job.Waiting = nil
	m.job.Placement = &fsm.Placement{
		AllocID: fmt.Sprintf("a%d", m.allocs), Address: "10.0.0.1", Ports: map[string]int{
			fsm.PortAgentServer: 8000 + m.allocs,
		},
	}
}

// settle completes everything that takes time: old copies end.
func (m *model) settle() {
	if m.job.Stopped || !m.job.Exists {
		m.job.Live = 0
	}
}

// disturb is what a user, an operator or the environment may do at any moment.
func (m *model) disturb(t *rapid.T) {
	wish := func(d fsm.Desired) {
		if m.sb == nil || m.sb.Desired == fsm.DesiredDeleted {
			return
		}
		sb := *m.sb
		sb.Desired, sb.DesiredAt = d, m.now
		sb.Generation++
		m.sb, m.failed = &sb, nil
	}
	switch rapid.IntRange(0, 12).Draw(t, "disturbance") {
	case 0:
		wish(fsm.DesiredRunning)
	case 1:
		wish(fsm.DesiredPaused)
	case 2:
		wish(fsm.DesiredDeleted)
	case 3:
		m.job = scheduler.Observed{Live: m.job.Live}
	case 4:
		if m.job.Exists {
			m.job.Stopped, m.job.Placement, m.job.Failure, m.job.Waiting = true, nil, nil, nil
		}
	case 5:
		if m.job.Placement != nil {
			m.job.Live, m.job.Placement = 0, nil
			m.job.Failure = &scheduler.Failure{Reason: fsm.ReasonCrashed, Detail: "exit code 1"}
		}
	case 6:
		m.answering = !m.answering
	case 7:
		m.room = !m.room
		if m.room && m.job.Waiting != nil {
			m.place()
		}
	case 8:
		m.sane = !m.sane
	case 9:
		m.now = m.now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
	case 10:
		m.attempted = 0 // another leader
	case 11:
		m.lost = !m.lost
	case 12:
		m.job.Client = rapid.SampledFrom([]scheduler.ClientState{
			"", scheduler.ClientAwayNow, scheduler.ClientDraining, scheduler.ClientClosed,
		}).Draw(t, "client")
		m.job.ClientDetail = string(m.job.Client)
	}
}

func TestPlan_ConvergesAndNeverRunsTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{now: epoch, room: true, sane: true, answering: true}
		m.sb = sandbox(fsm.DesiredRunning, 1, fsm.SandboxStatus{State: fsm.SandboxStarting, Generation: 1})
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				m.pass()
			case 1:
				m.settle()
			default:
				m.disturb(t)
			}
			if m.job.Live > 1 {
				t.Fatalf("%d live copies", m.job.Live)
			}
		}
		// From here on nothing disturbs.
		m.now = m.now.Add(time.Hour)
		var last string
		for i := range 12 {
			m.settle()
			before := m.sb
			d := m.pass()
			last = words(d)
			if m.job.Live > 1 {
				t.Fatalf("%d live copies", m.job.Live)
			}
			if d.Step == scheduler.StepNone && d.Wake.After(m.now) {
				m.now = d.Wake
				continue
			}
			if i > 8 && (d.Step != scheduler.StepNone || m.sb != nil && !before.Status.Equal(&m.sb.Status)) {
				t.Fatalf("not at rest after %d passes: %s", i, last)
			}
		}
		checkRest(t, m, last)
	})
}

// checkRest checks what must be true when a sandbox has come to rest.
func checkRest(t *rapid.T, m *model, last string) {
	if m.sb == nil {
		if m.job.Exists || m.job.Live > 0 {
			t.Fatalf("left behind: %+v", m.job)
		}
		return
	}
	st := m.sb.Status
	if st.Generation != m.sb.Generation {
		t.Fatalf("the wish was never observed: %+v", m.sb)
	}
	switch {
	case m.sb.Desired == fsm.DesiredPaused:
		if st.State != fsm.SandboxPaused || m.job.Live > 0 {
			t.Fatalf("paused is %s with %d live", last, m.job.Live)
		}
	case st.State == fsm.SandboxRunning:
		if m.job.Live != 1 || !m.answering || m.lost {
			t.Fatalf("RUNNING with %d live, answering %v, workspace lost %v", m.job.Live, m.answering, m.lost)
		}
	case st.State == fsm.SandboxError:
		if st.Reason == "" || st.Detail == "" {
			t.Fatalf("an ERROR without words: %+v", st)
		}
		if st.Reason == fsm.ReasonWorkspace && m.job.Live > 0 {
			t.Fatalf("a sandbox with another's workspace was left running: %s", last)
		}
	case st.State == fsm.SandboxPaused:
		if m.job.Client == "" || m.job.Live > 0 || st.Reason != fsm.ReasonClient || st.Detail == "" {
			t.Fatalf("paused though it should run, client %q, %d live: %s", m.job.Client, m.job.Live, last)
		}
	default:
		t.Fatalf("at rest in %s: %s", st.State, last)
	}
}
