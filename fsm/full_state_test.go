package fsm

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// fillWithResults fills ada's state with results of commands, until one is not kept for a day.
func fillWithResults(t *testing.T, f *fixture) (n int) {
	t.Helper()
	f.sandbox("ada", "sb1")
	for n = 0; n < 20000; n++ {
		before := f.store.View().Usage("ada").StateBytes
		f.index++
		if _, err := f.client("ada", fmt.Sprint("key", n), "f", &SandboxPauseBody{ID: "sb1"}); err != nil {
			t.Fatal(err)
		}
		if f.store.View().Usage("ada").StateBytes == before {
			return n
		}
	}
	t.Fatal("the results fill no limit")
	return 0
}

// TestFullState_WhatExpiredGivesItsRoom: results that have expired count for nothing: neither a view
// nor a command refuses anything for them, of the user's limit and of the installation's.
func TestFullState_WhatExpiredGivesItsRoom(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]Installation{
		"user":         {PerUser: Limits{StateBytes: 1 << 20}},
		"installation": {Overall: Limits{StateBytes: 1 << 20}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t).open()
			f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
			f.do("", &InstallationConfigureBody{Installation: limits})
			n := fillWithResults(t, f)
			who := map[string]string{"user": "ada", "installation": "bob"}[name]
			request := messageOf(64 << 10)
			task := &StartTaskCreateBody{ID: "t1", ConversationID: "t1", Request: request}
			if err := f.store.View().StartAdmission(who, &request, f.now); err == nil {
				t.Fatal("a view admits a start into a full state")
			}
			_ = f.fails(CodeLimit, who, task)
			f.now = f.now.Add(400 * 24 * time.Hour)
			if err := f.store.View().StartAdmission(who, &request, f.now); err != nil {
				t.Errorf("400 days later, of %d results, a view says: %v", n, err)
			}
			if _, err := f.client(who, "new", "f",
				&StartTaskCreateBody{ID: "t2", ConversationID: "t2", Request: request}); err != nil {
				t.Errorf("400 days later Apply says: %v", err)
			}
		})
	}
}

// TestFullState_AnyCommandCollects: commands of whatever kind collect what has expired, so a state
// that nobody fills gets its memory back, too.
func TestFullState_AnyCommandCollects(t *testing.T) {
	t.Parallel()
	f := newStateFixture(t)
	f.sandbox("ada", "sb1")
	for n := range 1000 {
		if _, err := f.client("ada", fmt.Sprint("key", n), "f", &SandboxPauseBody{ID: "sb1"}); err != nil {
			t.Fatal(err)
		}
	}
	f.now = f.now.Add(25 * time.Hour)
	for n := range 1000/expireAlways + 2 {
		f.do("", &TermOpenBody{Term: uint64(n + 2), Node: "n1", ClusterID: "test"})
	}
	if u := f.store.usageOf("ada"); u.clientCommands != 0 || u.clientWeight != 0 {
		t.Errorf("%+v are left", *u)
	}
}

// TestFullState_APurgeTakesResults: the next owner of a user's name gets no answer of the former
// owner, wherever it was kept; and what was sent before the purge and arrives after it has no effect.
func TestFullState_APurgeTakesResults(t *testing.T) {
	t.Parallel()
	f := newStateFixture(t)
	f.key("ada", "ka1", nil)
	n := fillWithResults(t, f) // key n is remembered for two minutes only
	task := f.command("ada",
		&StartTaskCreateBody{ID: "t1", ConversationID: "t1", Request: StartRequest{Title: ptr("mine")}})
	task.ID, task.Fingerprint = "key-task", "f"
	if _, err := f.apply(task); err != nil && CodeOf(err) != CodeLimit {
		t.Fatal(err)
	}
	f.do("root", &UserDeleteBody{UserID: "ada"})
	f.do("", &SandboxRemoveBody{ID: "sb1"})
	if got := f.store.View().Usage("ada"); got != (Usage{}) {
		t.Errorf("a purge leaves %+v", got)
	}
	f.key("ada", "ka2", nil)
	for _, id := range []string{"key0", fmt.Sprint("key", n-1), fmt.Sprint("key", n)} {
		r, err := f.client("ada", id, "f", &SandboxPauseBody{ID: "sb1"})
		if r.Sandbox != nil || err == nil || strings.Contains(err.Error(), "sb1") {
			t.Errorf("%s gets the former owner's answer: %+v, %v", id, r.Sandbox, err)
		}
	}
	f.now = f.now.Add(2 * InternalResultTTL)
	f.do("", &TermOpenBody{Term: 7, Node: "n1", ClusterID: "test"})
	for id := range f.store.commands.byID {
		if strings.HasPrefix(id, "key") {
			t.Errorf("%s is remembered for more than two minutes after the purge", id)
		}
	}
	if _, err := f.client("ada", fmt.Sprint("key", n), "f", &SandboxPauseBody{ID: "sb1"}); CodeOf(err) != CodeNotFound {
		t.Errorf("after two minutes the name is like new: %v", err)
	}
}

// TestFullState_SecretsCount: the secrets that a user's rows refer to count for the user, and give
// their room back.
func TestFullState_SecretsCount(t *testing.T) {
	t.Parallel()
	f := newStateFixture(t)
	put := func(i int) *SettingsPutBody {
		name := fmt.Sprint("s", i)
		return &SettingsPutBody{
			CustomSecrets: []CustomSecret{{Name: name, Ref: SecretRef{Path: name, Version: i + 1, Bytes: MaxSecretBytes}}},
		}
	}
	n := 0
	for ; n < 20; n++ {
		cmd := f.command("ada", put(n))
		admitted := f.store.View().GrowthAdmission(cmd)
		if _, err := f.apply(cmd); (err == nil) != (admitted == nil) {
			t.Fatalf("Apply says %v, the admission before it %v", err, admitted)
		} else if err != nil {
			break
		}
	}
	if n != 3 {
		t.Errorf("%d secrets of 512 KiB fit 2 MiB", n)
	}
	f.do("ada", put(1)) // in place of the former
	f.do("root", &APIKeyCreateBody{Lookup: "ka", Hash: sha("ka"), UserID: "ada"})
	f.do("root", &UserDeleteBody{UserID: "ada"})
	if got := f.store.View().Usage("ada"); got != (Usage{}) {
		t.Errorf("%+v is left", got)
	}
}
