package fsm

import (
	"maps"
	"slices"
	"strings"
)

// The kinds of agents, for SettingsValues.AgentKind and Conversation.AgentKind.
const (
	// AgentOpenHands is the agent server's own agent, also by ACPServer.
	AgentOpenHands = "openhands"
	// AgentACP is a program that speaks the Agent Client Protocol.
	AgentACP = "acp"
	// AgentCustom is the id of an agent whose command line is the user's own.
	AgentCustom = "custom"
)

// Agent is a program in a spec's sandboxes that speaks the Agent Client Protocol.
type Agent struct {
	// ID is what settings and starts choose it by: [A-Za-z0-9_-][A-Za-z0-9._-]*, at most 63 characters.
	// It is unique in its spec.
	ID          string `json:"id"`
	DisplayName string `json:"display_name,omitempty"`
	// Command is the program, "" for the agent server's own preset of that ID, which Args are appended
	// to. With Command and no Args a preset's ID keeps the preset's arguments. Command and the values
	// of Args and Env may have the placeholders of presets.
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	// Env is added to the agent's environment. It must hold no secrets.
	Env map[string]string `json:"env,omitempty"`
	// EnvFromSecret has the names of variables with the names of the user's secrets that they are
	// filled from.
	EnvFromSecret map[string]string `json:"env_from_secret,omitempty"`
	// SessionMode and Model are the agent's own words, "" for its defaults.
	SessionMode string `json:"session_mode,omitempty"`
	Model       string `json:"model,omitempty"`
}

// Texts returns what may have placeholders.
func (a *Agent) Texts() []string {
	out := append([]string{a.Command, a.SessionMode}, a.Args...)
	for _, name := range slices.Sorted(maps.Keys(a.Env)) {
		out = append(out, a.Env[name])
	}
	return out
}

// Agent finds one of the spec's agents, nil for none. s may be nil.
func (s *Spec) Agent(id string) *Agent {
	if s == nil {
		return nil
	}
	i := slices.IndexFunc(s.Agents, func(a Agent) bool { return a.ID == id })
	if i < 0 {
		return nil
	}
	return &s.Agents[i]
}

// AgentIDs names the spec's agents, for messages.
func (s *Spec) AgentIDs() string {
	ids := []string{}
	for i := range s.Agents {
		ids = append(ids, s.Agents[i].ID)
	}
	if len(ids) == 0 {
		return "it has none"
	}
	return "it has " + strings.Join(ids, ", ")
}

// checkAgents adds the rules of a spec's agents.
func (s *Spec) checkAgents(r *rules) {
	spec := clip(s.ID)
	r.count("agents", len(s.Agents))
	seen := map[string]bool{}
	for i := range s.Agents {
		a := &s.Agents[i]
		id := clip(a.ID)
		r.check(ValidAgentID(a.ID), "spec %s: bad agent id %q: use at most 63 of A-Z a-z 0-9 - _ ., the first no dot", spec,
			id)
		r.check(a.ID != AgentCustom && a.ID != AgentOpenHands,
			"spec %s: the agent id %q has a meaning of its own: choose another", spec, id)
		r.check(!seen[a.ID], "spec %s: the agent %s is there twice", spec, id)
		seen[a.ID] = true
		a.check(r, "spec "+spec+": the agent "+id)
	}
}

// check adds the rules of one agent. of names it in messages.
func (a *Agent) check(r *rules, of string) {
	r.text("display_name", a.DisplayName, MaxName)
	r.text("command", a.Command, MaxPath)
	r.list("args", a.Args, MaxParagraph)
	r.texts("env", a.Env)
	r.texts("env_from_secret", a.EnvFromSecret)
	r.text("session_mode", a.SessionMode, MaxName)
	r.text("model", a.Model, MaxLine)
	for _, name := range slices.Sorted(maps.Keys(a.Env)) {
		r.check(validVariable(name), "%s: env: %q is not the name of a variable", of, clip(name))
	}
	for _, name := range slices.Sorted(maps.Keys(a.EnvFromSecret)) {
		_, twice := a.Env[name]
		r.check(validVariable(name), "%s: env_from_secret: %q is not the name of a variable", of, clip(name))
		r.check(!twice, "%s has the variable %s in env and in env_from_secret", of, clip(name))
		r.check(a.EnvFromSecret[name] != "", "%s: env_from_secret: %s needs the name of a secret of the user", of, clip(name))
	}
}

