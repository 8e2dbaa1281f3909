package fsm

import (
	"fmt"
	"slices"
	"testing"
)

// leadsTo is a resolver of endpoints with one vendor, whose models begin with "gpt" or "o".
func leadsTo(model, baseURL string) string {
	if baseURL == "" && (family(model) == "gpt" || family(model) == "o") {
		return "https://vendor"
	}
	return baseURL + family(model)[:0]
}

// llmKey is the n-th version of ada's key.
func llmKey(n int) *SecretRef {
	return &SecretRef{Path: "users/ada/settings/llm_api_key", Version: n}
}

func llmSettings(model, url string, key *SecretRef) *SettingsPutBody {
	return &SettingsPutBody{Values: SettingsValues{LLMModel: &model, LLMBaseURL: &url}, LLMAPIKey: key}
}

// at raises the protocol version.
func (f *fixture) at(version int) *fixture {
	f.t.Helper()
	f.do("", &ProtocolRaiseBody{Version: version})
	return f
}

// goesTo returns where ada's conversation goes: URL, model and the version of the key, -1 for a key
// that is no longer stored.
func (f *fixture) goesTo(id string) string {
	f.t.Helper()
	c, s := f.store.View().Conversation("ada", id), f.store.View().Settings("ada")
	e := s.EndpointOf(c.LLM, c.LLMModel)
	ref, stored := s.KeyOf(e, leadsTo)
	if !stored {
		ref.Version = -1
	}
	return fmt.Sprint(leadsTo(e.Model, e.BaseURL), " ", e.Model, " ", ref.Version)
}

// TestEndpoint_BelongsToTheConversation: settings that change lead new conversations elsewhere, and
// each one that runs stays, with the key of its own endpoint.
func TestEndpoint_BelongsToTheConversation(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open().at(ProtocolVersion)
	at := func(id, want string) {
		t.Helper()
		if got := f.goesTo(id); got != want {
			t.Errorf("%s goes to %q, want %q", id, got, want)
		}
	}
	f.do("ada", llmSettings("m", "https://a", llmKey(1)))
	f.conversation("ada", "c1")
	f.do("ada", llmSettings("m", "https://b", llmKey(2)))
	f.conversation("ada", "c2")
	at("c1", "https://a m 1")
	at("c2", "https://b m 2")
	f.do("ada", llmSettings("n", "https://b", llmKey(3))) // a key that is rotated
	at("c1", "https://a m 1")
	at("c2", "https://b m 3")
	f.do("ada", llmSettings("gpt-5", "", llmKey(4)))
	f.conversation("ada", "c3")
	f.do("ada", llmSettings("o3", "", llmKey(5))) // the same vendor
	at("c2", "https://b m 3")
	at("c3", "https://vendor gpt-5 5")
	f.do("ada", llmSettings("m", "https://b", nil)) // back, with the key of that endpoint
	at("c2", "https://b m 3")
	at("c3", "https://vendor gpt-5 5")
	f.do("ada", llmSettings("m", "https://b", &SecretRef{})) // the key is deleted
	at("c2", "https://b m -1")
	at("c1", "https://a m 1")

	// A child goes where its parent goes, unless it names a model.
	f.do("ada",
		&StartTaskCreateBody{ID: "t-child", ConversationID: "child", Request: StartRequest{ParentConversationID: ptr("c1")}})
	f.do("ada",
		&StartTaskCreateBody{
			ID:             "t-own",
			ConversationID: "own",
			Request:        StartRequest{ParentConversationID: ptr("c1"), LLMModel: ptr("x")},
		})
	for id, want := range map[string]ModelEndpoint{
		"t-child": {Model: "m", BaseURL: "https://a", Key: llmKey(1).Path},
		"t-own":   {Model: "x", BaseURL: "https://b"},
	} {
		if got := f.store.View().StartTask("ada", id); got == nil || got.LLM == nil || *got.LLM != want {
			t.Errorf("%s: %+v, want %+v", id, got.LLM, want)
		}
	}
	// An act of the owner moves it.
	f.do("ada", llmSettings("m", "https://d", llmKey(6)))
	f.do("ada", &ConversationSwitchLLMBody{ID: "c1", Model: "other"})
	at("c1", "https://d other 6")
	_ = f.fails(CodeNotFound, "bob", &ConversationSwitchLLMBody{ID: "c1"})
}

// TestEndpoint_KeysOfFormerEndpointsAreKept: the secret store keeps the keys that conversations need,
// and of no more than maxFormerEndpoints.
func TestEndpoint_KeysOfFormerEndpointsAreKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open().at(ProtocolVersion)
	const last = maxFormerEndpoints + 3
	for n := 1; n <= last; n++ {
		f.do("ada", llmSettings("m", fmt.Sprintf("https://%d", n), llmKey(n)))
	}
	var kept []int
	for ref := range f.store.View().SecretRefs() {
		if ref.Path == llmKey(1).Path {
			kept = append(kept, ref.Version)
		}
	}
	slices.Sort(kept)
	var want []int
	for n := last - maxFormerEndpoints; n <= last; n++ {
		want = append(want, n)
	}
	if !slices.Equal(kept, want) {
		t.Errorf("the versions %v are kept, want %v", kept, want)
	}
	if n := len(f.store.View().Settings("ada").Former); n != maxFormerEndpoints {
		t.Errorf("%d former endpoints", n)
	}
}

// TestEndpoint_SetBack_HasItsOwnKey: settings that lead back to a former endpoint take up its key, also
// when as many are kept as there is room for. A key that comes along counts.
func TestEndpoint_SetBack_HasItsOwnKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open().at(ProtocolVersion)
	url := func(n int) string { return fmt.Sprintf("https://%d", n) }
	for n := 1; n <= maxFormerEndpoints+1; n++ {
		f.do("ada", llmSettings("m", url(n), llmKey(n)))
		f.conversation("ada", fmt.Sprint("c", n))
	}
	for _, n := range []int{1, 2, 9, 1, 5} {
		f.do("ada", llmSettings("m", url(n), nil))
		for c := 1; c <= maxFormerEndpoints+1; c++ {
			if got, want := f.goesTo(fmt.Sprint("c", c)), fmt.Sprint(url(c), " m ", c); got != want {
				t.Errorf("back at endpoint %d: c%d goes to %q, want %q", n, c, got, want)
			}
		}
	}
	f.do("ada", llmSettings("m", url(3), llmKey(70)))
	if got := f.goesTo("c3"); got != "https://3 m 70" {
		t.Errorf("with a new key c3 goes to %q", got)
	}
}

// TestEndpoint_BelowTheVersionTheSettingsCount, and from it on what was begun before stays where the
// settings led until then.
func TestEndpoint_BelowTheVersionTheSettingsCount(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open().at(VersionEndpoints - 1)
	f.do("ada", llmSettings("m", "https://a", llmKey(1)))
	f.conversation("ada", "c1")
	f.do("ada", llmSettings("m", "https://b", llmKey(2)))
	if got := f.goesTo("c1"); got != "https://b m 2" || f.store.View().Settings("ada").Former != nil {
		t.Errorf("below the version c1 goes to %q", got)
	}
	_ = f.fails(CodeProtocol, "ada", &ConversationSwitchLLMBody{ID: "c1"})
	f.do("", &ProtocolRaiseBody{Version: VersionEndpoints})
	f.do("ada", llmSettings("m", "https://c", llmKey(3)))
	if got := f.goesTo("c1"); got != "https://b m 2" {
		t.Errorf("from the version on c1 goes to %q", got)
	}
}
