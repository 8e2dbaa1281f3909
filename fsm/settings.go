package fsm

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Settings are one user's settings, without secret values
// (API.md, "Settings: store").
type Settings struct {
	UserID string         `json:"user_id"`
	Values SettingsValues `json:"values"`

	// LLMAPIKey, SearchAPIKey and SandboxAPIKey are zero when not set. Their
	// entries hold the member "value".
	LLMAPIKey     SecretRef `json:"llm_api_key"`
	SearchAPIKey  SecretRef `json:"search_api_key"`
	SandboxAPIKey SecretRef `json:"sandbox_api_key"`
	// MCPConfig points at the whole MCP configuration document (member "json"), because its api_key,
	// env, url and args may all carry credentials. Zero means null.
	MCPConfig SecretRef `json:"mcp_config"`

	// Former are the endpoints of models that the settings named before, the last one last. Origin is
	// where they led before they were changed for the first time. Both are kept from VersionEndpoints on, for
	// the conversations that began there.
	Former []FormerEndpoint `json:"former,omitempty"`
	Origin *ModelEndpoint   `json:"origin,omitempty"`

	UpdatedAt time.Time `json:"updated_at"`
}

// SettingsValues are the members of Settings that are not secret. A nil pointer is the API's null.
// It is omitted from the encoding, because every node stores and decodes the entry. The type of a
// member gives its bounds (check). The tag sticky keeps the stored value when none is sent.
type SettingsValues struct {
	Language                           *string  `json:"language,omitempty"`
	Agent                              *string  `json:"agent,omitempty"`
	MaxIterations                      *int64   `json:"max_iterations,omitempty"`
	SecurityAnalyzer                   *string  `json:"security_analyzer,omitempty"`
	ConfirmationMode                   *bool    `json:"confirmation_mode,omitempty"`
	LLMModel                           *string  `json:"llm_model,omitempty" settings:"sticky"`
	LLMBaseURL                         *string  `json:"llm_base_url,omitempty" settings:"sticky"`
	RemoteRuntimeResourceFactor        *int64   `json:"remote_runtime_resource_factor,omitempty"`
	EnableDefaultCondenser             bool     `json:"enable_default_condenser"`
	EnableSoundNotifications           bool     `json:"enable_sound_notifications"`
	EnableProactiveConversationStarter bool     `json:"enable_proactive_conversation_starters"`
	EnableSolvabilityAnalysis          bool     `json:"enable_solvability_analysis"`
	UserConsentsToAnalytics            *bool    `json:"user_consents_to_analytics,omitempty" settings:"sticky"`
	SandboxBaseContainerImage          *string  `json:"sandbox_base_container_image,omitempty"`
	SandboxRuntimeContainerImage       *string  `json:"sandbox_runtime_container_image,omitempty"`
	MaxBudgetPerTask                   *float64 `json:"max_budget_per_task,omitempty"`
	Email                              *string  `json:"email,omitempty"`
	EmailVerified                      *bool    `json:"email_verified,omitempty"`
	GitUserName                        *string  `json:"git_user_name,omitempty"`
	GitUserEmail                       *string  `json:"git_user_email,omitempty"`
	CondenserMaxSize                   *int64   `json:"condenser_max_size,omitempty"`
	V1Enabled                          *bool    `json:"v1_enabled,omitempty"`
	// AgentKind is AgentOpenHands or AgentACP. ACPServer is the id of an agent of the spec, ACPCommand
	// the command line of AgentCustom. SandboxGroupingStrategy is one of Groupings. They are kept from
	// VersionAgents on. Clients that do not know them keep them: they are sticky.
	AgentKind               *string   `json:"agent_kind,omitempty" settings:"sticky"`
	ACPServer               *string   `json:"acp_server,omitempty" settings:"sticky"`
	ACPCommand              *[]string `json:"acp_command,omitempty" settings:"sticky"`
	ACPModel                *string   `json:"acp_model,omitempty" settings:"sticky"`
	SandboxGroupingStrategy *string   `json:"sandbox_grouping_strategy,omitempty" settings:"sticky"`
	GitFullClone            *bool     `json:"git_full_clone,omitempty" settings:"sticky"`
}

// DefaultSettings returns the values of settings of which none was ever sent.
func DefaultSettings() SettingsValues {
	return SettingsValues{
		EnableDefaultCondenser: true, EnableProactiveConversationStarter: true, EnableSolvabilityAnalysis: true,
	}
}

