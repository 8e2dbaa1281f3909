package fsm

import (
	"fmt"
	"strings"
	"testing"
)

// message is a start request with a message of some bytes.
func messageOf(bytes int) StartRequest {
	suffix := "be brief"
	return StartRequest{Title: ptr("t"), SystemMessageSuffix: &suffix, InitialMessage: &Message{
		Role: "user", Run: true, Content: []ContentBlock{{Type: BlockText, Text: strings.Repeat("x", bytes)}},
	}}
}

// state is a cluster with bounds of 2 MiB a user and 5 MiB in all.
func newStateFixture(t *testing.T) *fixture {
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	f.do("",
		&InstallationConfigureBody{
			Installation: Installation{PerUser: Limits{StateBytes: 2 << 20}, Overall: Limits{StateBytes: 5 << 20}},
		})
	return f
}

// TestStateBytes_AUserFillsItsOwnOnly: a user's starts are refused at the user's limit, all users
// together at the installation's, and what removes something always passes and makes room.
func TestStateBytes_AUserFillsItsOwnOnly(t *testing.T) {
	t.Parallel()
	f := newStateFixture(t)
	start := func(user string, i int) (Result, error) {
		id := fmt.Sprint(user, i)
		cmd := f.command(user, &StartTaskCreateBody{ID: id, ConversationID: id, Request: messageOf(490 << 10)})
		cmd.Fingerprint = "f"
		return f.apply(cmd)
	}
	fill := func(user, limit string) (n int) {
		t.Helper()
		for n = 1; n < 20; n++ {
			_, err := start(user, n)
			if err == nil {
				continue
			}
			if e := asError(err); e.Limit != limit || !strings.Contains(e.Message, "delete") {
				t.Fatalf("%s is refused with %+v", user, e)
			}
			break
		}
		return n - 1
	}
	if n := fill("ada", "user_state_bytes"); n != 4 {
		t.Errorf("ada has %d starts of 490 KiB in 2 MiB", n)
	}
	if n := fill("bob", "user_state_bytes"); n != 4 {
		t.Errorf("bob has %d starts", n)
	}
	if n := fill("cyd", "installation_state_bytes"); n != 1 && n != 2 {
		t.Errorf("cyd has %d starts in what ada and bob left", n)
	}
	before := f.store.View().Usage("ada").StateBytes
	f.do("", &StartTaskFailBody{ID: "ada1", Detail: "no room"})
	if left := before - f.store.View().Usage("ada").StateBytes; left < 490<<10 {
		t.Errorf("the end of a task gave back %d bytes", left)
	}
	if _, err := start("ada", 9); err != nil {
		t.Errorf("after it: %v", err)
	}
	if got, max := f.store.View().Usage("").StateBytes, 5<<20; got > max {
		t.Errorf("the state has %d bytes", got)
	}
}

// TestStateBytes_GrowingCommands: each command with which a user adds something is refused at the
// limit, changes nothing, and the admissions say the same; those that remove pass.
func TestStateBytes_GrowingCommands(t *testing.T) {
	t.Parallel()
	f := newStateFixture(t)
	f.conversation("ada", "c1")
	f.sandbox("ada", "sb1")
	for i := 0; ; i++ {
		id := fmt.Sprint("fill", i)
		if _, err := f.apply(f.command("ada",
			&StartTaskCreateBody{ID: id, ConversationID: id, Request: messageOf(100 << 10)})); err != nil {
			break
		}
	}
	for i := 0; ; i++ {
		name := fmt.Sprint("s", i)
		if _, err := f.apply(f.command("ada",
			&SettingsPutBody{
				CustomSecrets: []CustomSecret{
					{Name: name, Description: strings.Repeat("d", 4000), Ref: SecretRef{Path: name, Version: 1}},
				},
			})); err != nil {
			break
		}
	}
	secret := CustomSecret{Name: "new", Description: strings.Repeat("d", 4000), Ref: SecretRef{Path: "p", Version: 1}}
	var providers []Provider
	for _, kind := range []ProviderType{
		ProviderGitHub,
		ProviderGitLab,
		ProviderForgejo,
		ProviderBitbucket,
		ProviderAzureDevOps,
		ProviderBitbucketDataCenter,
	} {
		providers = append(providers,
			Provider{Type: kind, Host: ptr(strings.Repeat("h", 250)), ExternalUserID: ptr(strings.Repeat("u", 250))})
	}
	settings := &SettingsPutBody{CustomSecrets: []CustomSecret{secret}}
	for _, body := range []Body{
		settings,
		&SettingsPutBody{Values: SettingsValues{Language: ptr(strings.Repeat("é", 4000))}},
		&ProvidersReplaceBody{Providers: providers},
		&ConversationUpdateBody{ID: "c1", Set: []string{"title"}, Title: ptr(strings.Repeat("é", 4000))},
		&StartTaskCreateBody{ID: "t9", ConversationID: "c9", Request: StartRequest{SandboxID: ptr("sb1")}},
	} {
		if e := f.fails(CodeLimit, "ada", body); e.Limit != "user_state_bytes" {
			t.Errorf("%s: %+v", body.CommandType(), e)
		}
		switch body.(type) {
		case *SettingsPutBody, *ProvidersReplaceBody, *StartTaskCreateBody: // they come with secrets
			if err := f.store.View().GrowthAdmission(f.command("ada", body)); err == nil || err.Limit != "user_state_bytes" {
				t.Errorf("GrowthAdmission of %s: %v", body.CommandType(), err)
			}
		}
	}
	v := f.store.View()
	if err := v.SettingsAdmission("ada", settings, f.now); err == nil || err.Code != CodeLimit {
		t.Errorf("SettingsAdmission: %v", err)
	}
	if err := v.StartAdmission("ada", &StartRequest{SandboxID: ptr("sb1")}, f.now); err == nil ||
		err.Limit != "user_state_bytes" {
		t.Errorf("StartAdmission: %v", err)
	}
	f.do("ada", &SandboxPauseBody{ID: "sb1"})
	f.do("ada", &SandboxResumeBody{ID: "sb1"})
	f.do("ada", &ConversationUpdateBody{ID: "c1", Set: []string{"public"}, Public: ptr(true)})
	f.do("ada", &ConversationDeleteBody{ID: "c1"})
	f.do("ada", &SandboxDeleteBody{ID: "sb1"})
	f.do("", &SandboxRemoveBody{ID: "sb1"})
	if got, _ := v.StateLimits("ada"); v.Usage("ada").StateBytes > got {
		t.Errorf("%d bytes over a limit of %d", v.Usage("ada").StateBytes, got)
	}
}