// validVariable reports whether s is [A-Za-z_][A-Za-z0-9_]*, the name of an environment variable.
func validVariable(s string) bool {
	return s != "" && (s[0] < '0' || s[0] > '9') &&
		strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

// ValidAgentID reports whether s can be the id of an agent.
func ValidAgentID(s string) bool {
	return s != "" && len(s) <= 63 && s[0] != '.' && strings.Trim(s,
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// AgentChoice returns the kind of agent that a start gets, and its id for AgentACP: the request's,
// else the user's. The id AgentOpenHands is the built-in agent. set may be nil.
func AgentChoice(q *StartRequest, set *Settings) (kind, id string) {
	id = valueOr(q.ACPServer, "")
	if id == "" && set != nil {
		kind, id = valueOr(set.Values.AgentKind, ""), valueOr(set.Values.ACPServer, "")
		if kind == AgentACP && id == "" {
			id = AgentCustom
		}
	}
	if kind == AgentOpenHands || id == "" || id == AgentOpenHands {
		return AgentOpenHands, ""
	}
	return AgentACP, id
}

// ChoosesAgent reports whether a value that VersionAgents brings is not as below it.
func (v *SettingsValues) ChoosesAgent() bool {
	texts := valueOr(v.ACPServer, "") + valueOr(v.ACPModel, "") + strings.Join(valueOr(v.ACPCommand, nil), " ")
	return texts != "" || valueOr(v.AgentKind, AgentOpenHands) != AgentOpenHands ||
		valueOr(v.SandboxGroupingStrategy, GroupNone) != GroupNone || valueOr(v.GitFullClone, false)
}

// agentOfSettings refuses a choice that no spec has. A choice that was stored before stays: its
// spec may have changed since, and the other settings must remain changeable.
func (t *transaction) agentOfSettings(old *Settings, next *SettingsValues) *Error {
	var was SettingsValues
	if old != nil {
		was = old.Values
	}
	id, command := valueOr(next.ACPServer, ""), valueOr(next.ACPCommand, nil)
	sameID, sameCommand := id == valueOr(was.ACPServer, ""), slices.Equal(command, valueOr(was.ACPCommand, nil))
	if kind := valueOr(next.AgentKind, ""); kind == AgentACP && id == "" && len(command) == 0 {
		return Errorf(CodeInvalid, "agent_kind %q needs acp_server: %s", AgentACP, t.agentsOfSpecs())
	}
	if sameID && sameCommand {
		return nil
	}
	if id == AgentCustom && len(command) == 0 {
		return Errorf(CodeInvalid, "acp_server %q needs acp_command", AgentCustom)
	}
	ids, free := t.agentChoices()
	if len(command) > 0 && !sameCommand && !free {
		return Errorf(CodeInvalid, "no sandbox spec allows agent commands of users (allow_agent_command): %s",
			t.agentsOfSpecs())
	}
	if id == "" || id == AgentOpenHands || id == AgentCustom || sameID || slices.Contains(ids, id) {
		return nil
	}
	return Errorf(CodeInvalid, "no sandbox spec has the agent %q: %s", clip(id), t.agentsOfSpecs())
}

// agentsOfSpecs names the agents that settings may choose, for messages.
func (t *transaction) agentsOfSpecs() string {
	ids, _ := t.agentChoices()
	if len(ids) == 0 {
		return "they have none"
	}
	return "there are " + strings.Join(ids, ", ")
}

// agentChoices returns the ids of all specs' agents, and whether one allows commands of users.
func (t *transaction) agentChoices() (ids []string, free bool) {
	for s := range withPrefix[Spec](t.txn, tableSpecs, indexID, nil) {
		free = free || s.AllowAgentCommand
		for i := range s.Agents {
			ids = append(ids, s.Agents[i].ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), free
}

// CheckAgent returns an error with what to do where a spec does not allow a choice. Starts are refused
// with it, and tasks fail with it.
func (s *Spec) CheckAgent(kind, id string) *Error {
	switch {
	case kind != AgentACP || s.Agent(id) != nil:
		return nil
	case id == AgentCustom && s.AllowAgentCommand:
		return nil
	case id == AgentCustom:
		return Errorf(CodeInvalid, "the sandbox spec %s allows no agent commands of users: choose one of its agents (%s)",
			s.ID, s.AgentIDs())
	}
	return Errorf(CodeInvalid, "the sandbox spec %s has no agent %q: %s", s.ID, clip(id), s.AgentIDs())
}

// agentOfStart checks the agent of a start against the spec of its sandbox: s, or a new one of the
// default spec. A spec that is gone is the task's to report.
func (t *transaction) agentOfStart(user string, q *StartRequest, s *Sandbox) *Error {
	kind, id := AgentChoice(q, t.settingsOf(user))
	if kind != AgentACP || !t.meta.active(VersionAgents) {
		return nil
	}
	spec, err := t.specOrDefault("")
	if s != nil {
		spec, err = t.specOrDefault(s.SpecID)
	}
	if err != nil {
		return nil //nolint:nilerr // the task reports it
	}
	return spec.CheckAgent(kind, id)
}