// with returns the values with some members of other ones.
func (v SettingsValues) with(other *SettingsValues, names []string) SettingsValues {
	to, from := reflect.ValueOf(&v).Elem(), reflect.ValueOf(other).Elem()
	for i, m := range settingsMembers {
		if slices.Contains(names, m.name) {
			to.Field(i).Set(from.Field(i))
		}
	}
	return v
}

// withoutAgents returns the values as a node below VersionAgents knows them.
func (v SettingsValues) withoutAgents() SettingsValues {
	v.AgentKind, v.ACPServer, v.ACPCommand, v.ACPModel = nil, nil, nil, nil
	v.SandboxGroupingStrategy, v.GitFullClone = nil, nil
	return v
}

// settingsMember is what the tags and the type of a member of SettingsValues say.
type settingsMember struct {
	name   string
	sticky bool
	// flag is set for a boolean or an integer, which has neither a bound nor a text.
	flag bool
}

// settingsMembers has the members in the order of the struct. Reading a tag is slow, and every write
// of settings asks for each on every node.
var settingsMembers = readSettingsTags() //nolint:gochecknoglobals // read-only

func readSettingsTags() (members []settingsMember) {
	for f := range reflect.TypeFor[SettingsValues]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		t := f.Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		flag := t.Kind() == reflect.Bool || t.Kind() == reflect.Int64
		members = append(members, settingsMember{name, f.Tag.Get("settings") == "sticky", flag})
	}
	return members
}

// check adds the rules of the values.
func (v *SettingsValues) check(r *rules) {
	row := reflect.ValueOf(v).Elem()
	for i, member := range settingsMembers {
		if member.flag {
			continue
		}
		switch p := row.Field(i).Interface().(type) {
		case *string:
			if p != nil {
				r.text(member.name, *p, MaxLine)
			}
		case *[]string:
			if p != nil {
				r.list(member.name, *p, MaxLine)
			}
		case *float64:
			if p != nil && (math.IsNaN(*p) || math.IsInf(*p, 0)) {
				r.check(false, "%s is not a number", member.name)
			}
		}
	}
	v.checkAgent(r)
}

// checkAgent adds the rules of the values that choose an agent and a sandbox.
func (v *SettingsValues) checkAgent(r *rules) {
	kind, id := valueOr(v.AgentKind, ""), valueOr(v.ACPServer, "")
	if kind != "" && kind != AgentOpenHands && kind != AgentACP {
		r.check(false, "agent_kind must be %q or %q, not %q", AgentOpenHands, AgentACP, clip(kind))
	}
	if id != "" && !ValidAgentID(id) {
		r.check(false, "bad acp_server %q: use at most 63 of A-Z a-z 0-9 - _ ., the first no dot", clip(id))
	}
	if command := valueOr(v.ACPCommand, nil); len(command) > 0 {
		r.check(command[0] != "", "acp_command begins with the program")
		r.check(id == "" || id == AgentCustom, "acp_command is for acp_server %q: leave one of them out", AgentCustom)
	}
	if group := v.SandboxGroupingStrategy; group != nil && !slices.Contains(Groupings(), *group) {
		r.check(false, "sandbox_grouping_strategy must be one of %s, not %q", strings.Join(Groupings(), ", "),
			clip(*group))
	}
}

// keepSticky takes the sticky members that were not sent from the stored values.
func (v *SettingsValues) keepSticky(stored *SettingsValues) {
	to, from := reflect.ValueOf(v).Elem(), reflect.ValueOf(stored).Elem()
	for i, m := range settingsMembers {
		if !m.sticky {
			continue
		}
		if member, kept := to.Field(i), from.Field(i); member.IsNil() && !kept.IsNil() {
			member.Set(kept)
		}
	}
}

// textBytes is textBytes of all members.
func (v *SettingsValues) textBytes() (n int) {
	row := reflect.ValueOf(v).Elem()
	for i, m := range settingsMembers {
		if !m.flag {
			n += textBytes(row.Field(i))
		}
	}
	return n
}

// CustomSecret is a named secret of a user (secrets_store.custom_secrets).
type CustomSecret struct {
	UserID      string `json:"user_id"`
	Name        string `json:"name"`
	Description string `json:"description"`
	// Ref's entry holds the member "value".
	Ref SecretRef `json:"ref"`
}
