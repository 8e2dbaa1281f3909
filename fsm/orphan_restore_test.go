package fsm

import (
	"strings"
	"testing"
	"time"
)

// lostFixture has a sandbox "s1" of ada that was moved from the lost client-1, whose volume is v1.
func lostFixture(t *testing.T) *fixture {
	t.Helper()
	f := newStateFixture(t)
	f.do("", &TermOpenBody{Term: 2, Node: "n1", ClusterID: "test", Nonce: "n1"})
	f.do("root", &SpecApplyBody{Specs: []Spec{dockerSpec("py")}, Replace: true})
	f.do("root", &APIKeyCreateBody{Lookup: "ka", Hash: sha("ka"), UserID: "ada"})
	f.do("root", &APIKeyCreateBody{Lookup: "kb", Hash: sha("kb"), UserID: "bob"})
	f.do("ada", newSandboxBody("s1"))
	f.do("", &SandboxMoveBody{ID: "s1", From: "client-1"})
	f.do("", &SandboxMovedBody{ID: "s1", Attempt: 1, Home: Home{Volume: "v2", Client: "client-2", Lost: true}, Left: "v1"})
	return f
}

func restoreBody(id string) *OrphanRestoreBody {
	return &OrphanRestoreBody{
		Volume:  "v1",
		ID:      id,
		KeyRef:  SecretRef{Path: SandboxKeyPath(id), Version: 1},
		KeyHash: sha(id),
	}
}

// What a lost client has outlives its sandbox, counts for its user, and ends with its user.
func TestLost_EndsWithItsUser(t *testing.T) {
	t.Parallel()
	f := lostFixture(t)
	with := f.store.View().Usage("ada").StateBytes
	f.do("", &OrphanForgetBody{Kind: OrphanLost, Sandboxes: []string{"v1"}})
	if without := f.store.View().Usage("ada").StateBytes; with-without < lostHeap {
		t.Errorf("it counts %d bytes for its user", with-without)
	}
	f = lostFixture(t)
	f.do("ada", &SandboxDeleteBody{ID: "s1"})
	f.do("", &SandboxRemoveBody{ID: "s1"})
	o := f.store.View().Orphan(OrphanLost, "v1")
	if o == nil || o.Owner != "ada" || o.Sandbox != "s1" || o.SpecID != "py" {
		t.Fatalf("after its sandbox is gone: %+v", o)
	}
	if until := o.RetainedUntil(LostRetention); !until.Equal(o.Since.Add(30 * 24 * time.Hour)) {
		t.Errorf("it is kept until %s, and was found at %s", until, o.Since)
	}
	if got := f.store.View().Usage("ada"); got.StateBytes < lostHeap {
		t.Errorf("it counts %+v for its user", got)
	}
	f.do("root", &UserDeleteBody{UserID: "ada"})
	o = f.store.View().Orphan(OrphanLost, "v1")
	if o == nil || !o.Purged || o.Owner != "" || !o.RetainedUntil(LostRetention).Equal(o.Since) {
		t.Errorf("after the purge of its user: %+v", o)
	}
	if got := f.store.View().Usage("ada"); got != (Usage{}) {
		t.Errorf("the next owner of the name begins with %+v", got)
	}
	_ = f.fails(CodeConflict, "root", restoreBody("s2"))
}

// A restored sandbox is its former owner's. Nothing but the end of the restore gives it a workspace, and
// what it comes from stays.
func TestOrphanRestore(t *testing.T) {
	t.Parallel()
	for _, former := range []string{"there", "gone"} {
		f := lostFixture(t)
		if former == "gone" {
			f.do("ada", &SandboxDeleteBody{ID: "s1"})
			f.do("", &SandboxRemoveBody{ID: "s1"})
		}
		_ = f.fails(CodeNotFound, "root",
			&OrphanRestoreBody{Volume: "v9", ID: "s2", KeyRef: restoreBody("s2").KeyRef, KeyHash: sha("s2")})
		s := f.do("root", restoreBody("s2")).Sandbox
		if s.UserID != "ada" || s.SpecID != "py" || s.Template.Image == "" || s.State() != SandboxStarting || s.Home != nil ||
			s.Move == nil || s.Move.Orphan != "v1" || s.Move.From != "client-1" {
			t.Fatalf("%s: %+v, move %+v", former, s, s.Move)
		}
		if !f.store.View().Restoring("v1") {
			t.Error("nothing says that it is being restored")
		}
		if e := f.fails(CodeConflict, "root", restoreBody("s3")); !strings.Contains(e.Message, "s2") {
			t.Error(e)
		}
		_ = f.fails(CodeConflict, "root", &OrphanDeleteBody{Kind: OrphanLost, Sandbox: "v1"})
		_ = f.fails(CodeConflict, "", &SandboxMoveBody{ID: "s2", Attempt: 1, End: true})
		f.do("", &SandboxMoveBody{ID: "s2", Attempt: 1, From: "client-1"})
		s = f.do("", &SandboxMovedBody{ID: "s2", Attempt: 2, Home: Home{Volume: "v3", Client: "client-2"}}).Sandbox
		if s.Home.Volume != "v3" || s.Move != nil || s.Home.Lost {
			t.Errorf("%s: %+v", former, s.Home)
		}
		if f.store.View().Orphan(OrphanLost, "v1") == nil {
			t.Error("what it came from is off the record")
		}
		f.do("root", &OrphanDeleteBody{Kind: OrphanLost, Sandbox: "v1"})
		_ = f.fails(CodeConflict, "root", restoreBody("s4"))
	}
}

