package fsm

import "testing"

// An operator's command about another user's sandbox needs an operator's key in Apply too, and a
// cluster in which every node knows it.
func TestOperatorCommands_NeedAnOperatorsKey(t *testing.T) {
	f := newFixture(t).open()
	f.sandbox("bob", "s1")
	f.do("", &APIKeyCreateBody{Lookup: "kr", Hash: sha("kr"), UserID: "root", Operator: true})
	f.do("", &APIKeyCreateBody{Lookup: "ka", Hash: sha("ka"), UserID: "ada"})
	root, user := &APIKey{Lookup: "kr"}, &APIKey{Lookup: "ka"}
	ask := func(as string, key *APIKey, body Body) error {
		cmd := f.command(as, body)
		if key != nil {
			cmd.Credential = Credential{Lookup: key.Lookup}
		}
		_, err := f.apply(cmd)
		return err
	}
	pause := &SandboxPauseBody{ID: "s1", Operator: true}
	f.do("", &ProtocolRaiseBody{Version: VersionCharacters})
	if code := CodeOf(ask("root", root, pause)); code != CodeNotFound {
		t.Errorf("below its version: %q", code)
	}
	f.do("", &ProtocolRaiseBody{Version: VersionAccess})
	unshare := &SandboxUnshareBody{ID: "s1", Port: "WORKER_1", Operator: true}
	if code := CodeOf(ask("root", root, unshare)); code != CodeNotFound {
		t.Errorf("unshare, below its version: %q", code)
	}
	f.do("", &ProtocolRaiseBody{Version: VersionRotate})
	for name, c := range map[string]struct {
		as  string
		key *APIKey
	}{"no key": {"root", nil}, "a user's key": {"ada", user}, "the owner without a key": {"bob", nil}} {
		for _, body := range []Body{pause, &SandboxResumeBody{
			ID:       "s1",
			Operator: true,
		}, &SandboxDeleteBody{ID: "s1", Operator: true},
			unshare, &ConversationDeleteBody{ID: "c1", Owner: "bob"}} {
			if code := CodeOf(ask(c.as, c.key, body)); code != CodeForbidden {
				t.Errorf("%s, %s: %q", name, body.CommandType(), code)
			}
		}
	}
	for _, body := range []Body{pause, unshare} {
		if err := ask("root", root, body); err != nil {
			t.Fatal(err)
		}
	}
	if sb := f.store.View().SandboxAny("s1"); sb.Desired != DesiredPaused || sb.UserID != "bob" {
		t.Errorf("%+v", sb)
	}
}
