package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// settingsRow is a member of POST and GET /api/settings. A new setting is one row.
type settingsRow struct {
	name string
	// read decodes the member of a request, which has a name of its own in the nested settings of V1; nil
	// for one of the answer alone.
	read func(o decode.Object, name string, in *settingsInput)
	// value is set for a member of fsm.SettingsValues.
	value bool
	// show returns the member of the answer.
	show func(s *storedSettings) any
	// key is set for a member that is stored as a secret, in an entry with the member "value".
	key func(*fsm.SettingsPutBody) **fsm.SecretRef
}

// storedSettings is what GET /api/settings shows.
type storedSettings struct {
	*fsm.Settings
	mcp       json.RawMessage
	providers []*fsm.Provider
}

// settingsValues and settingsPut are what the rows of settingsTable point into.
type (
	settingsValues = fsm.SettingsValues
	settingsPut    = fsm.SettingsPutBody
)

// settingsTable holds the members in the order of the answer (API.md, "Settings: read"). Every read
// walks it, so it is made once.
var settingsTable = []settingsRow{ //nolint:gochecknoglobals // read-only
	textSetting("language", func(v *settingsValues) **string { return &v.Language }),
	textSetting("agent", func(v *settingsValues) **string { return &v.Agent }),
	integerSetting("max_iterations", func(v *settingsValues) **int64 { return &v.MaxIterations }),
	textSetting("security_analyzer", func(v *settingsValues) **string { return &v.SecurityAnalyzer }),
	flagSetting("confirmation_mode", func(v *settingsValues) **bool { return &v.ConfirmationMode }),
	textSetting("llm_model", func(v *settingsValues) **string { return &v.LLMModel }),
	keySetting("llm_api_key", func(b *settingsPut) **fsm.SecretRef { return &b.LLMAPIKey }),
	valueSetting("llm_base_url", func(v *settingsValues) **string { return &v.LLMBaseURL },
		func(o decode.Object, name string) *string { return o.Endpoint(name, fsm.MaxLine) }),
	integerSetting("remote_runtime_resource_factor",
		func(v *settingsValues) **int64 { return &v.RemoteRuntimeResourceFactor }),
	{name: "secrets_store", read: readSecretsStore, show: func(*storedSettings) any { return secretsStoreBody{} }},
	switchSetting("enable_default_condenser", true, func(v *settingsValues) *bool { return &v.EnableDefaultCondenser }),
	switchSetting("enable_sound_notifications", false,
		func(v *settingsValues) *bool { return &v.EnableSoundNotifications }),
	switchSetting("enable_proactive_conversation_starters", true,
		func(v *settingsValues) *bool { return &v.EnableProactiveConversationStarter }),
	switchSetting("enable_solvability_analysis", true,
		func(v *settingsValues) *bool { return &v.EnableSolvabilityAnalysis }),
	flagSetting("user_consents_to_analytics", func(v *settingsValues) **bool { return &v.UserConsentsToAnalytics }),
	addressSetting("sandbox_base_container_image",
		func(v *settingsValues) **string { return &v.SandboxBaseContainerImage }),
	addressSetting("sandbox_runtime_container_image",
		func(v *settingsValues) **string { return &v.SandboxRuntimeContainerImage }),
	{
		name: "mcp_config", read: func(o decode.Object, _ string, in *settingsInput) { in.mcp = readMCPConfig(o) },
		show: func(s *storedSettings) any { return s.mcp },
	},
	keySetting("search_api_key", func(b *settingsPut) **fsm.SecretRef { return &b.SearchAPIKey }),
	keySetting("sandbox_api_key", func(b *settingsPut) **fsm.SecretRef { return &b.SandboxAPIKey }),
	numberSetting("max_budget_per_task", func(v *settingsValues) **float64 { return &v.MaxBudgetPerTask }),
	textSetting("email", func(v *settingsValues) **string { return &v.Email }),
	flagSetting("email_verified", func(v *settingsValues) **bool { return &v.EmailVerified }),
	textSetting("git_user_name", func(v *settingsValues) **string { return &v.GitUserName }),
	textSetting("git_user_email", func(v *settingsValues) **string { return &v.GitUserEmail }),
	// 20 is upstream's bound.
	boundedSetting("condenser_max_size", 20, func(v *settingsValues) **int64 { return &v.CondenserMaxSize }),
	flagSetting("v1_enabled", func(v *settingsValues) **bool { return &v.V1Enabled }),
	choiceSetting("agent_kind", []string{fsm.AgentOpenHands, fsm.AgentACP},
		func(v *settingsValues) **string { return &v.AgentKind }),
	agentSetting("acp_server", func(v *settingsValues) **string { return &v.ACPServer }),
	valueSetting("acp_command", func(v *settingsValues) **[]string { return &v.ACPCommand }, readAgentCommand),
	textSetting("acp_model", func(v *settingsValues) **string { return &v.ACPModel }),
	choiceSetting("sandbox_grouping_strategy", fsm.Groupings(),
		func(v *settingsValues) **string { return &v.SandboxGroupingStrategy }),
	flagSetting("git_full_clone", func(v *settingsValues) **bool { return &v.GitFullClone }),
	{name: "llm_api_key_set", show: func(s *storedSettings) any { return !s.LLMAPIKey.IsZero() }},
	{name: "provider_tokens_set", show: (*storedSettings).providerTokens},
	{name: "search_api_key_set", show: func(s *storedSettings) any { return !s.SearchAPIKey.IsZero() }},
}

