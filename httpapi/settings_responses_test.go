package httpapi

import (
	"encoding/json"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// A response is kept while its rows stand. None is kept with what comes from the secret store.
func TestSettingsResponses_AreOfTheirRows(t *testing.T) {
	a := newSettingsResponses()
	text := func(s string) *string { return &s }
	of := func(s *storedSettings) json.RawMessage {
		t.Helper()
		body, err := a.body(s)
		if err != nil {
			t.Fatal(err)
		}
		if want, err := newSettingsBody(s); err != nil || string(body) != string(want) {
			t.Fatalf("%s, want %s (%v)", body, want, err)
		}
		return body
	}
	row := &fsm.Settings{UserID: "ada", Values: fsm.SettingsValues{Language: text("en")}}
	null := json.RawMessage("null")
	first := of(&storedSettings{row, null, nil})
	if again := of(&storedSettings{row, null, nil}); &again[0] != &first[0] {
		t.Error("the same rows are encoded again")
	}
	other := *row
	other.Values.Language = text("fr")
	of(&storedSettings{&other, null, nil})
	of(&storedSettings{row, null, nil}) // as on a node that is behind
	of(&storedSettings{row, null, []*fsm.Provider{{UserID: "ada", Type: fsm.ProviderGitHub, ExternalUserID: text("1")}}})
	of(&storedSettings{&fsm.Settings{UserID: "bob"}, null, nil})

	withSecret := *row
	withSecret.MCPConfig = fsm.SecretRef{Path: "p", Version: 1}
	of(&storedSettings{&withSecret, json.RawMessage(`{"a":1}`), nil})
	of(&storedSettings{&withSecret, json.RawMessage(`{"a":2}`), nil})
	large := *row
	large.UserID, large.Values.Email = "eve", text(strings.Repeat("e", settingsKeptSize))
	of(&storedSettings{&large, null, nil})
	if _, kept := a.byUser.Peek("eve"); kept {
		t.Error("a response above the bound is kept")
	}
	if kept, _ := a.byUser.Peek("ada"); strings.Contains(string(kept.body), `"a":`) {
		t.Errorf("a secret is kept: %s", kept.body)
	}
}
