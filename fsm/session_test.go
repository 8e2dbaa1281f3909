package fsm

import (
	"fmt"
	"testing"
	"time"
)

// signedIn is withCredentials with ada's session "token", as a credential.
func signedIn(t *testing.T) (*fixture, Credential) {
	t.Helper()
	f := withCredentials(t, ProtocolVersion)
	f.do("ada", &SessionCreateBody{Hash: sha("token"), KeyID: 1})
	return f, Credential{Lookup: "ka", KeyHash: sha("token")}
}

// TestSession_Credential: a session acts for its user as long as it has not ended and its key is
// good, in Apply and in views alike. What ended it does not bring it back.
func TestSession_Credential(t *testing.T) {
	t.Parallel()
	later := func(d time.Duration) func(*fixture) { return func(f *fixture) { f.now = f.now.Add(d) } }
	for name, c := range map[string]struct {
		before func(*fixture)
		good   bool
	}{
		"it was just made":        {func(*fixture) {}, true},
		"another user signs out":  {func(f *fixture) { f.do("bob", &SessionEndBody{Hash: sha("token")}) }, true},
		"its user signs out":      {func(f *fixture) { f.do("ada", &SessionEndBody{Hash: sha("token")}) }, false},
		"it is idle for 11 hours": {later(11 * time.Hour), true},
		"it is idle for 12 hours": {later(12 * time.Hour), false},
		"it is used for six days": {func(f *fixture) { keepSeen(f, 6*24*time.Hour) }, true},
		"it is used for a week":   {func(f *fixture) { keepSeen(f, 7*24*time.Hour) }, false},
		"another key is revoked":  {func(f *fixture) { f.do("", &APIKeyRevokeBody{ID: 2}) }, true},
		"its key is revoked": {func(f *fixture) {
			f.do("", &APIKeyCreateBody{Lookup: "kc", Hash: sha("kc"), UserID: "ada"})
			f.do("", &APIKeyRevokeBody{ID: 1})
		}, false},
		"its key is disabled and enabled": {func(f *fixture) {
			f.do("", &APIKeyDisableBody{ID: 1})
			f.do("", &APIKeyEnableBody{ID: 1})
		}, false},
		"its user is disabled and enabled": {func(f *fixture) {
			f.do("", &UserDisableBody{UserID: "ada"})
			f.do("", &UserEnableBody{UserID: "ada"})
		}, false},
		"ten others of its user were made": {func(f *fixture) {
			for i := range MaxSessions {
				f.do("ada", &SessionCreateBody{Hash: sha(fmt.Sprint("other", i)), KeyID: 1})
			}
		}, false},
		"ten others of another user were made": {func(f *fixture) {
			for i := range MaxSessions {
				f.do("bob", &SessionCreateBody{Hash: sha(fmt.Sprint("other", i)), KeyID: 2})
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, session := signedIn(t)
			c.before(f)
			f.store = restored(t, f.store)
			cmd := f.command("ada", &SettingsPutBody{})
			cmd.Credential = session
			if _, err := f.apply(cmd); (err == nil) != c.good || err != nil && CodeOf(err) != CodeUnauthorized {
				t.Errorf("it comes to %v, want it applied: %t", err, c.good)
			}
			if f.store.View().Good("ada", session, f.now) != c.good {
				t.Errorf("the view says %t", !c.good)
			}
		})
	}
}

// keepSeen uses the session for a time, as a page does that is open.
func keepSeen(f *fixture, d time.Duration) {
	for end := f.now.Add(d); f.now.Before(end); f.now = f.now.Add(time.Hour) {
		f.do("", &SessionSeenBody{Uses: []SessionUse{{Hash: sha("token"), At: f.now}}})
	}
}

// TestSession_OfOthers: a session is no credential of another user, of another key, or of a
// sandbox.
func TestSession_OfOthers(t *testing.T) {
	t.Parallel()
	f, session := signedIn(t)
	f.do("", &APIKeyCreateBody{Lookup: "kc", Hash: sha("kc"), UserID: "ada"})
	for name, c := range map[string]struct {
		user string
		of   Credential
	}{
		"another user":          {"bob", session},
		"another user's key":    {"bob", Credential{Lookup: "kb", KeyHash: session.KeyHash}},
		"another key":           {"ada", Credential{Lookup: "kc", KeyHash: session.KeyHash}},
		"an unknown session":    {"ada", Credential{Lookup: "ka", KeyHash: sha("x")}},
		"as a sandbox":          {"ada", Credential{SandboxID: "sb", KeyHash: session.KeyHash}},
		"the hash of its key":   {"ada", Credential{Lookup: "ka", KeyHash: sha("ka")}},
		"a session without key": {"ada", Credential{KeyHash: session.KeyHash}},
	} {
		if f.store.View().Good(c.user, c.of, f.now) {
			t.Errorf("%s is good", name)
		}
	}
}

// TestSession_DoesNotOperate: the session of an operator acts as a user's, and no session makes
// another one or a code.
func TestSession_DoesNotOperate(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	f.do("", &APIKeyCreateBody{Lookup: "kr", Hash: sha("kr"), UserID: "root", Operator: true})
	f.do("root", &SessionCreateBody{Hash: sha("token"), KeyID: 1})
	f.sandbox("ada", "sb")
	for _, body := range []Body{
		&APIKeyRevokeBody{ID: 1}, &UserDisableBody{UserID: "ada"}, &SandboxPauseBody{ID: "sb", Operator: true},
		&SessionCreateBody{Hash: sha("second"), KeyID: 1}, &SessionOfferBody{Hash: sha("code"), KeyID: 1},
	} {
		cmd := f.command("root", body)
		cmd.Credential = Credential{Lookup: "kr", KeyHash: sha("token")}
		if _, err := f.apply(cmd); CodeOf(err) != CodeForbidden {
			t.Errorf("%s: %v", cmd.Type, err)
		}
		cmd = f.command("root", &SettingsPutBody{})
		cmd.Credential = Credential{Lookup: "kr", KeyHash: sha("token")}
		if _, err := f.apply(cmd); err != nil {
			t.Errorf("after %s: %v", body.CommandType(), err)
		}
	}
}

// TestOwnKey_EndsWithItsMaker: a key that a session or a limited key makes lasts no longer than what
// it was made with.
func TestOwnKey_EndsWithItsMaker(t *testing.T) {
	t.Parallel()
	f, session := signedIn(t)
	week, day, hour := f.now.Add(SessionAge), f.now.Add(24*time.Hour), f.now.Add(time.Hour)
	f.do("", &APIKeyCreateBody{Lookup: "kd", Hash: sha("kd"), UserID: "ada", ExpiresAt: &day})
	cmd := f.command("ada", &SessionCreateBody{Hash: sha("days"), KeyID: 3})
	if _, err := f.apply(cmd); err != nil {
		t.Fatal(err)
	}
	later := week.Add(time.Hour)
	for name, c := range map[string]struct {
		by          Credential
		asked, want *time.Time
		code        Code
	}{
		"a session":                           {session, nil, &week, ""},
		"a session, for an hour":              {session, &hour, &hour, ""},
		"a session, for more than a week":     {session, &later, nil, CodeInvalid},
		"a key of a day":                      {Credential{Lookup: "kd"}, nil, &day, ""},
		"a key of a day, for an hour":         {Credential{Lookup: "kd"}, &hour, &hour, ""},
		"a key of a day, for a week":          {Credential{Lookup: "kd"}, &week, nil, CodeInvalid},
		"a session of a key of a day":         {Credential{Lookup: "kd", KeyHash: sha("days")}, nil, &day, ""},
		"a key without an end":                {Credential{Lookup: "ka"}, nil, nil, ""},
		"a key without an end, for a week on": {Credential{Lookup: "ka"}, &later, &later, ""},
	} {
		cmd := f.command("ada", &OwnKeyCreateBody{Lookup: sha(name)[:12], Hash: sha(name)})
		cmd.Body.(*OwnKeyCreateBody).ExpiresAt, cmd.Credential = c.asked, c.by
		res, err := f.apply(cmd)
		if CodeOf(err) != c.code && !(err == nil && c.code == "") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err != nil {
			continue
		}
		if got := res.APIKey.ExpiresAt; (got == nil) != (c.want == nil) || got != nil && !got.Equal(*c.want) {
			t.Errorf("%s: the key ends at %v, want %v", name, got, c.want)
		}
	}
}

// TestSession_EndsWithTheHistory: after a restore or a recovery nobody is signed in.
func TestSession_EndsWithTheHistory(t *testing.T) {
	t.Parallel()
	f, session := signedIn(t)
	f.do("ada", &SessionOfferBody{Hash: sha("code"), KeyID: 1})
	f.index += 10
	if _, err := f.store.Succeed(Succession{ID: "act", At: f.now, Kind: FindingRecovered, Index: f.index}); err != nil {
		t.Fatal(err)
	}
	v := f.store.View()
	if !v.Good("ada", Credential{Lookup: "ka"}, f.now) {
		t.Error("the key is good no more")
	}
	if v.Good("ada", session, f.now) || v.SignInCode(sha("code")) != nil {
		t.Error("a session or a code is left")
	}
}
