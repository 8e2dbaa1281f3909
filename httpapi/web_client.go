package httpapi

import (
	"cmp"
	"slices"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// webClientBody is the API's WebClientConfig (API.md, "Agents").
type webClientBody struct {
	AppMode              string            `json:"app_mode"`
	PosthogClientKey     *string           `json:"posthog_client_key"`
	FeatureFlags         featureFlags      `json:"feature_flags"`
	ProvidersConfigured  []string          `json:"providers_configured"`
	MaintenanceStartTime *string           `json:"maintenance_start_time"`
	AuthURL              *string           `json:"auth_url"`
	RecaptchaSiteKey     *string           `json:"recaptcha_site_key"`
	FaultyModels         []string          `json:"faulty_models"`
	ErrorMessage         *string           `json:"error_message"`
	UpdatedAt            wire.Time         `json:"updated_at"`
	GithubAppSlug        *string           `json:"github_app_slug"`
	Kind                 string            `json:"kind"`
	GitlabEnabled        bool              `json:"gitlab_enabled"`
	ProviderDefaultHosts map[string]string `json:"provider_default_hosts"`
	SlackEnabled         bool              `json:"slack_enabled"`
	EmailEnabled         bool              `json:"email_enabled"`
	EmailChangeEnabled   bool              `json:"email_change_enabled"`
	ACPProviders         []acpProviderBody `json:"acp_providers"`
}

// featureFlags are upstream's. What has no constant here is false: there is no such feature.
type featureFlags struct {
	EnableBilling             bool   `json:"enable_billing"`
	HideLLMSettings           bool   `json:"hide_llm_settings"`
	EnableJira                bool   `json:"enable_jira"`
	EnableJiraDC              bool   `json:"enable_jira_dc"`
	EnableLinear              bool   `json:"enable_linear"`
	HideUsersPage             bool   `json:"hide_users_page"`
	HideBillingPage           bool   `json:"hide_billing_page"`
	HideIntegrationsPage      bool   `json:"hide_integrations_page"`
	HidePersonalWorkspaces    bool   `json:"hide_personal_workspaces"`
	AllowUserLLMConfiguration bool   `json:"allow_user_llm_configuration"`
	EnableACP                 bool   `json:"enable_acp"`
	DeploymentMode            string `json:"deployment_mode"`
	EnableOnboarding          bool   `json:"enable_onboarding"`
	EnableAutomations         bool   `json:"enable_automations"`
	EnableAgentCanvasBanner   bool   `json:"enable_agent_canvas_banner"`
}

// acpProviderBody is an agent that users may choose.
type acpProviderBody struct {
	Key             string         `json:"key"`
	DisplayName     string         `json:"display_name"`
	DefaultCommand  []string       `json:"default_command"`
	DefaultModel    *string        `json:"default_model"`
	AvailableModels []acpModelBody `json:"available_models"`
	APIKeyEnvVar    *string        `json:"api_key_env_var"`
	BaseURLEnvVar   *string        `json:"base_url_env_var"`
}

type acpModelBody struct {
	ID    string `json:"id"`
	Label string `json:"label"`
}

// handleWebClientConfig handles GET /api/v1/web-client/config. It needs no key, so that it shows of an
// agent neither arguments nor environment.
func (s *Server) handleWebClientConfig(c *call) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.ViewWith(cluster.Stale)
	if err != nil {
		return response.Response{}, err
	}
	b := webClientBody{
		AppMode: "oss", Kind: "WebClientConfig", ProvidersConfigured: []string{}, FaultyModels: []string{},
		ProviderDefaultHosts: map[string]string{}, ACPProviders: []acpProviderBody{},
		FeatureFlags: featureFlags{AllowUserLLMConfiguration: true, DeploymentMode: "self_hosted"},
	}
	var changed time.Time
	for _, spec := range v.Specs() {
		if spec.CreatedAt.After(changed) {
			changed = spec.CreatedAt
		}
		b.FeatureFlags.EnableACP = b.FeatureFlags.EnableACP || spec.AllowAgentCommand || len(spec.Agents) > 0
		for i := range spec.Agents {
			a := newACPProviderBody(&spec.Agents[i])
			if !slices.ContainsFunc(b.ACPProviders, func(p acpProviderBody) bool { return p.Key == a.Key }) {
				b.ACPProviders = append(b.ACPProviders, a)
			}
		}
	}
	b.UpdatedAt = wire.At(changed)
	return response.OK(b)
}

func newACPProviderBody(a *fsm.Agent) acpProviderBody {
	known, _ := preset.ByID(a.ID)
	return acpProviderBody{
		Key: a.ID, DisplayName: cmp.Or(a.DisplayName, known.DisplayName, a.ID),
		DefaultCommand: []string{
			cmp.Or(a.Command, known.Command),
		}, DefaultModel: wire.OrNull(a.Model), AvailableModels: []acpModelBody{},
	}
}