// The owner's limits hold for a restore, and the admission before it says the same.
func TestOrphanRestore_Limits(t *testing.T) {
	t.Parallel()
	f := lostFixture(t)
	f.do("root", &UserConfigureBody{UserID: "ada", Limits: &Limits{Running: 1}})
	if err := f.store.View().RestoreAdmission("v1", f.now); err == nil || err.Code != CodeLimit {
		t.Errorf("the admission says %v", err)
	}
	_ = f.fails(CodeLimit, "root", restoreBody("s2"))
	f.do("root", &UserConfigureBody{UserID: "ada", Limits: &Limits{Running: 2}})
	if err := f.store.View().RestoreAdmission("v1", f.now); err != nil {
		t.Errorf("the admission says %v", err)
	}
	f.do("root", restoreBody("s2"))
}

// A purge ends the retention of the workspaces that policies left, also where the policy's deletion is
// under way.
func TestUserDelete_TakesWhatPoliciesLeft(t *testing.T) {
	t.Parallel()
	f := lostFixture(t)
	for _, id := range []string{"s5", "s6"} {
		f.do("ada", newSandboxBody(id))
		f.do("ada", &SandboxPauseBody{ID: id})
		f.do("",
			&SandboxExpireBody{
				ID:         id,
				Generation: f.store.View().SandboxAny(id).Generation,
				Action:     ExpireDelete,
				Reason:     ReasonPausedTooLong,
			})
	}
	f.do("", &SandboxRemoveBody{ID: "s5"})
	o := f.store.View().Orphan(OrphanWorkspace, "s5")
	if o == nil || o.Owner != "ada" || o.Purged {
		t.Fatalf("on record is %+v", o)
	}
	f.do("",
		&OrphanNoteBody{Orphans: []Orphan{{Sandbox: "s5", Kind: OrphanWorkspace, Reason: OrphanUnowned, Birth: o.Birth}}})
	f.do("root", &UserDeleteBody{UserID: "ada"})
	if o := f.store.View().Orphan(OrphanWorkspace, "s5"); o == nil || !o.Purged || o.Owner != "" {
		t.Errorf("after the purge: %+v", o)
	}
	if s := f.store.View().SandboxAny("s6"); s == nil || s.KeepWorkspace {
		t.Errorf("the workspace of a sandbox that a policy is deleting stays: %+v", s)
	}
	f.do("", &SandboxRemoveBody{ID: "s6"})
	if o := f.store.View().Orphan(OrphanWorkspace, "s6"); o != nil {
		t.Errorf("it is kept: %+v", o)
	}
	f.do("", &SandboxRemoveBody{ID: "s1"})
	if got := f.store.View().Usage("ada"); got != (Usage{}) {
		t.Errorf("%+v is left", got)
	}
}

// A sandbox that a drain could not move and that is gone is no longer in its way.
func TestClientDrain_ForgetsWhatIsGone(t *testing.T) {
	t.Parallel()
	f := lostFixture(t)
	f.do("ada", newSandboxBody("s5"))
	f.do("root", &ClientMarkBody{ID: "client-1", Mark: ClientDraining})
	since := f.store.View().MarkOf("client-1").Since
	f.do("", &SandboxMoveBody{ID: "s5", From: "client-1"})
	f.do("", &SandboxMovedBody{ID: "s5", Attempt: 1, Home: Home{Volume: "v5", Client: "client-2"}})
	f.do("", &ClientDrainBody{ID: "client-1", Since: since, Sandbox: "s1", Failure: "a file can't be read"})
	if m := f.store.View().MarkOf("client-1"); m.Drain != DrainAll || len(m.Stays) != 1 {
		t.Fatalf("the mark is %+v", m)
	}
	f.do("ada", &SandboxDeleteBody{ID: "s1"})
	f.do("", &SandboxRemoveBody{ID: "s1"})
	if m := f.store.View().MarkOf("client-1"); m.Drain != DrainAll || len(m.Stays) != 0 || m.Failure != "" {
		t.Errorf("the mark is %+v", m)
	}
}