// valueSetting is the row of a member of fsm.SettingsValues.
func valueSetting[T any](name string, at func(*fsm.SettingsValues) *T, read func(decode.Object, string) T) settingsRow {
	return settingsRow{
		name:  name,
		value: true,
		read:  func(o decode.Object, name string, in *settingsInput) { *at(&in.values) = read(o, name) },
		show:  func(s *storedSettings) any { return *at(&s.Values) },
	}
}

func textSetting(name string, at func(*fsm.SettingsValues) **string) settingsRow {
	return valueSetting(name, at, func(o decode.Object, name string) *string { return o.Text(name, fsm.MaxLine) })
}

// addressSetting is a text that may be a URL, without user information.
func addressSetting(name string, at func(*fsm.SettingsValues) **string) settingsRow {
	return valueSetting(name, at, func(o decode.Object, name string) *string { return o.Address(name, fsm.MaxLine) })
}

// choiceSetting is one of some texts.
func choiceSetting(name string, of []string, at func(*fsm.SettingsValues) **string) settingsRow {
	return valueSetting(name, at, func(o decode.Object, name string) *string { return o.Enum(name, of) })
}

// agentSetting is the id of an agent, "" for none. Apply knows which there are.
func agentSetting(name string, at func(*fsm.SettingsValues) **string) settingsRow {
	return valueSetting(name, at, readAgentID)
}

func readAgentID(o decode.Object, name string) *string {
	id := o.Text(name, fsm.MaxName)
	if id != nil && *id != "" && !fsm.ValidAgentID(*id) {
		o.Rule(name, "the id of an agent has at most 63 of A-Z a-z 0-9 - _ ., and does not begin with a dot")
	}
	return id
}

// readAgentCommand reads a command line, [] for none.
func readAgentCommand(o decode.Object, name string) *[]string {
	if list, _ := o.Value(name).([]any); decode.HoldsCredential(textsOf(list)) {
		o.Masked().Rule(name,
			name+" must hold no credential: the log and the agents' processes show it; store it as a secret")
		return nil
	}
	words := o.Texts(name, fsm.MaxLine)
	if words == nil {
		return nil
	}
	if len(words) > 0 && words[0] == "" {
		o.Rule(name, name+" begins with the program")
	}
	for _, word := range words {
		if err := preset.Check(word); err != nil {
			o.Rule(name, err.Error())
		}
	}
	if server := o.Value("acp_server"); len(words) > 0 && server != nil && server != "" && server != fsm.AgentCustom {
		o.Rule(name, name+" is for the acp_server \""+fsm.AgentCustom+"\": leave one of them out")
	}
	return &words
}

// textsOf returns the texts of a decoded list.
func textsOf(list []any) []string {
	var words []string
	for _, v := range list {
		if word, ok := v.(string); ok {
			words = append(words, word)
		}
	}
	return words
}

func integerSetting(name string, at func(*fsm.SettingsValues) **int64) settingsRow {
	return valueSetting(name, at, decode.Object.Integer)
}

// boundedSetting is an integer of at least least.
func boundedSetting(name string, least int64, at func(*fsm.SettingsValues) **int64) settingsRow {
	return valueSetting(name, at, func(o decode.Object, name string) *int64 {
		n := o.Integer(name)
		if n != nil && *n < least {
			o.Rule(name, fmt.Sprintf("%s must be at least %d", name, least))
		}
		return n
	})
}

func numberSetting(name string, at func(*fsm.SettingsValues) **float64) settingsRow {
	return valueSetting(name, at, decode.Object.Number)
}

// flagSetting is a boolean that may be null.
func flagSetting(name string, at func(*fsm.SettingsValues) **bool) settingsRow {
	return valueSetting(name, at, decode.Object.Boolean)
}

// switchSetting is a boolean that may be absent but not null.
func switchSetting(name string, otherwise bool, at func(*fsm.SettingsValues) *bool) settingsRow {
	return valueSetting(name, at, func(o decode.Object, name string) bool { return o.BooleanOr(name, otherwise) })
}

// keySetting is a key. The answer never shows it.
func keySetting(name string, at func(*fsm.SettingsPutBody) **fsm.SecretRef) settingsRow {
	return settingsRow{
		name: name,
		read: func(o decode.Object, as string, in *settingsInput) {
			in.keys[name] = o.Masked().Text(as, fsm.MaxParagraph)
		},
		show: func(*storedSettings) any { return nil },
		key:  at,
	}
}

// providerTokens maps each connected provider to its host, nil for the default host.
func (s *storedSettings) providerTokens() any {
	set := map[fsm.ProviderType]*string{}
	for _, p := range s.providers {
		if !p.Ref.IsZero() || decode.OrZero(p.ExternalUserID) != "" {
			set[p.Type] = p.Host
		}
	}
	return set
}

// newSettingsBody returns the response of GET /api/settings.
func newSettingsBody(s *storedSettings) (json.RawMessage, error) {
	var b bytes.Buffer
	b.Grow(settingsBytes)
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	separator := byte('{')
	for _, row := range settingsTable {
		b.WriteByte(separator)
		separator = ','
		b.WriteByte('"')
		b.WriteString(row.name) // a name needs no escape
		b.WriteString(`":`)
		if err := encoder.Encode(row.show(s)); err != nil {
			return nil, fmt.Errorf("encoding the setting %s: %w", row.name, err)
		}
		b.Truncate(b.Len() - 1) // the encoder's line feed
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// settingsBytes is about the size of an answer with all settings.
const settingsBytes = 1536
