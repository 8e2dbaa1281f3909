package fsm

import (
	"maps"
	"slices"
	"strings"
)

// The kinds of agents, for SettingsValues.AgentKind and Conversation.AgentKind.
const (
	// AgentOpenHands is the agent server's own agent.
	AgentOpenHands = "openhands"
	// AgentACP is a program that speaks the Agent Client Protocol.
	AgentACP = "acp"
	// AgentCustom is the id of an agent whose command line is the user's own.
	AgentCustom = "custom"
)

// Agent is a program in a spec's sandboxes that speaks the Agent Client Protocol (PROTOCOL.md, "Agents
// of a spec").
type Agent struct {
	// ID is what settings and starts choose it by: [A-Za-z0-9._-], at most 63 characters. It is unique
	// in its spec.
	ID          string `json:"id"`
	DisplayName string `json:"display_name,omitempty"`
	// Command is the program, "" for the agent server's own preset of that ID. Args are its arguments.
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
	seen := map[string]bool{AgentCustom: true}
	for i := range s.Agents {
		a := &s.Agents[i]
		r.check(ValidAgentID(a.ID), "spec %s: bad agent id %q: use at most 63 of A-Z a-z 0-9 - _ .", spec, clip(a.ID))
		r.check(!seen[a.ID], "spec %s: the agent id %q is taken", spec, clip(a.ID))
		seen[a.ID] = true
		r.text("display_name", a.DisplayName, MaxName)
		r.text("command", a.Command, MaxPath)
		r.check(a.Command != "" || len(a.Args) == 0, "spec %s: the agent %s has arguments and no command", spec, clip(a.ID))
		r.list("args", a.Args, MaxParagraph)
		r.texts("env", a.Env)
		r.texts("env_from_secret", a.EnvFromSecret)
		for _, name := range slices.Sorted(maps.Keys(a.EnvFromSecret)) {
			_, twice := a.Env[name]
			r.check(!twice, "spec %s: the agent %s has the variable %s twice", spec, clip(a.ID), clip(name))
		}
		r.text("session_mode", a.SessionMode, MaxName)
		r.text("model", a.Model, MaxLine)
	}
}

// ValidAgentID reports whether s can be the id of an agent.
func ValidAgentID(s string) bool {
	return s != "" && len(s) <= 63 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// AgentChoice returns the kind of agent that a start gets, and its id for AgentACP: the request's,
// else the user's. set may be nil.
func AgentChoice(q *StartRequest, set *Settings) (kind, id string) {
	if id := valueOr(q.ACPServer, ""); id != "" {
		return AgentACP, id
	}
	if set == nil || valueOr(set.Values.AgentKind, "") != AgentACP {
		return AgentOpenHands, ""
	}
	if id := valueOr(set.Values.ACPServer, ""); id != "" {
		return AgentACP, id
	}
	return AgentACP, AgentCustom
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
		return Errorf(CodeInvalid, "the sandbox spec %s allows no agent commands of users: choose one of its agents (%s)", s.ID, s.AgentIDs())
	}
	return Errorf(CodeInvalid, "the sandbox spec %s has no agent %q: %s", s.ID, clip(id), s.AgentIDs())
}

// agentOfStart checks the agent of a start against the spec of its sandbox: s, or a new one of the
// default spec. A spec that is gone is the task's to report.
func (t *transaction) agentOfStart(user string, q *StartRequest, s *Sandbox) *Error {
	if !t.meta.active(VersionAgents) {
		if valueOr(q.ACPServer, "") != "" {
			return NeedsVersion("an agent of a spec", VersionAgents, t.meta.ProtocolVersion)
		}
		return nil
	}
	kind, id := AgentChoice(q, t.settingsOf(user))
	if kind != AgentACP {
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
