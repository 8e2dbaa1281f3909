package fsm

import (
	"fmt"
	"testing"
	"time"
)

// TestApply_LockedOut: nothing of a user without a valid API key, or who is disabled, may act, from
// VersionAccess on.
func TestApply_LockedOut(t *testing.T) {
	t.Parallel()
	apiKey, sandboxs := Credential{Lookup: "ka"}, Credential{SandboxID: "sb", KeyHash: sha("sb")}
	for name, c := range map[string]struct {
		before                func(*fixture)
		apiKey, sandbox, none bool
	}{
		"nothing happened":         {func(*fixture) {}, true, true, true},
		"the last key was revoked": {func(f *fixture) { f.do("", &APIKeyRevokeBody{ID: 1}) }, false, false, true},
		"one of two was revoked": {func(f *fixture) {
			f.do("", &APIKeyCreateBody{Lookup: "ka2", Hash: sha("ka2"), UserID: "ada"})
			f.do("", &APIKeyRevokeBody{ID: 1})
		}, false, true, true},
		"the key is disabled": {func(f *fixture) { f.do("", &APIKeyDisableBody{ID: 1}) }, false, false, true},
		"the key is enabled again": {func(f *fixture) {
			f.do("", &APIKeyDisableBody{ID: 1})
			f.do("", &APIKeyEnableBody{ID: 1})
		}, true, true, true},
		"the user is disabled": {func(f *fixture) { f.do("", &UserDisableBody{UserID: "ada"}) }, false, false, false},
		"the user is enabled again": {func(f *fixture) {
			f.do("", &UserDisableBody{UserID: "ada"})
			f.do("", &UserEnableBody{UserID: "ada"})
		}, true, true, true},
		"another user is disabled": {func(f *fixture) { f.do("", &UserDisableBody{UserID: "bob"}) }, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := withCredentials(t, VersionAccess)
			c.before(f)
			for _, one := range []struct {
				credential Credential
				good       bool
			}{{apiKey, c.apiKey}, {sandboxs, c.sandbox}, {Credential{}, c.none}} {
				cmd := f.command("ada", &SettingsPutBody{})
				cmd.Credential = one.credential
				if _, err := f.apply(cmd); (err == nil) != one.good || err != nil && CodeOf(err) != CodeUnauthorized {
					t.Errorf("%+v comes to %v, want it applied: %t", one.credential, err, one.good)
				}
				if !one.credential.IsZero() && f.store.View().Good("ada", one.credential, f.now) != one.good {
					t.Errorf("%+v: the view says %t", one.credential, !one.good)
				}
			}
		})
	}
}

// TestAPIKey_Expires: a key ends at its time, in Apply by the time of the command and in a view by
// the caller's clock. With it ends what opens with the user's sandbox keys.
func TestAPIKey_Expires(t *testing.T) {
	t.Parallel()
	f := withCredentials(t, VersionAccess)
	end := f.now.Add(time.Hour)
	f.do("", &APIKeyCreateBody{Lookup: "ke", Hash: sha("ke"), UserID: "eve", ExpiresAt: &end})
	f.sandbox("eve", "se")
	credentials := []Credential{{Lookup: "ke"}, {SandboxID: "se", KeyHash: sha("se")}}
	for _, c := range []struct {
		at   time.Time
		good bool
	}{{end.Add(-time.Microsecond), true}, {end, false}, {end.Add(time.Hour), false}} {
		for i, credential := range credentials {
			f.index++
			cmd := NewCommand(fmt.Sprint("at", c.at, i), c.at, "eve", &SettingsPutBody{})
			cmd.Credential = credential
			if _, err := f.store.Apply(f.index, recode(t, cmd)); (err == nil) != c.good ||
				err != nil && CodeOf(err) != CodeUnauthorized {
				t.Errorf("%+v at %v: %v", credential, c.at, err)
			}
			if f.store.View().Good("eve", credential, c.at) != c.good {
				t.Errorf("%+v at %v: the view says %t", credential, c.at, !c.good)
			}
		}
	}
}

