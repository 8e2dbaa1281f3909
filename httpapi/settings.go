package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// maxSetting bounds one text of the settings.
const maxSetting = 4096

// minCondenserSize is upstream's smallest condenser_max_size.
const minCondenserSize = 20

// errSettingsNotFound is what GET /api/settings says before the first POST.
func errSettingsNotFound() *refusal {
	return &refusal{status: http.StatusNotFound, text: "Settings not found"}
}

// settingsInput is a decoded POST /api/settings.
type settingsInput struct {
	values    fsm.SettingsValues
	keys      map[string]*string
	mcp       *mcpConfig
	providers []providerInput
	custom    []customSecretInput
}

type customSecretInput struct {
	name, secret, description string
}

// The members that are secrets of their own, each an entry "value".
const (
	memberLLMAPIKey     = "llm_api_key"
	memberSearchAPIKey  = "search_api_key"
	memberSandboxAPIKey = "sandbox_api_key"
)

// handleSettingsPut handles POST /api/settings.
func (s *Server) handleSettingsPut(c *call) (answer, error) {
	in := readSettings(c.object())
	if err := c.check(); err != nil {
		return answer{}, err
	}
	return c.once(func() (fsm.Body, secretWrites, error) {
		return s.prepareSettings(c, in)
	}, func(fsm.Result) (answer, error) {
		return ok(struct{}{})
	})
}

// prepareSettings makes the settings' command. Git tokens are verified as POST
// /api/add-git-providers does, at the stored host where none is given; what the
// store would refuse is refused before secrets are written.
func (s *Server) prepareSettings(c *call, in settingsInput) (fsm.Body, secretWrites, error) {
	body, writes, err := in.command(c.who.user)
	if err != nil || len(in.providers) == 0 && len(in.custom) == 0 {
		return body, writes, err
	}
	v, err := c.viewWith(cluster.Linearizable)
	if err != nil {
		return nil, secretWrites{}, err
	}
	if over := v.SettingsAdmission(c.who.user, body); over != nil {
		return nil, secretWrites{}, over
	}
	return body, writes, s.verifyProviders(c, v, keepHosts(in.providers, v.Providers(c.who.user)))
}

// keepHosts gives the entries with the hosts that they will have.
func keepHosts(sent []providerInput, stored []*fsm.Provider) []providerInput {
	out := slices.Clone(sent)
	for i := range out {
		for _, p := range stored {
			if p.Type == out[i].kind && out[i].host == nil {
				out[i].host = p.Host
			}
		}
	}
	return out
}

func readSettings(o object) settingsInput {
	in := settingsInput{
		values: fsm.SettingsValues{
			Language:                           o.text("language", maxSetting),
			Agent:                              o.text("agent", maxSetting),
			MaxIterations:                      o.integer("max_iterations"),
			SecurityAnalyzer:                   o.text("security_analyzer", maxSetting),
			ConfirmationMode:                   o.boolean("confirmation_mode"),
			LLMModel:                           o.text("llm_model", maxSetting),
			LLMBaseURL:                         o.text("llm_base_url", maxSetting),
			RemoteRuntimeResourceFactor:        o.integer("remote_runtime_resource_factor"),
			EnableDefaultCondenser:             o.booleanOr("enable_default_condenser", true),
			EnableSoundNotifications:           o.booleanOr("enable_sound_notifications", false),
			EnableProactiveConversationStarter: o.booleanOr("enable_proactive_conversation_starters", true),
			EnableSolvabilityAnalysis:          o.booleanOr("enable_solvability_analysis", true),
			UserConsentsToAnalytics:            o.boolean("user_consents_to_analytics"),
			SandboxBaseContainerImage:          o.text("sandbox_base_container_image", maxSetting),
			SandboxRuntimeContainerImage:       o.text("sandbox_runtime_container_image", maxSetting),
			MaxBudgetPerTask:                   o.number("max_budget_per_task"),
			Email:                              o.text("email", maxSetting),
			EmailVerified:                      o.boolean("email_verified"),
			GitUserName:                        o.text("git_user_name", maxSetting),
			GitUserEmail:                       o.text("git_user_email", maxSetting),
			CondenserMaxSize:                   o.integer("condenser_max_size"),
			V1Enabled:                          o.boolean("v1_enabled"),
		},
		keys: map[string]*string{},
		mcp:  readMCPConfig(o),
	}
	for _, name := range []string{memberLLMAPIKey, memberSearchAPIKey, memberSandboxAPIKey} {
		in.keys[name] = o.masked().text(name, maxText)
	}
	if n := in.values.CondenserMaxSize; n != nil && *n < minCondenserSize {
		o.rule("condenser_max_size", fmt.Sprintf("condenser_max_size must be at least %d", minCondenserSize))
	}
	if o.notNull("secrets_store", kindObject) {
		if store, ok := o.masked().object("secrets_store"); ok {
			in.providers = readProviders(store)
			in.custom = readCustomSecrets(store)
		}
	}
	return in
}