// TestStateBytes_ResultsOfAFullState: a result that no longer fits is remembered like an internal
// one, so a repetition still has one effect.
func TestStateBytes_ResultsOfAFullState(t *testing.T) {
	t.Parallel()
	f := newStateFixture(t)
	f.sandbox("ada", "sb1")
	for i := 0; ; i++ {
		cmd := f.command("ada", &SandboxPauseBody{ID: "sb1"})
		cmd.Fingerprint = "f"
		if _, err := f.apply(cmd); err != nil {
			t.Fatal(err)
		}
		if i > 2000 {
			f.index++
			if r, err := f.apply(cmd); err != nil || !r.Replayed {
				t.Errorf("the last one again: %+v %v", r, err)
			}
			break
		}
	}
	if got := f.store.View().Usage("ada").StateBytes; got > 2<<20 {
		t.Errorf("the state has %d bytes", got)
	}
}

// TestStartTask_BodiesLeaveTheState: when a task ends, its message leaves the task and the result of
// its command, which stays repeatable. Below VersionAccess it stays, as older nodes keep it.
func TestStartTask_BodiesLeaveTheState(t *testing.T) {
	t.Parallel()
	for version, left := range map[int]bool{VersionCharacters: false, ProtocolVersion: true} {
		f := newFixture(t).open()
		f.do("", &ProtocolRaiseBody{Version: version})
		for _, id := range []string{"ready", "failed"} {
			create := f.command("ada", &StartTaskCreateBody{ID: "t" + id, ConversationID: id, Request: messageOf(1 << 20)})
			create.Fingerprint = "f"
			if r, err := f.apply(create); err != nil || len(r.StartTask.Request.InitialMessage.Content) != 1 {
				t.Fatal(r, err)
			}
			if open := f.store.View().StartTask("ada", "t"+id); len(open.Request.InitialMessage.Content[0].Text) != 1<<20 {
				t.Error("the open task has no message for the agent")
			}
			if id == "failed" {
				f.do("", &StartTaskFailBody{ID: "t" + id, Detail: "no"})
			} else {
				f.do("", &StartTaskBindBody{ID: "t" + id, SandboxID: "sb", Create: newSandboxBody("sb")})
				f.do("", &StartTaskFinishBody{ID: "t" + id, Conversation: Conversation{ID: id}})
			}
			got := f.store.View().StartTask("ada", "t"+id).Request
			if m := got.InitialMessage; (len(m.Content) == 0) != left || (got.SystemMessageSuffix == nil) != left ||
				*got.Title != "t" || !m.Run {
				t.Errorf("version %d, %s: %+v", version, id, m)
			}
			again, err := f.apply(create)
			if err != nil || !again.Replayed || again.StartTask.ID != "t"+id || *again.StartTask.Request.Title != "t" {
				t.Errorf("version %d, %s again: %+v %v", version, id, again, err)
			}
		}
		size := len(persist(t, f.store))
		if (size < 1<<20) != left {
			t.Errorf("version %d: the state has %d bytes", version, size)
		}
	}
}

// TestStartTask_EndedOnesAreBoundedInBytes: what ended tasks keep of their requests is bounded too.
func TestStartTask_EndedOnesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	for i := range 40 {
		q := StartRequest{ObservabilityTags: []string{}}
		for range 120 {
			q.ObservabilityTags = append(q.ObservabilityTags, strings.Repeat("x", 4000))
		}
		id := fmt.Sprint("t", i)
		f.do("ada", &StartTaskCreateBody{ID: id, ConversationID: id, Request: q})
		f.do("", &StartTaskFailBody{ID: id, Detail: "no"})
	}
	u := f.store.View().Usage("ada")
	if u.doneBytes > maxDoneBytes || u.StateBytes > maxDoneBytes {
		t.Errorf("%+v", u)
	}
	if f.store.View().StartTask("ada", "t39") == nil || f.store.View().StartTask("ada", "t0") != nil {
		t.Error("not the oldest were dropped")
	}
}
