package fsm

import (
	"testing"
)

// A conversation of an LLM profile has the profile's key while the profile leads where it goes.
func TestKeyOf_Profile(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	key := func(path string, version int) SecretRef { return SecretRef{Path: path, Version: version} }
	save := func(url string, ref SecretRef) {
		t.Helper()
		f.do("ada", &ProfilePutBody{Profile: Profile{
			Kind: ProfileLLM, Name: "fast", ID: "p1", Model: "openai/gpt-5", BaseURL: url, Key: ref,
		}})
	}
	save("https://a", key("profile", 1))
	f.do("ada", &StartTaskCreateBody{ID: "t1", ConversationID: "c1", LLMProfile: "p1"})
	e := f.store.View().StartTask("ada", "t1").LLM
	if e == nil || e.Profile != "p1" || e.BaseURL != "https://a" || e.Key != "profile" {
		t.Fatalf("the start goes to %+v", e)
	}
	want := func(user string, ref SecretRef, stored bool) {
		t.Helper()
		if got, ok := f.store.View().KeyOf(user, *e, leadsTo); got != ref || ok != stored {
			t.Errorf("the key is %+v, %v; want %+v, %v", got, ok, ref, stored)
		}
	}
	want("ada", key("profile", 1), true)
	want("bob", SecretRef{}, false)
	settings := key("settings", 1)
	f.do("ada", llmSettings("openai/gpt-5", "https://a", &settings))
	want("ada", key("profile", 1), true)
	save("https://a", key("profile", 2))
	want("ada", key("profile", 2), true)
	// One that leads elsewhere has no key for here: the settings have.
	save("https://b", key("profile", 3))
	want("ada", settings, true)
	f.do("ada", &ProfileDeleteBody{ProfileLLM, "fast"})
	want("ada", settings, true)
	f.do("ada", llmSettings("openai/gpt-5", "https://c", &SecretRef{}))
	want("ada", settings, true) // they led there before
}

// A profile that is renamed or applied counts no value as replaced, and one that is deleted does.
func TestProfile_ReplacedKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	replaced := func(want int) {
		t.Helper()
		n := 0
		for range withPrefix[replacedSecret](f.store.View().txn, tableReplaced, indexID, nil) {
			n++
		}
		if n != want {
			t.Errorf("%d values were replaced, want %d", n, want)
		}
	}
	put := &ProfilePutBody{Profile: Profile{
		Kind: ProfileLLM, Name: "fast", ID: "p1", Model: "m", Key: SecretRef{Path: "profile", Version: 1, Bytes: 4},
	}}
	f.do("ada", put)
	f.do("ada", &ProfileRenameBody{ProfileLLM, "fast", "slow"})
	replaced(0)
	f.do("ada", &ProfileActivateBody{Kind: ProfileLLM, Name: "slow"})
	f.do("ada", &ProfileDeleteBody{ProfileLLM, "slow"})
	replaced(0) // the settings have it
	f.do("ada", put)
	f.do("ada", &SettingsPutBody{LLMAPIKey: &SecretRef{}})
	replaced(0)
	f.do("ada", &ProfileDeleteBody{ProfileLLM, "fast"})
	replaced(1)
	f.do("ada", &CustomSecretPutBody{CustomSecret{Name: "A", Ref: SecretRef{Path: "a", Version: 1, Bytes: 4}}})
	f.do("ada", &CustomSecretUpdateBody{"A", "B", ""})
	replaced(1)
	f.do("ada", &CustomSecretDeleteBody{"B"})
	replaced(2)
	if refs := f.store.View().SecretsOf("ada"); len(refs) != 0 {
		t.Errorf("the user still refers to %v", refs)
	}
}

// The rules of bodies and the limit of profiles.
func TestProfilePut_Refused(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	for i := range MaxProfiles {
		for _, kind := range []ProfileKind{ProfileLLM, ProfileAgent} {
			p := Profile{Kind: kind, Name: string(kind) + string(rune('a'+i%26)) + string(rune('a'+i/26))}
			if p.ID = p.Name; kind == ProfileAgent {
				p.Document = []byte(`{}`)
			}
			f.do("ada", &ProfilePutBody{Profile: p})
		}
	}
	over := &ProfilePutBody{Profile: Profile{
		Kind: ProfileLLM, Name: "more", ID: "more", Key: SecretRef{Path: "p", Version: 1},
	}}
	_ = f.fails(CodeConflict, "ada", over)
	if err := f.store.View().GrowthAdmission(f.command("ada", over)); err == nil || err.Code != CodeConflict {
		t.Errorf("GrowthAdmission: %v", err)
	}
	f.do("bob", over)
	large := append([]byte(`{"a":"`), make([]byte, MaxProfileDocument)...)
	for name, p := range map[string]Profile{
		"large": {Kind: ProfileAgent, Name: "a", ID: "a", Document: append(large, `"}`...)},
		"no id": {Kind: ProfileLLM, Name: "a"},
		"owner": {Kind: ProfileLLM, Name: "a", ID: "a", UserID: "eve"},
		"mark":  {Kind: ProfileLLM, Name: "a", ID: "a", Active: true},
		"none":  {Kind: ProfileAgent, Name: "a", ID: "a"},
		"cut":   {Kind: ProfileAgent, Name: "a", ID: "a", Document: []byte(`{`)},
	} {
		if err := Validate(&ProfilePutBody{Profile: p}); CodeOf(err) != CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