func readCustomSecrets(o object) []customSecretInput {
	if !o.notNull("custom_secrets", kindDict) {
		return nil
	}
	dict, ok := o.dict("custom_secrets")
	if !ok {
		return nil
	}
	var out []customSecretInput
	for _, name := range sortedKeys(dict.m) {
		if name == "" || len(name) > maxNameText {
			o.errs.value(at(dict.loc, truncate(name, 64), "[key]"), "a secret's name needs 1 to 255 bytes", masked)
			continue
		}
		if !dict.notNull(name, kindObject) {
			continue
		}
		one, ok := dict.object(name)
		if !ok {
			continue
		}
		in := customSecretInput{name: name, secret: one.mustText("secret", maxText)}
		if one.notNull("description", kindString) {
			in.description = deref(one.text("description", maxSetting))
		}
		out = append(out, in)
	}
	return out
}

// command makes the settings' command and says which secrets it needs stored.
func (in settingsInput) command(user string) (*fsm.SettingsPutBody, secretWrites, error) {
	var writes secretWrites
	body := &fsm.SettingsPutBody{
		Values:        in.values,
		LLMAPIKey:     stageKey(&writes, user, memberLLMAPIKey, in.keys[memberLLMAPIKey]),
		SearchAPIKey:  stageKey(&writes, user, memberSearchAPIKey, in.keys[memberSearchAPIKey]),
		SandboxAPIKey: stageKey(&writes, user, memberSandboxAPIKey, in.keys[memberSandboxAPIKey]),
		Providers:     make([]fsm.Provider, len(in.providers)),
		CustomSecrets: make([]fsm.CustomSecret, len(in.custom)),
	}
	if in.mcp != nil {
		text, err := encodeJSON(in.mcp)
		if err != nil {
			return nil, secretWrites{}, fmt.Errorf("encoding the MCP configuration: %w", err)
		}
		writes.add(settingPath(user, "mcp_config"), "json", string(text), &body.MCPConfig)
	}
	for i, p := range in.providers {
		body.Providers[i] = p.provider(user)
		p.stage(&writes, user, &body.Providers[i])
	}
	for i, one := range in.custom {
		body.CustomSecrets[i] = fsm.CustomSecret{UserID: user, Name: one.name, Description: one.description}
		writes.add(customPath(user, one.name), "value", one.secret, &body.CustomSecrets[i].Ref)
	}
	return body, writes, nil
}

// stageKey gives the ref for one key: nil keeps the stored one, zero clears it.
func stageKey(w *secretWrites, user, name string, value *string) *fsm.SecretRef {
	if value == nil {
		return nil
	}
	ref := &fsm.SecretRef{}
	if *value != "" {
		w.add(settingPath(user, name), "value", *value, ref)
	}
	return ref
}

