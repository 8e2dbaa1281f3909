package fsm

import (
	"fmt"
	"testing"
)

// raised is a fixture at the newest protocol version.
func raised(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	return f
}

// desired returns a sandbox's desired state, "" for none.
func (f *fixture) desired(id string) Desired {
	if s := f.store.View().SandboxAny(id); s != nil {
		return s.Desired
	}
	return ""
}

// TestConversationDelete_SparesTheSandboxOfAnAcceptedStart: a start that names a sandbox needs it
// from the moment it is accepted.
func TestConversationDelete_SparesTheSandboxOfAnAcceptedStart(t *testing.T) {
	t.Parallel()
	f := raised(t)
	f.conversation("ada", "c1")
	f.do("ada", &StartTaskCreateBody{ID: "t2", ConversationID: "c2", Request: StartRequest{SandboxID: ptr("sb-c1")}})
	f.do("ada", &ConversationDeleteBody{ID: "c1", DeleteSandbox: true})
	if got := f.desired("sb-c1"); got != DesiredRunning {
		t.Fatalf("the sandbox of an accepted start is to be %s, want running", got)
	}
	f.do("", &StartTaskBindBody{ID: "t2", SandboxID: "sb-c1"})
	f.do("", &StartTaskFinishBody{ID: "t2", Conversation: Conversation{ID: "c2", AgentKind: "openhands"}})
	f.do("ada", &ConversationDeleteBody{ID: "c2", DeleteSandbox: true})
	if got := f.desired("sb-c1"); got != DesiredDeleted {
		t.Errorf("the sandbox nobody needs is to be %s, want deleted", got)
	}
}

// TestConversationDelete_EndsTheStartsOfChildren: deleting a conversation ends the starts of its
// children. A sandbox that such a start only names stays, because others may use it.
func TestConversationDelete_EndsTheStartsOfChildren(t *testing.T) {
	t.Parallel()
	child := StartRequest{ParentConversationID: ptr("c1")}
	apart := StartRequest{ParentConversationID: ptr("c1"), SandboxID: ptr("sb2")}
	for name, c := range map[string]struct {
		request StartRequest
		bound   string
		sandbox string
		want    Desired
	}{
		"in its parent's sandbox":       {child, "", "sb-c1", DesiredDeleted},
		"bound to its parent's sandbox": {child, "sb-c1", "sb-c1", DesiredDeleted},
		"in another sandbox":            {apart, "", "sb2", DesiredRunning},
		"bound to another sandbox":      {apart, "sb2", "sb2", DesiredRunning},
		"of a child, in another sandbox": {
			StartRequest{ParentConversationID: ptr("c3"), SandboxID: ptr("sb2")},
			"sb2",
			"sb2",
			DesiredRunning,
		},
		"of a child, in the first sandbox": {StartRequest{ParentConversationID: ptr("c3")}, "", "sb-c1", DesiredDeleted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := raised(t)
			f.conversation("ada", "c1")
			f.do("ada", &StartTaskCreateBody{ID: "t3", ConversationID: "c3", Request: child})
			f.do("", &StartTaskBindBody{ID: "t3", SandboxID: "sb-c1"})
			f.do("",
				&StartTaskFinishBody{ID: "t3", Conversation: Conversation{ID: "c3", ParentID: ptr("c1"), AgentKind: "openhands"}})
			f.sandbox("ada", "sb2")
			f.do("ada", &StartTaskCreateBody{ID: "t2", ConversationID: "c2", Request: c.request})
			if c.bound != "" {
				f.do("", &StartTaskBindBody{ID: "t2", SandboxID: c.bound})
			}
			f.do("ada", &ConversationDeleteBody{ID: "c1", DeleteSandbox: true})
			task := f.store.View().StartTask("ada", "t2")
			if task == nil || task.Status != StartTaskError || task.Detail == "" {
				t.Fatalf("the child's start goes on: %+v", task)
			}
			if got := f.desired(c.sandbox); got != c.want {
				t.Errorf("the sandbox %s is to be %q, want %s", c.sandbox, got, c.want)
			}
			_ = f.fails(CodeConflict, "",
				&StartTaskFinishBody{ID: "t2", Conversation: Conversation{ID: "c2", ParentID: ptr("c1"), AgentKind: "openhands"}})
			if n := f.store.View().CountConversations("ada", ConversationFilter{IncludeSub: true}); n != 0 {
				t.Errorf("%d conversations are left", n)
			}
		})
	}
}

