package httpapi

import (
	"cmp"
	"encoding/json"
	"net/http"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// pathSettingsV1 is V1's view of the settings, which are the same rows as V0's.
const pathSettingsV1 = "/api/v1/settings"

// settingsV1Routes are V1's routes to the settings.
func settingsV1Routes() []route {
	const get, post = http.MethodGet, http.MethodPost
	return []route{
		{name: "settings_v1.get", method: get, path: pathSettingsV1, access: user, format: response.FormatError,
			handle: (*Server).handleSettingsV1Get},
		{name: "settings_v1.save", method: post, path: pathSettingsV1, access: user, format: response.FormatError,
			internal: "Something went wrong storing settings", handle: (*Server).handleSettingsV1Save},
		{name: "settings_v1.agent_schema", method: get, path: pathSettingsV1 + "/agent-schema", access: user,
			handle: showsSchema(agentSchema)},
		{name: "settings_v1.conversation_schema", method: get, path: pathSettingsV1 + "/conversation-schema",
			access: user, handle: showsSchema(conversationSchema)},
	}
}

// nestedSettings names the settings that members of V1's nested settings stand for.
func nestedSettings() map[string]map[string]string {
	return map[string]map[string]string{
		"agent_settings_diff": {
			"agent_kind": "agent_kind", "agent": "agent", "acp_server": "acp_server", "acp_model": "acp_model",
			"acp_command": "acp_command",
		},
		"agent_settings_diff.llm":       {"model": "llm_model", "api_key": "llm_api_key", "base_url": "llm_base_url"},
		"agent_settings_diff.condenser": {"enabled": "enable_default_condenser", "max_size": "condenser_max_size"},
		"conversation_settings_diff": {
			"max_iterations": "max_iterations", "confirmation_mode": "confirmation_mode",
			"security_analyzer": "security_analyzer",
		},
	}
}

// readSettingsV1 reads the members that are sent, under their own names and nested.
func readSettingsV1(o decode.Object) settingsInput {
	in := settingsInput{keys: map[string]*string{}, set: []string{}}
	for _, row := range settingsTable {
		in.take(row, o, row.name)
	}
	nested := nestedSettings()
	for _, outer := range []string{"agent_settings_diff", "conversation_settings_diff"} {
		diff, sent := o.Object(outer)
		if !sent {
			continue
		}
		in.takeNested(diff, nested[outer])
		for _, inner := range []string{"llm", "condenser"} {
			if names := nested[outer+"."+inner]; names != nil {
				if part, sent := diff.Object(inner); sent {
					in.takeNested(part, names)
				}
			}
		}
		refuseGiven(diff, "mcp_config", "send mcp_config beside agent_settings_diff, as POST /api/settings takes it")
	}
	return in
}

// takeNested reads the members of a nested object that stand for settings. Others are not stored.
func (in *settingsInput) takeNested(o decode.Object, names map[string]string) {
	for _, row := range settingsTable {
		for as, name := range names {
			if name == row.name {
				in.take(row, o, as)
			}
		}
	}
}

// take reads one member, if it is sent.
func (in *settingsInput) take(row settingsRow, o decode.Object, as string) {
	if row.read == nil || !o.Has(as) {
		return
	}
	row.read(o, as, in)
	if row.value || row.name == "mcp_config" {
		in.set = append(in.set, row.name)
	}
}

// handleSettingsV1Save handles POST /api/v1/settings: members that are absent stay.
func (s *Server) handleSettingsV1Save(c *call) (response.Response, error) {
	o := c.Object()
	if whole := wholeSettings(o); len(whole) > 0 {
		return response.Response{}, &response.HTTPError{
			Status: http.StatusUnprocessableEntity, Text: errWholeSettings,
			Body: wholeSettingsBody{Error: errWholeSettings, Detail: errWholeSettings, Keys: whole},
		}
	}
	in := readSettingsV1(o)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		if _, err := c.current("a change of single settings"); err != nil {
			return nil, request.SecretWrites{}, err
		}
		return s.prepareSettings(c, in)
	}, func(fsm.Result) (response.Response, error) {
		return response.OK(wire.Message{Message: "Settings stored"})
	})
}

const errWholeSettings = "Use *_diff nested settings payloads instead of legacy keys"

type wholeSettingsBody struct {
	Error  string   `json:"error"`
	Detail string   `json:"detail"`
	Keys   []string `json:"keys"`
}

