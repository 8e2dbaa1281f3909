package httpapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/llmtoken"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// modelAccess is what a caller gets to reach models with: null without a sandbox's key.
type modelAccess struct {
	Model   *string `json:"model"`
	APIKey  *string `json:"api_key"`
	BaseURL *string `json:"base_url"`
}

// handleUserMe handles GET /api/v1/users/me: the settings with the user's id. With expose_secrets and
// the key of a sandbox of the user it has what that sandbox's programs reach models and MCP servers
// with.
func (s *Server) handleUserMe(c *call) (response.Response, error) {
	expose := c.Query.Boolean("expose_secrets")
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	read := c.View
	if expose { // a key that was replaced or a sandbox that was paused gives nothing
		read = func() (*fsm.View, error) { return c.ViewWith(cluster.Linearizable) }
	}
	v, err := read()
	if err != nil {
		return response.Response{}, err
	}
	stored := v.Settings(c.Caller.User)
	if stored == nil {
		stored = &fsm.Settings{UserID: c.Caller.User}
	}
	access := modelAccess{Model: stored.Values.LLMModel, BaseURL: stored.Values.LLMBaseURL}
	if expose {
		if access, err = c.exposed(v, stored, access); err != nil {
			return response.Response{}, err
		}
	}
	mcp := json.RawMessage("null") // it holds secrets
	if expose && !stored.MCPConfig.IsZero() {
		text, err := s.calls.ReadSecret(c.Ctx(), stored.MCPConfig, "json")
		if err != nil {
			return response.Response{}, err
		}
		mcp = json.RawMessage(text)
	}
	body, err := newUserMeBody(&storedSettings{stored, mcp, v.Providers(c.Caller.User)}, access)
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(body)
}

// newUserMeBody is the members of the settings with those that upstream's user has.
func newUserMeBody(s *storedSettings, access modelAccess) (map[string]json.RawMessage, error) {
	settings, err := newSettingsBody(s)
	if err != nil {
		return nil, err
	}
	var body map[string]json.RawMessage
	if err := json.Unmarshal(settings, &body); err != nil {
		return nil, err
	}
	for name, value := range map[string]any{
		"id": s.UserID, "llm_api_key": access.APIKey, "llm_base_url": access.BaseURL,
		"agent_settings": map[string]any{
			"agent_kind": cmp.Or(decode.OrZero(s.Values.AgentKind), fsm.AgentOpenHands),
			"llm":        access,
		},
	} {
		if body[name], err = response.Encode(value); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// exposed returns what a sandbox's programs reach models with: the model gateway and a token where
// sandboxes use it, else the user's own key.
func (c *call) exposed(v *fsm.View, stored *fsm.Settings, access modelAccess) (modelAccess, error) {
	key := c.Request.Header.Get(proxy.HeaderKey)
	if key == "" {
		return access, response.Error(http.StatusUnauthorized, "X-Session-API-Key header is required")
	}
	row := v.SandboxByKeyHash(apikey.Hash(key))
	switch {
	// The look-up by hash finds a candidate; Opens compares.
	case !proxy.Opens(row, key) || !proxy.IsOwned(row) || v.LockedOut(row.UserID, time.Now()):
		request.InfoOf(c.Request.Context()).Refused = refusedUnknown
		return access, response.Error(http.StatusUnauthorized, "Invalid session API key")
	case row.UserID != c.Caller.User:
		return access, response.Error(http.StatusForbidden, "Session API key does not belong to the authenticated user")
	case row.Desired != fsm.DesiredRunning || row.State() != fsm.SandboxRunning:
		return access, response.Error(http.StatusUnauthorized, "Sandbox is not running")
	}
	request.InfoOf(c.Request.Context()).Sandbox = row.ID
	if c.server.usesGateway(v) {
		access.APIKey, access.BaseURL = nil, new(c.server.gatewayURL())
		newest, _ := v.Conversations(row.UserID, fsm.ConversationFilter{SandboxID: row.ID, IncludeSub: true},
			fsm.Page{Limit: 1})
		if len(newest) > 0 {
			access.APIKey = new(llmtoken.New(key, row, newest[0].ID))
		}
		return access, nil
	}
	if stored.LLMAPIKey.IsZero() {
		return access, nil
	}
	value, err := c.server.calls.ReadSecret(c.Ctx(), stored.LLMAPIKey, "value")
	if err != nil {
		return access, err
	}
	access.APIKey = &value
	return access, nil
}