// TestConversationDelete_TakesTheSandboxesOfChildren: a child's own sandbox is deleted, a shared
// one stays.
func TestConversationDelete_TakesTheSandboxesOfChildren(t *testing.T) {
	t.Parallel()
	f := raised(t)
	f.conversation("ada", "c1")
	for i, sandbox := range []string{"sb2", "sb3"} {
		id := fmt.Sprint("c1", i)
		f.sandbox("ada", sandbox)
		f.do("ada",
			&StartTaskCreateBody{
				ID:             "t-" + id,
				ConversationID: id,
				Request:        StartRequest{ParentConversationID: ptr("c1"), SandboxID: &sandbox},
			})
		f.do("", &StartTaskBindBody{ID: "t-" + id, SandboxID: sandbox})
		f.do("",
			&StartTaskFinishBody{ID: "t-" + id, Conversation: Conversation{ID: id, ParentID: ptr("c1"), AgentKind: "openhands"}})
	}
	f.do("ada", &StartTaskCreateBody{ID: "t9", ConversationID: "c9", Request: StartRequest{SandboxID: ptr("sb3")}})
	f.do("ada", &ConversationDeleteBody{ID: "c1", DeleteSandbox: true})
	for sandbox, want := range map[string]Desired{"sb-c1": DesiredDeleted, "sb2": DesiredDeleted, "sb3": DesiredRunning} {
		if got := f.desired(sandbox); got != want {
			t.Errorf("%s is to be %s, want %s", sandbox, got, want)
		}
	}
}

// TestStartTaskFinish_ParentThatIsGone: a conversation that began as a child appears in a listing.
func TestStartTaskFinish_ParentThatIsGone(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.conversation("ada", "c1")
	for _, id := range []string{"c2", "c3"} {
		f.do("ada",
			&StartTaskCreateBody{ID: "t-" + id, ConversationID: id, Request: StartRequest{ParentConversationID: ptr("c1")}})
		f.do("", &StartTaskBindBody{ID: "t-" + id, SandboxID: "sb-c1"})
	}
	f.do("ada", &ConversationDeleteBody{ID: "c1"})
	finish := func(id string) {
		f.do("",
			&StartTaskFinishBody{ID: "t-" + id, Conversation: Conversation{ID: id, ParentID: ptr("c1"), AgentKind: "openhands"}})
	}
	finish("c2") // before version 3 the parent stays
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	finish("c3")
	listed, _ := f.store.View().Conversations("ada", ConversationFilter{}, Page{})
	if n := f.store.View().CountConversations("ada", ConversationFilter{IncludeSub: true}); n != 2 || len(listed) != n {
		t.Errorf("%d conversations are listed and %d counted, want 2", len(listed), n)
	}
}

// TestStartTaskCreate_EmptySandboxID: "" names no sandbox, and Admission agrees with Apply.
func TestStartTaskCreate_EmptySandboxID(t *testing.T) {
	t.Parallel()
	f := raised(t)
	f.do("", &InstallationConfigureBody{Installation: Installation{PerUser: Limits{Total: 1}}})
	f.conversation("ada", "c1")
	q := StartRequest{
		ParentConversationID: ptr("c1"), SandboxID: ptr(""), SelectedRepository: ptr(""), SelectedBranch: ptr(""),
		LLMModel: ptr(""),
	}
	if err := f.store.View().StartAdmission("ada", &q, f.now); err != nil {
		t.Fatalf("admission: %v", err)
	}
	f.do("ada",
		&ConversationUpdateBody{ID: "c1", Set: []string{"selected_repository"}, SelectedRepository: ptr("octo/app")})
	r, err := f.apply(f.command("ada", &StartTaskCreateBody{ID: "t2", ConversationID: "c2", Request: q}))
	if err != nil {
		t.Fatalf("admitted, and then: %v", err)
	}
	if got := valueOr(r.StartTask.Request.SandboxID, ""); got != "sb-c1" || r.StartTask.Reservation != nil {
		t.Errorf("the child gets the sandbox %q and has the reservation %+v, want its parent's", got, r.StartTask.Reservation)
	}
	if got := valueOr(r.StartTask.Request.SelectedRepository, ""); got != "octo/app" {
		t.Errorf("the child's repository is %q, want its parent's", got)
	}
}