// TestAPIKey_RolesOfOlderKeys: below VersionAccess keys are stored as before. The raise gives each
// its role, and an older log comes to the same state over a snapshot.
func TestAPIKey_RolesOfOlderKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: VersionAccess - 1})
	end := f.now.Add(time.Hour)
	f.do("", &APIKeyCreateBody{Lookup: "ka", Hash: sha("ka"), UserID: "ada", Operator: true, ExpiresAt: &end})
	f.do("", &APIKeyCreateBody{Lookup: "kb", Hash: sha("kb"), UserID: "bob"})
	v := f.store.View()
	if a := v.APIKeyByLookup("ka"); !a.Operator || a.Role != "" || a.ExpiresAt != nil || !a.IsOperator() {
		t.Errorf("below the version: %+v", a)
	}
	raise := f.command("", &ProtocolRaiseBody{Version: VersionAccess})
	direct, over := f.store, restored(t, f.store)
	for _, s := range []*Store{direct, over} {
		if _, err := s.Apply(f.index+1, raise); err != nil {
			t.Fatal(err)
		}
		for lookup, role := range map[string]Role{"ka": RoleOperator, "kb": RoleUser} {
			if k := s.View().APIKeyByLookup(lookup); k.Role != role || k.Operator || k.RoleOf() != role {
				t.Errorf("%s after the raise: %+v", lookup, k)
			}
		}
	}
	if direct.Checksum() != over.Checksum() {
		t.Error("the states differ")
	}
}

// TestBootstrap_WhenOperatorsAreDisabled: a disabled operator's key does not prevent a first key.
func TestBootstrap_WhenOperatorsAreDisabled(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: VersionAccess})
	first := &APIKeyCreateBody{Lookup: "k1", Hash: sha("k1"), UserID: "ada", Operator: true, Bootstrap: true}
	second := &APIKeyCreateBody{Lookup: "k2", Hash: sha("k2"), UserID: "ada", Operator: true, Bootstrap: true}
	f.do("", first)
	_ = f.fails(CodeConflict, "", second)
	f.do("", &UserDisableBody{UserID: "ada"})
	k := f.do("", second).APIKey
	if !f.store.View().Good("ada", Credential{Lookup: k.Lookup}, f.now) {
		t.Error("the new key is of no use")
	}
}

// TestUserDelete_InABatch: within one batch, what follows the removal of a user finds none of the
// user's settings, as in batches of their own.
func TestUserDelete_InABatch(t *testing.T) {
	t.Parallel()
	var sums []string
	for _, batched := range []bool{false, true} {
		f := withCredentials(t, VersionAccess)
		f.do("ada", &SettingsPutBody{LLMAPIKey: &SecretRef{Path: "users/ada/settings/llm_api_key", Version: 1}})
		var entries []Entry
		for _, one := range []struct {
			user string
			body Body
		}{{
			"",
			&UserDeleteBody{UserID: "ada"},
		}, {"", &APIKeyCreateBody{Lookup: "kc", Hash: sha("kc"), UserID: "ada"}}, {"ada", &SettingsPutBody{}}} {
			cmd := f.command(one.user, one.body)
			entries = append(entries, Entry{f.index, recode(t, cmd)})
		}
		batches := [][]Entry{entries}
		if !batched {
			batches = [][]Entry{entries[:1], entries[1:2], entries[2:]}
		}
		for _, batch := range batches {
			for _, o := range f.store.ApplyBatch(batch) {
				if o.Err != nil {
					t.Fatal(o.Err)
				}
			}
		}
		if s := f.store.View().Settings("ada"); !s.LLMAPIKey.IsZero() {
			t.Errorf("batched %t: the key of before is in the settings", batched)
		}
		sums = append(sums, f.store.Checksum())
	}
	if sums[0] != sums[1] {
		t.Error("the states differ")
	}
}