// settingsBody is the answer of GET /api/settings (api-contract.md A.2).
type settingsBody struct {
	Language                     *string           `json:"language"`
	Agent                        *string           `json:"agent"`
	MaxIterations                *int64            `json:"max_iterations"`
	SecurityAnalyzer             *string           `json:"security_analyzer"`
	ConfirmationMode             *bool             `json:"confirmation_mode"`
	LLMModel                     *string           `json:"llm_model"`
	LLMAPIKey                    *string           `json:"llm_api_key"`
	LLMBaseURL                   *string           `json:"llm_base_url"`
	RemoteRuntimeResourceFactor  *int64            `json:"remote_runtime_resource_factor"`
	SecretsStore                 secretsStoreBody  `json:"secrets_store"`
	EnableDefaultCondenser       bool              `json:"enable_default_condenser"`
	EnableSoundNotifications     bool              `json:"enable_sound_notifications"`
	EnableProactiveStarters      bool              `json:"enable_proactive_conversation_starters"`
	EnableSolvabilityAnalysis    bool              `json:"enable_solvability_analysis"`
	UserConsentsToAnalytics      *bool             `json:"user_consents_to_analytics"`
	SandboxBaseContainerImage    *string           `json:"sandbox_base_container_image"`
	SandboxRuntimeContainerImage *string           `json:"sandbox_runtime_container_image"`
	MCPConfig                    json.RawMessage   `json:"mcp_config"`
	SearchAPIKey                 *string           `json:"search_api_key"`
	SandboxAPIKey                *string           `json:"sandbox_api_key"`
	MaxBudgetPerTask             *float64          `json:"max_budget_per_task"`
	Email                        *string           `json:"email"`
	EmailVerified                *bool             `json:"email_verified"`
	GitUserName                  *string           `json:"git_user_name"`
	GitUserEmail                 *string           `json:"git_user_email"`
	CondenserMaxSize             *int64            `json:"condenser_max_size"`
	V1Enabled                    *bool             `json:"v1_enabled"`
	LLMAPIKeySet                 bool              `json:"llm_api_key_set"`
	ProviderTokensSet            providerTokensSet `json:"provider_tokens_set"`
	SearchAPIKeySet              bool              `json:"search_api_key_set"`
}

// secretsStoreBody is always empty: tokens and secrets are never given back.
type secretsStoreBody struct {
	ProviderTokens struct{} `json:"provider_tokens"`
	CustomSecrets  struct{} `json:"custom_secrets"`
}

// providerTokensSet maps each connected provider to its host, null for the
// default one.
type providerTokensSet map[fsm.ProviderType]*string

// handleSettingsGet handles GET /api/settings.
func (s *Server) handleSettingsGet(c *call) (answer, error) {
	if err := c.check(); err != nil {
		return answer{}, err
	}
	v, err := c.view()
	if err != nil {
		return answer{}, err
	}
	stored := v.Settings(c.who.user)
	if stored == nil {
		return answer{}, errSettingsNotFound()
	}
	mcp := json.RawMessage("null")
	if !stored.MCPConfig.IsZero() {
		text, err := s.readSecret(c.ctx(), stored.MCPConfig, "json")
		if err != nil {
			return answer{}, err
		}
		mcp = json.RawMessage(text)
	}
	return ok(newSettingsBody(stored, mcp, v.Providers(c.who.user)))
}

func newSettingsBody(s *fsm.Settings, mcp json.RawMessage, providers []*fsm.Provider) settingsBody {
	v := s.Values
	set := providerTokensSet{}
	for _, p := range providers {
		if !p.Ref.IsZero() || deref(p.ExternalUserID) != "" {
			set[p.Type] = p.Host
		}
	}
	return settingsBody{
		Language: v.Language, Agent: v.Agent, MaxIterations: v.MaxIterations, SecurityAnalyzer: v.SecurityAnalyzer,
		ConfirmationMode: v.ConfirmationMode, LLMModel: v.LLMModel, LLMBaseURL: v.LLMBaseURL,
		RemoteRuntimeResourceFactor: v.RemoteRuntimeResourceFactor,
		EnableDefaultCondenser:      v.EnableDefaultCondenser, EnableSoundNotifications: v.EnableSoundNotifications,
		EnableProactiveStarters: v.EnableProactiveConversationStarter, EnableSolvabilityAnalysis: v.EnableSolvabilityAnalysis,
		UserConsentsToAnalytics: v.UserConsentsToAnalytics, SandboxBaseContainerImage: v.SandboxBaseContainerImage,
		SandboxRuntimeContainerImage: v.SandboxRuntimeContainerImage, MCPConfig: mcp,
		MaxBudgetPerTask: v.MaxBudgetPerTask, Email: v.Email, EmailVerified: v.EmailVerified,
		GitUserName: v.GitUserName, GitUserEmail: v.GitUserEmail,
		CondenserMaxSize: v.CondenserMaxSize, V1Enabled: v.V1Enabled,
		LLMAPIKeySet: !s.LLMAPIKey.IsZero(), ProviderTokensSet: set, SearchAPIKeySet: !s.SearchAPIKey.IsZero(),
	}
}
