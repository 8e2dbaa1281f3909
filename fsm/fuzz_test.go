package fsm

import (
	"bytes"
	"testing"
)

// FuzzApply: whatever a log entry holds, Apply answers; and the state it leaves
// is one that a snapshot brings back.
func FuzzApply(f *testing.F) {
	seed := newFixture(f)
	for _, body := range []Body{
		&SettingsPutBody{Providers: []Provider{{Type: ProviderGitHub}}}, newSandboxBody("s9"), &SandboxPauseBody{ID: "sb-c1"},
		&StartTaskCreateBody{ID: "t9", ConversationID: "c9", V0ID: "v"}, &ProvidersReplaceBody{},
		&ConversationUpdateBody{ID: "c1", Set: []string{"title"}}, &ConversationDeleteBody{ID: "c1", DeleteSandbox: true},
	} {
		add(f, seed.command("ada", body))
	}
	for _, body := range []Body{
		&StartTaskBindBody{ID: "t2", SandboxID: "s9", Create: newSandboxBody("s9")}, &SandboxRemoveBody{ID: "sb-bob"},
		&StartTaskAdvanceBody{ID: "t2", Status: StartTaskWorking}, &StartTaskFailBody{ID: "t2", Detail: "x"},
		goodObservation(), goodFinish(), &SpecApplyBody{Specs: []Spec{dockerSpec("go")}, Replace: true}, &APIKeyRevokeBody{ID: 1},
		&InstallationConfigureBody{Installation{PerUser: Limits{Running: 1}, OnLimit: OnLimitPauseOldest}}, &PoolDropBody{ID: "m1"},
		&UserConfigureBody{UserID: "ada", Limits: &Limits{CPU: 1}}, &SpecPoolBody{"py", 2}, &PoolAddBody{ID: "m2", SpecID: "py", InitRef: SecretRef{"p", 1}},
		&SandboxTouchBody{[]Touch{{"sb-c1", seed.now}}}, &SandboxExpireBody{ID: "sb-c1", Generation: 3, Action: ExpirePause, Reason: PausedByMaxRunning},
	} {
		add(f, seed.command("", body))
	}
	start := persist(f, populated(f).store)
	f.Fuzz(func(t *testing.T, raw []byte) {
		cmd, err := DecodeCommand(raw)
		if err != nil {
			return
		}
		if b, ok := cmd.Body.(*ProtocolRaiseBody); ok && b.Version > ProtocolVersion {
			return // stops the node, on purpose
		}
		s := NewStore()
		if err := s.Restore(bytes.NewReader(start)); err != nil {
			t.Fatal(err)
		}
		_, _ = s.Apply(100, cmd)
		if n := restored(t, s); n.Checksum() != s.Checksum() {
			t.Error("the snapshot brings back another state")
		}
	})
}

func add(f *testing.F, cmd Command) {
	raw, err := cmd.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
}

// FuzzRestore: a damaged snapshot is refused, never believed and never a crash.
func FuzzRestore(f *testing.F) {
	good := persist(f, populated(f).store)
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte(`{"bivouac_snapshot":1}` + "\n" + `{"table":"sandboxes","row":null}` + "\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := NewStore()
		if err := s.Restore(bytes.NewReader(raw)); err != nil && s.Index() != 0 {
			t.Error("a refused snapshot was believed")
		}
	})
}
