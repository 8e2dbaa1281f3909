package fsm

import "time"

// SettingsPutBody replaces the settings of Command.UserID (POST /api/settings). Apply keeps the
// stored value of the sticky members of Values and of the three key refs when they are nil
// (API.md, "Settings: store").
type SettingsPutBody struct {
	Values SettingsValues `json:"values"`
	// A nil ref keeps the stored one; a zero ref clears it.
	LLMAPIKey     *SecretRef `json:"llm_api_key,omitempty"`
	SearchAPIKey  *SecretRef `json:"search_api_key,omitempty"`
	SandboxAPIKey *SecretRef `json:"sandbox_api_key,omitempty"`
	// MCPConfig is not sticky: the zero value clears it.
	MCPConfig SecretRef `json:"mcp_config,omitzero"`
	// Providers and CustomSecrets (secrets_store) are merged into what is stored. A provider with a
	// zero Ref keeps its stored token. From protocol version 3 on a provider without a host keeps its
	// stored host, so that its token is not sent to another host by accident.
	Providers     []Provider     `json:"providers,omitempty"`
	CustomSecrets []CustomSecret `json:"custom_secrets,omitempty"`
}

// CommandType implements Body.
func (*SettingsPutBody) CommandType() CommandType { return SettingsPut }

// check implements Body.
func (b *SettingsPutBody) check(r *rules) {
	b.Values.check(r)
	r.optionalRef("llm_api_key", b.LLMAPIKey)
	r.optionalRef("search_api_key", b.SearchAPIKey)
	r.optionalRef("sandbox_api_key", b.SandboxAPIKey)
	r.ref("mcp_config", b.MCPConfig)
	r.providers(b.Providers)
	r.customSecrets(b.CustomSecrets)
}

// customSecrets checks a list of named secrets.
func (r *rules) customSecrets(list []CustomSecret) {
	r.count("custom_secrets", len(list))
	seen := make(map[string]bool, len(list))
	for i := range list {
		c := &list[i]
		r.name("a custom secret's name", c.Name, MaxName)
		r.check(!seen[c.Name], "the custom secret %q is given twice", clip(c.Name))
		seen[c.Name] = true
		r.text("a custom secret's description", c.Description, r.limit(MaxLine, MaxParagraph))
		r.check(!c.Ref.IsZero(), "the custom secret %q has no value", clip(c.Name))
		r.ref("a custom secret", c.Ref)
	}
}

func (t *transaction) applySettingsPut(b *SettingsPutBody) (Result, *Error) {
	return t.putSettings(b, b.over)
}

// putSettings stores what a body makes of a user's settings, its providers and its secrets.
func (t *transaction) putSettings(b *SettingsPutBody, over func(old *Settings) *Settings) (Result, *Error) {
	user := t.cmd.UserID
	if err := t.checkCustomSecretCount(user, b.CustomSecrets); err != nil {
		return Result{}, err
	}
	old := t.settingsOf(user)
	s := over(old)
	if t.meta.active(VersionEndpoints) {
		s.leave(old, b.LLMAPIKey != nil)
	}
	if !t.meta.active(VersionAgents) {
		s.Values = s.Values.withoutAgents()
	} else if err := t.agentOfSettings(old, &s.Values); err != nil {
		return Result{}, err
	}
	s.UserID, s.UpdatedAt = user, t.now
	if err := t.mayGrow(user, t.settingsGrowth(old, s, b)); err != nil {
		return Result{}, err
	}
	put(t, tableSettings, old, s)
	t.settings[user] = s
	for i := range b.Providers {
		p := b.Providers[i]
		if old := first[Provider](t.txn, tableProviders, indexID, keyOf(user, string(p.Type))); old != nil &&
			t.meta.active(VersionHistory) {
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

// over returns the settings that take the place of old; nil is none.
func (b *SettingsPutBody) over(old *Settings) *Settings {
	var kept Settings
	if old != nil {
		kept = *old
	}
	s := &Settings{
		Values: b.Values, MCPConfig: b.MCPConfig, Former: kept.Former, Origin: kept.Origin,
		LLMAPIKey:     valueOr(b.LLMAPIKey, kept.LLMAPIKey),
		SearchAPIKey:  valueOr(b.SearchAPIKey, kept.SearchAPIKey),
		SandboxAPIKey: valueOr(b.SandboxAPIKey, kept.SandboxAPIKey),
	}
	s.Values.keepSticky(&kept.Values)
	return s
}

// settingsGrowth returns how much storing next in place of old, with the body's providers and
// secrets, adds to the state.
func (t *transaction) settingsGrowth(old, next *Settings, b *SettingsPutBody) int {
	n := growthOf(&t.meta, old, next) + t.providersGrowth(next.UserID, b.Providers)
	for i := range b.CustomSecrets {
		c := &b.CustomSecrets[i]
		n += growthOf(&t.meta, first[CustomSecret](t.txn, tableCustomSecrets, indexID, keyOf(next.UserID, c.Name)), c)
	}
	return n
}

// settingsOf returns a user's settings at this point of the batch. It does not read the table that
// the batch writes: such a read makes go-memdb copy again what the batch has already changed.
func (t *transaction) settingsOf(user string) *Settings {
	if s, written := t.settings[user]; written {
		return s
	}
	return t.before.Settings(user)
}

// SettingsAdmission returns the error with which SettingsPut or SettingsPatch would refuse the request
// because of the stored state. Callers use it before they write secrets.
func (v *View) SettingsAdmission(userID string, b Body, now time.Time) *Error {
	t := v.transaction(now)
	t.cmd.UserID = userID
	switch b := b.(type) {
	case *SettingsPutBody:
		return t.settingsAdmission(b, b.over)
	case *SettingsPatchBody:
		return t.settingsAdmission(&b.SettingsPutBody, b.over)
	}
	return nil
}

func (t *transaction) settingsAdmission(b *SettingsPutBody, over func(old *Settings) *Settings) *Error {
	userID := t.cmd.UserID
	if err := t.checkCustomSecretCount(userID, b.CustomSecrets); err != nil {
		return err
	}
	old := t.settingsOf(userID)
	next := over(old)
	next.UserID = userID
	if t.meta.active(VersionEndpoints) {
		next.leave(old, b.LLMAPIKey != nil)
	}
	if b.Values.ChoosesAgent() && !t.meta.active(VersionAgents) {
		return NeedsVersion("choosing an agent or sharing sandboxes", VersionAgents, t.meta.ProtocolVersion)
	}
	if err := t.agentOfSettings(old, &next.Values); err != nil {
		return err
	}
	return t.mayGrow(userID, t.settingsGrowth(old, next, b))
}

// checkCustomSecretCount bounds the number of a user's named secrets after an addition.
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

// valueOr dereferences p, or returns other when p is nil.
func valueOr[T any](p *T, other T) T {
	if p == nil {
		return other
	}
	return *p
}

// firstOf returns p unless it is nil, else other.
func firstOf[T any](p, other *T) *T {
	if p == nil {
		return other
	}
	return p
}
