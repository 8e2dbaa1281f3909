package fsm

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// life draws plausible next commands in a cluster where sandboxes come and go. Unlike genHistory it
// looks at the state.
type life struct {
	r   *rapid.T
	now time.Time
	n   int
	// latest is the latest time so far. Clocks differ, but not by more than a leader accepts.
	latest time.Time
}

// next returns the next command.
func (l *life) next(v *View) Command {
	l.n++
	unit := rapid.SampledFrom([]time.Duration{
		time.Second,
		time.Second,
		time.Second,
		time.Second,
		20 * time.Second,
	}).Draw(l.r, "unit")
	l.now = l.now.Add(time.Duration(rapid.IntRange(-2, 6).Draw(l.r, "time")) * unit)
	l.latest = later(l.latest, l.now)
	l.now = later(l.now, l.latest.Add(-MaxCommandAge))
	user, body := l.body(v)
	return NewCommand(fmt.Sprint("l", l.n), l.now, user, body)
}

func (l *life) body(v *View) (string, Body) {
	user := genUser().Draw(l.r, "user")
	var rows []*Sandbox
	for s := range v.AllSandboxes() {
		rows = append(rows, s)
	}
	kind := rapid.IntRange(0, 23).Draw(l.r, "kind")
	if l.n == 1 {
		kind = 0
	}
	if len(rows) == 0 || kind < 8 {
		return l.start(v, user, kind)
	}
	s := rapid.SampledFrom(rows).Draw(l.r, "sandbox")
	switch kind {
	case 8, 9, 10, 11, 12, 13:
		return "", l.observation(s)
	case 14, 15:
		return s.UserID, &SandboxPauseBody{ID: s.ID,
			StopAfter: rapid.SampledFrom([]time.Duration{0, 30 * time.Second}).Draw(l.r, "stop after"),
		}
	case 16, 17, 18:
		return s.UserID, &SandboxResumeBody{ID: s.ID}
	case 19:
		return s.UserID, &SandboxDeleteBody{ID: s.ID}
	case 20:
		return "", &SandboxRemoveBody{ID: s.ID}
	case 21:
		return "", &PoolDropBody{ID: s.ID}
	case 22:
		return "", &SandboxTouchBody{Touches: []Touch{{ID: s.ID, At: l.now}}}
	}
	return "", &SandboxExpireBody{ID: s.ID, Generation: s.Generation, Action: oneOf(ExpirePause,
		ExpireDelete).Draw(l.r, "action"),
		Reason: PausedByIdle, NotActiveSince: s.Status.LastActive}
}

// start draws commands that start sandboxes or affect starts.
func (l *life) start(v *View, user string, kind int) (string, Body) {
	switch kind {
	case 0:
		return "", &InstallationConfigureBody{Installation: genInstallation(l.r)}
	case 1:
		return "", genUserConfigure(l.r)
	case 2:
		id := fmt.Sprint("m", l.n)
		return "", newMember(id, "p1")
	case 3:
		return user, genSettings(l.r)
	}
	b := newSandboxBody(fmt.Sprint("s", l.n))
	if members := v.PoolMembers(""); len(members) > 0 && rapid.Bool().Draw(l.r, "claim") {
		b = warmSandboxBody()
	}
	if kind > 5 {
		return user, b
	}
	return l.task(v, user, b)
}

// task draws commands that create, bind or end a start task.
func (l *life) task(v *View, user string, b *SandboxCreateBody) (string, Body) {
	open := v.OpenStartTasks()
	what := rapid.IntRange(0, 9).Draw(l.r, "task")
	if len(open) == 0 || what < 5 {
		create := &StartTaskCreateBody{ID: fmt.Sprint("t", l.n), ConversationID: fmt.Sprint("c", l.n)}
		mine, _ := v.Sandboxes(user, Page{})
		if len(mine) > 0 && rapid.IntRange(0, 3).Draw(l.r, "named") == 0 {
			create.Request.SandboxID = &rapid.SampledFrom(mine).Draw(l.r, "wished").ID
		}
		return user, create
	}
	task := rapid.SampledFrom(open).Draw(l.r, "which")
	switch {
	case what == 9:
		return "", &StartTaskFailBody{ID: task.ID, Detail: "broken"}
	case what == 8 && task.SandboxID != "":
		return "", &StartTaskFinishBody{ID: task.ID, Conversation: Conversation{ID: task.ConversationID}}
	case task.Request.SandboxID != nil:
		return "", &StartTaskBindBody{ID: task.ID, SandboxID: *task.Request.SandboxID}
	}
	return "", &StartTaskBindBody{ID: task.ID, SandboxID: b.ID, Create: b}
}

func (l *life) observation(s *Sandbox) Body {
	state := map[Desired]SandboxState{
		DesiredRunning: SandboxRunning,
		DesiredPaused:  SandboxPaused,
		DesiredDeleted: SandboxMissing,
	}[s.Desired]
	if rapid.IntRange(0, 4).Draw(l.r, "failed") == 0 {
		state = SandboxError
	}
	return &SandboxObserveBody{Observations: []Observation{{ID: s.ID, Status: SandboxStatus{
		State: state, Generation: s.Generation - uint64(rapid.IntRange(0, 1).Draw(l.r, "late")), Job: JobRef{
			Registered: true,
		},
	}}}}
}

// claims checks that a claim gets the member that ClaimableMember returns.
func (l *life) claims(t *testing.T, r *rapid.T, s *Store, user string, m *Sandbox) {
	s = restored(t, s) // a copy
	_, err := s.Apply(s.Index(), NewCommand("free", l.now, "", &InstallationConfigureBody{}))
	_, err2 := s.Apply(s.Index(), NewCommand("free2", l.now, "", &UserConfigureBody{UserID: user}))
	if s.View().SandboxByKeyHash(m.WarmKeyHash) != nil {
		r.Fatal("the key of a member opens something before it is claimed")
	}
	got, err3 := s.Apply(s.Index(), NewCommand("claim", l.now, user, warmSandboxBody()))
	if err != nil || err2 != nil || err3 != nil || got.Sandbox.ID != m.ID || got.Sandbox.State() != SandboxStarting {
		r.Fatalf("%v %v %v %+v", err, err2, err3, got.Sandbox)
	}
	v := s.View()
	if has := v.SandboxByKeyHash(m.WarmKeyHash); has == nil || has.ID != m.ID ||
		!v.SecretReferenced(m.WarmKeyRef.Path, m.WarmKeyRef.Version) {
		r.Fatalf("the key that was made for %s is not its own: %+v", m.ID, has)
	}
}
