package httpapi

import (
	"encoding/json"
	"slices"

	lru "github.com/hashicorp/golang-lru/v2"

	"bivouac.dev/bivouac/fsm"
)

// Bounds of the encoded settings that a node keeps: 4 MiB in all.
const (
	settingsKept     = 1024
	settingsKeptSize = 4 << 10 // bytes of one
)

// settingsAnswers keeps the encoded settings of the users who asked last. It has no secret: settings
// with an MCP configuration, which comes from the secret store, are encoded for each request.
type settingsAnswers struct {
	byUser *lru.Cache[string, settingsAnswer]
}

// settingsAnswer was made of these rows. A row of the state is never changed, but replaced.
type settingsAnswer struct {
	settings  *fsm.Settings
	providers []*fsm.Provider
	body      json.RawMessage
}

func newSettingsAnswers() settingsAnswers {
	byUser, err := lru.New[string, settingsAnswer](settingsKept)
	if err != nil {
		panic(err) // the size is positive
	}
	return settingsAnswers{byUser: byUser}
}

// body returns the response of GET /api/settings. Nobody changes its bytes.
func (a settingsAnswers) body(s *storedSettings) (json.RawMessage, error) {
	if !s.MCPConfig.IsZero() {
		return newSettingsBody(s)
	}
	kept, ok := a.byUser.Get(s.UserID)
	if ok && kept.settings == s.Settings && slices.Equal(kept.providers, s.providers) {
		return kept.body, nil
	}
	body, err := newSettingsBody(s)
	if err == nil && cap(body) <= settingsKeptSize {
		a.byUser.Add(s.UserID, settingsAnswer{s.Settings, s.providers, body})
	}
	return body, err
}
