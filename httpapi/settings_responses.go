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

// settingsResponses keeps the encoded settings of the users who asked last. It keeps no secret: body
// encodes settings with an MCP configuration, which comes from the secret store, for each request.
type settingsResponses struct {
	byUser *lru.Cache[string, settingsResponse]
}

// settingsResponse is the encoding of two rows of the state. The state replaces rows and changes none.
type settingsResponse struct {
	settings  *fsm.Settings
	providers []*fsm.Provider
	body      json.RawMessage
}

func newSettingsResponses() settingsResponses {
	byUser, err := lru.New[string, settingsResponse](settingsKept)
	if err != nil {
		panic(err) // the size is positive
	}
	return settingsResponses{byUser: byUser}
}

// body returns the response of GET /api/settings. Nobody changes its bytes.
func (a settingsResponses) body(s *storedSettings) (json.RawMessage, error) {
	if !s.MCPConfig.IsZero() {
		return newSettingsBody(s)
	}
	kept, ok := a.byUser.Get(s.UserID)
	if ok && kept.settings == s.Settings && slices.Equal(kept.providers, s.providers) {
		return kept.body, nil
	}
	body, err := newSettingsBody(s)
	if err == nil && cap(body) <= settingsKeptSize {
		a.byUser.Add(s.UserID, settingsResponse{s.Settings, s.providers, body})
	}
	return body, err
}