// wholeSettings returns the members that would replace nested settings as a whole.
func wholeSettings(o decode.Object) (sent []string) {
	for _, name := range []string{"agent_settings", "conversation_settings"} {
		if _, there := o.Members[name]; there {
			sent = append(sent, name)
		}
	}
	return sent
}

// handleSettingsV1Get handles GET /api/v1/settings. A user who has stored nothing has the defaults.
func (s *Server) handleSettingsV1Get(c *call) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	stored := v.Settings(c.Caller.User)
	if stored == nil { // Agent Canvas shows no form after a 404
		stored = &fsm.Settings{UserID: c.Caller.User, Values: fsm.DefaultSettings()}
	}
	mcp := json.RawMessage("null")
	if !stored.MCPConfig.IsZero() {
		text, err := s.calls.ReadSecret(c.Ctx(), stored.MCPConfig, "json")
		if err != nil {
			return response.Response{}, err
		}
		mcp = json.RawMessage(text)
	}
	body, err := newSettingsV1Body(v, &storedSettings{stored, mcp, v.Providers(c.Caller.User)})
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(body)
}

// agentSettingsBody is agent_settings of V1's settings.
type agentSettingsBody struct {
	SchemaVersion int           `json:"schema_version"`
	AgentKind     string        `json:"agent_kind"`
	Agent         string        `json:"agent"`
	LLM           llmConfig     `json:"llm"`
	Condenser     condenserBody `json:"condenser"`
	ACPServer     *string       `json:"acp_server"`
	ACPModel      *string       `json:"acp_model"`
	ACPCommand    *[]string     `json:"acp_command"`
}

type condenserBody struct {
	Enabled bool   `json:"enabled"`
	MaxSize *int64 `json:"max_size"`
}

// conversationSettingsBody is conversation_settings of V1's settings.
type conversationSettingsBody struct {
	SchemaVersion    int     `json:"schema_version"`
	MaxIterations    int64   `json:"max_iterations"`
	ConfirmationMode bool    `json:"confirmation_mode"`
	SecurityAnalyzer *string `json:"security_analyzer"`
}

// savedProfiles is llm_profiles of V1's settings.
type savedProfiles struct {
	Profiles map[string]llmConfig `json:"profiles"`
	Active   *string              `json:"active"`
}

// defaultMaxIterations is the agent server's, where the settings have none.
const defaultMaxIterations = 500

// newSettingsV1Body is the members of the settings with V1's.
func newSettingsV1Body(v *fsm.View, s *storedSettings) (map[string]json.RawMessage, error) {
	flat, err := newSettingsBody(s)
	if err != nil {
		return nil, err
	}
	var body map[string]json.RawMessage
	if err := json.Unmarshal(flat, &body); err != nil {
		return nil, err
	}
	saved := savedProfiles{Profiles: map[string]llmConfig{}, Active: activeLLMProfile(v, s.UserID)}
	for _, p := range v.Profiles(s.UserID, fsm.ProfileLLM) {
		saved.Profiles[p.Name] = newLLMConfig(p)
	}
	var agentID *string
	var agentRevision *int64
	for _, p := range v.Profiles(s.UserID, fsm.ProfileAgent) {
		if p.Active {
			agentID, agentRevision = &p.ID, &p.Revision
		}
	}
	values := s.Values
	for name, value := range map[string]any{
		"agent_settings": agentSettingsBody{
			SchemaVersion: 5, AgentKind: cmp.Or(decode.OrZero(values.AgentKind), fsm.AgentOpenHands),
			Agent:     orDefault(values.Agent, "CodeActAgent"),
			LLM:       llmConfig{Model: values.LLMModel, BaseURL: values.LLMBaseURL},
			Condenser: condenserBody{values.EnableDefaultCondenser, values.CondenserMaxSize},
			ACPServer: values.ACPServer, ACPModel: values.ACPModel, ACPCommand: values.ACPCommand,
		},
		"conversation_settings": conversationSettingsBody{
			SchemaVersion: 1, MaxIterations: orDefault(values.MaxIterations, defaultMaxIterations),
			ConfirmationMode: decode.OrZero(values.ConfirmationMode), SecurityAnalyzer: values.SecurityAnalyzer,
		},
		"llm_profiles": saved, "active_agent_profile_id": agentID, "active_agent_profile_revision": agentRevision,
		"disabled_skills": nil, "title_llm_profile": nil, "default_sandbox_spec_id": nil,
		"registered_marketplaces": []string{}, "inherited_marketplaces": []string{},
	} {
		if body[name], err = response.Encode(value); err != nil {
			return nil, err
		}
	}
	return body, nil
}
