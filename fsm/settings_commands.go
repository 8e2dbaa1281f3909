package fsm

import "math"

// maxSetting bounds each text of the settings, in bytes.
const maxSetting = 4096

// SettingsPutBody replaces the settings of Command.UserID (POST
// /api/settings). Apply keeps the stored value of the sticky members when they
// are nil here: Values.LLMModel, LLMBaseURL, UserConsentsToAnalytics, and the
// three key refs (api-contract.md A.1).
type SettingsPutBody struct {
	Values SettingsValues `json:"values"`
	// A nil ref keeps the stored one; a zero ref clears it.
	LLMAPIKey     *SecretRef `json:"llm_api_key,omitempty"`
	SearchAPIKey  *SecretRef `json:"search_api_key,omitempty"`
	SandboxAPIKey *SecretRef `json:"sandbox_api_key,omitempty"`
	// MCPConfig is not sticky: zero clears.
	MCPConfig SecretRef `json:"mcp_config,omitzero"`
	// Providers and CustomSecrets (secrets_store) are merged over what is
	// stored. A provider with a zero Ref keeps its stored token, and one without a
	// host its stored host, so that no token goes elsewhere unasked (from protocol
	// version 3 on).
	Providers     []Provider     `json:"providers,omitempty"`
	CustomSecrets []CustomSecret `json:"custom_secrets,omitempty"`
}

// CommandType implements Body.
func (*SettingsPutBody) CommandType() CommandType { return SettingsPut }

// Validate implements Body.
func (b *SettingsPutBody) Validate() error {
	var r rules
	v := &b.Values
	for _, f := range []struct {
		name  string
		value *string
	}{
		{"language", v.Language}, {"agent", v.Agent}, {"security_analyzer", v.SecurityAnalyzer},
		{"llm_model", v.LLMModel}, {"llm_base_url", v.LLMBaseURL},
		{"sandbox_base_container_image", v.SandboxBaseContainerImage},
		{"sandbox_runtime_container_image", v.SandboxRuntimeContainerImage},
		{"email", v.Email}, {"git_user_name", v.GitUserName}, {"git_user_email", v.GitUserEmail},
	} {
		r.optional(f.name, f.value, maxSetting)
	}
	if p := v.MaxBudgetPerTask; p != nil {
		r.check(!math.IsNaN(*p) && !math.IsInf(*p, 0), "max_budget_per_task is not a number")
	}
	r.optionalRef("llm_api_key", b.LLMAPIKey)
	r.optionalRef("search_api_key", b.SearchAPIKey)
	r.optionalRef("sandbox_api_key", b.SandboxAPIKey)
	r.ref("mcp_config", b.MCPConfig)
	r.providers(b.Providers)
	r.customSecrets(b.CustomSecrets)
	return r.result()
}

// customSecrets checks a list of named secrets.
func (r *rules) customSecrets(list []CustomSecret) {
	r.count("custom_secrets", len(list))
	seen := make(map[string]bool, len(list))
	for i := range list {
		c := &list[i]
		r.name("a custom secret's name", c.Name, maxName)
		r.check(!seen[c.Name], "the custom secret %q is given twice", clip(c.Name))
		seen[c.Name] = true
		r.text("a custom secret's description", c.Description, maxDetail)
		r.check(!c.Ref.IsZero(), "the custom secret %q has no value", clip(c.Name))
		r.ref("a custom secret", c.Ref)
	}
}

func (t *transaction) applySettingsPut(b *SettingsPutBody) (Result, *Error) {
	user := t.cmd.UserID
	if err := t.checkCustomSecretCount(user, b.CustomSecrets); err != nil {
		return Result{}, err
	}
	old := t.settingsOf(user)
	var kept Settings
	if old != nil {
		kept = *old
	}
	s := &Settings{
		UserID: user, Values: b.Values, MCPConfig: b.MCPConfig, UpdatedAt: t.now,
		LLMAPIKey:     valueOr(b.LLMAPIKey, kept.LLMAPIKey),
		SearchAPIKey:  valueOr(b.SearchAPIKey, kept.SearchAPIKey),
		SandboxAPIKey: valueOr(b.SandboxAPIKey, kept.SandboxAPIKey),
	}
	s.Values.LLMModel = firstOf(s.Values.LLMModel, kept.Values.LLMModel)
	s.Values.LLMBaseURL = firstOf(s.Values.LLMBaseURL, kept.Values.LLMBaseURL)
	s.Values.UserConsentsToAnalytics = firstOf(s.Values.UserConsentsToAnalytics, kept.Values.UserConsentsToAnalytics)
	put(t, tableSettings, old, s)
	t.settings[user] = s
	for i := range b.Providers {
		p := b.Providers[i]
		if old := first[Provider](t.txn, tableProviders, indexID, keyOf(user, string(p.Type))); old != nil && t.meta.ProtocolVersion >= credentialVersion {
			p.Host = firstOf(p.Host, old.Host)
		}
		t.putProvider(user, p)
	}
	for _, c := range b.CustomSecrets {
		c.UserID = user
		put(t, tableCustomSecrets, first[CustomSecret](t.txn, tableCustomSecrets, indexID, keyOf(user, c.Name)), &c)
	}
	return Result{}, nil
}

// settingsOf gives a user's settings as they are at this point of the batch. It
// does not ask the table that the batch writes: go-memdb would copy what it has
// changed so far, again for each write behind such a read.
func (t *transaction) settingsOf(user string) *Settings {
	if s := t.settings[user]; s != nil {
		return s
	}
	return t.before.Settings(user)
}

// SettingsAdmission tells for what SettingsPut would be refused for the sake of
// what is stored, so that no secrets are written for it.
func (v *View) SettingsAdmission(userID string, b *SettingsPutBody) *Error {
	t := transaction{txn: v.txn}
	return t.checkCustomSecretCount(userID, b.CustomSecrets)
}

// checkCustomSecretCount bounds how many named secrets a user has after adding.
func (t *transaction) checkCustomSecretCount(user string, added []CustomSecret) *Error {
	if len(added) == 0 {
		return nil
	}
	names := make(map[string]bool, len(added))
	for _, c := range added {
		names[c.Name] = true
	}
	for c := range withPrefix[CustomSecret](t.txn, tableCustomSecrets, indexID, prefixOf(user)) {
		names[c.Name] = true
	}
	if len(names) > maxList {
		return Errorf(CodeInvalid, "a user has at most %d custom secrets", maxList)
	}
	return nil
}

// valueOr dereferences p, or gives other when p is nil.
func valueOr[T any](p *T, other T) T {
	if p == nil {
		return other
	}
	return *p
}

// firstOf gives p unless it is nil.
func firstOf[T any](p, other *T) *T {
	if p == nil {
		return other
	}
	return p
}
