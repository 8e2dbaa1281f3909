package fsm

import (
	"fmt"
	"testing"
	"time"
)

// withCredentials is a fixture at a protocol version with ada's key "ka" (1), her
// sandbox sb and bob's key "kb" (2).
func withCredentials(t *testing.T, version int) *fixture {
	t.Helper()
	f := newFixture(t).open()
	if version > 1 {
		f.do("", &ProtocolRaiseBody{Version: version})
	}
	f.do("", &APIKeyCreateBody{Lookup: "ka", Hash: sha("ka"), UserID: "ada"})
	f.do("", &APIKeyCreateBody{Lookup: "kb", Hash: sha("kb"), UserID: "bob"})
	f.sandbox("ada", "sb")
	return f
}

// TestApply_Credential: a command is refused when its key is no longer valid.
func TestApply_Credential(t *testing.T) {
	t.Parallel()
	sandboxs := Credential{SandboxID: "sb", KeyHash: sha("sb")}
	for name, c := range map[string]struct {
		credential Credential
		before     func(*fixture)
		good       bool
	}{
		"none":                    {Credential{}, nil, true},
		"her key":                 {Credential{Lookup: "ka"}, nil, true},
		"her sandbox's key":       {sandboxs, nil, true},
		"an unknown key":          {Credential{Lookup: "kx"}, nil, false},
		"another user's key":      {Credential{Lookup: "kb"}, nil, false},
		"a revoked key":           {Credential{Lookup: "ka"}, func(f *fixture) { f.do("", &APIKeyRevokeBody{ID: 1}) }, false},
		"another key was revoked": {Credential{Lookup: "ka"}, func(f *fixture) { f.do("", &APIKeyRevokeBody{ID: 2}) }, true},
		"a suspended key": {Credential{Lookup: "ka"}, func(f *fixture) {
			f.index++
			if _, err := f.store.Succeed(Succession{
				ID:          "act",
				At:          f.now,
				Kind:        FindingRestored,
				Index:       f.index,
				SuspendKeys: true,
			}); err != nil {
				f.t.Fatal(err)
			}
		}, false},
		"a sandbox that is being deleted": {sandboxs, func(f *fixture) { f.do("ada", &SandboxDeleteBody{ID: "sb"}) }, false},
		"a sandbox that is gone": {sandboxs, func(f *fixture) {
			f.do("ada", &SandboxDeleteBody{ID: "sb"})
			f.do("", &SandboxRemoveBody{ID: "sb"})
		}, false},
		"the sandbox had another key": {Credential{SandboxID: "sb", KeyHash: sha("other")}, nil, false},
		"a hash alone":                {Credential{KeyHash: sha("sb")}, nil, false},
	} {
		for _, version := range []int{2, 3} {
			t.Run(fmt.Sprint(name, " at version ", version), func(t *testing.T) {
				t.Parallel()
				f := withCredentials(t, version)
				if c.before != nil {
					c.before(f)
				}
				cmd := f.command("ada", &SettingsPutBody{})
				cmd.Credential = c.credential
				_, err := f.apply(cmd)
				if want := c.good || f.store.View().ProtocolVersion() < 3; (err == nil) != want ||
					err != nil && CodeOf(err) != CodeUnauthorized {
					t.Errorf("it comes to %v, want it applied: %t", err, want)
				}
				if stored := f.store.View().Settings("ada") != nil; stored != (err == nil) {
					t.Errorf("stored: %t, error %v", stored, err)
				}
				if f.store.View().Good("ada", c.credential, f.now) != c.good {
					t.Errorf("the view says %t", !c.good)
				}
			})
		}
	}
}

// TestApply_Credential_Repeated: a repeated command gets its result although its key was revoked.
// No other request with that key does. A refusal is not remembered under the client's id.
func TestApply_Credential_Repeated(t *testing.T) {
	t.Parallel()
	f := withCredentials(t, 3)
	f.do("", &APIKeyCreateBody{Lookup: "ka2", Hash: sha("ka2"), UserID: "ada"})
	ask := func(id, lookup string, at time.Time) (Result, error) {
		f.index++
		cmd := NewCommand(id, at, "ada", newSandboxBody("made-"+id))
		cmd.Fingerprint, cmd.Credential = "f", Credential{Lookup: lookup}
		return f.store.Apply(f.index, recode(t, cmd))
	}
	first := f.now
	if _, err := ask("one", "ka", first); err != nil {
		t.Fatal(err)
	}
	f.do("", &APIKeyRevokeBody{ID: 1})
	if r, err := ask("one", "ka", first); err != nil || !r.Replayed {
		t.Errorf("the same command again: %+v, %v", r, err)
	}
	if _, err := ask("one", "ka", first.Add(time.Second)); CodeOf(err) != CodeUnauthorized {
		t.Errorf("another request with the revoked key: %v", err)
	}
	if r, err := ask("one", "ka2", first.Add(2*time.Second)); err != nil || !r.Replayed {
		t.Errorf("with her other key: %+v, %v", r, err)
	}
	if _, err := ask("two", "ka", first.Add(3*time.Second)); CodeOf(err) != CodeUnauthorized {
		t.Errorf("a new one with the revoked key: %v", err)
	}
	if r, err := ask("two", "ka2", first.Add(4*time.Second)); err != nil || r.Replayed {
		t.Errorf("the same with her other key: %+v, %v", r, err)
	}
}

// TestView_KeysRevoked: a revocation wakes the waiters on Changed.
func TestView_KeysRevoked(t *testing.T) {
	t.Parallel()
	f := withCredentials(t, 3)
	before := f.store.View()
	f.do("ada", &SettingsPutBody{})
	if f.store.View().KeysRevoked() != before.KeysRevoked() {
		t.Error("settings changed the keys")
	}
	f.do("", &APIKeyRevokeBody{ID: 1})
	if got := f.store.View().KeysRevoked(); got != f.index {
		t.Errorf("keys were revoked at %d, want %d", got, f.index)
	}
	select {
	case <-before.Changed():
	default:
		t.Error("nobody is woken")
	}
}

// TestAPIKeyCreate_Bootstrap: a first key is issued while there is no valid operator key. The same
// request again returns the same key.
func TestAPIKeyCreate_Bootstrap(t *testing.T) {
	t.Parallel()
	f := raised(t)
	first := &APIKeyCreateBody{Lookup: "k1", Hash: sha("k1"), UserID: "ada", Operator: true, Bootstrap: true}
	other := &APIKeyCreateBody{Lookup: "k2", Hash: sha("k2"), UserID: "ada", Operator: true, Bootstrap: true}
	if a, b := f.do("", first).APIKey, f.do("", first).APIKey; a.ID != 1 || b.ID != 1 {
		t.Errorf("the same key twice is %+v and %+v", a, b)
	}
	_ = f.fails(CodeConflict, "", other)
	stolen := *first
	stolen.Hash = sha("guess")
	_ = f.fails(CodeConflict, "", &stolen)
	f.do("", &APIKeyCreateBody{Lookup: "u1", Hash: sha("u1"), UserID: "bob"})
	f.do("", &APIKeyRevokeBody{ID: 1})
	_ = f.fails(CodeConflict, "", first) // a revoked key is never issued again
	if k := f.do("", other).APIKey; k.ID != 3 || !k.IsOperator() {
		t.Errorf("the next one is %+v", k)
	}
	old := newFixture(t).open()
	old.do("", first)
	old.do("", &APIKeyRevokeBody{ID: 1})
	_ = old.fails(CodeConflict, "", other) // below version 3 as before
}
