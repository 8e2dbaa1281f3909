package fsm

import "slices"

// setMCPConfig names the MCP configuration in SettingsPatchBody.Set.
const setMCPConfig = "mcp_config"

// SettingsPatchBody changes single settings of Command.UserID (POST /api/v1/settings). Of Values, and
// of MCPConfig, it changes what Set names: one that is null becomes null, and the others keep what is
// stored, without settings the defaults. The rest is as in SettingsPutBody.
type SettingsPatchBody struct {
	// Set has the names of members of Values, and "mcp_config".
	Set []string `json:"set"`
	SettingsPutBody
}

// CommandType implements Body.
func (*SettingsPatchBody) CommandType() CommandType { return SettingsPatch }

// check implements Body.
func (b *SettingsPatchBody) check(r *rules) {
	b.SettingsPutBody.check(r)
	r.count("set", len(b.Set))
	for _, name := range b.Set {
		r.check(name == setMCPConfig || slices.ContainsFunc(settingsMembers, func(m settingsMember) bool {
			return m.name == name
		}), "there is no setting %q", clip(name))
	}
}

func (t *transaction) applySettingsPatch(b *SettingsPatchBody) (Result, *Error) {
	return t.putSettings(&b.SettingsPutBody, b.over)
}

// over returns the settings that take the place of old; nil is none.
func (b *SettingsPatchBody) over(old *Settings) *Settings {
	s, kept := b.SettingsPutBody.over(old), Settings{Values: DefaultSettings()}
	if old != nil {
		kept = *old
	}
	s.Values = kept.Values.with(&b.Values, b.Set)
	if !slices.Contains(b.Set, setMCPConfig) {
		s.MCPConfig = kept.MCPConfig
	}
	return s
}
