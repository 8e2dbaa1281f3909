package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/zclconf/go-cty/cty"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// setAgents stores a spec's agents, a list of objects with an id.
func setAgents(to *[]fsm.Agent) func(cty.Value) error {
	return func(v cty.Value) error {
		if t := v.Type(); !t.IsTupleType() && !t.IsListType() {
			return errors.New(`must be a list such as [{ id = "opencode" }]`)
		}
		list := []fsm.Agent{}
		for it := v.ElementIterator(); it.Next(); {
			_, one := it.Element()
			a, err := agentOf(one)
			if err != nil {
				return fmt.Errorf("agent %d: %w", len(list)+1, err)
			}
			if slices.ContainsFunc(list, func(b fsm.Agent) bool { return b.ID == a.ID }) {
				return fmt.Errorf("the agent %q is there twice", a.ID)
			}
			list = append(list, a)
		}
		*to = list
		return nil
	}
}

// agentOf reads one agent. fsm checks the bounds of its texts.
func agentOf(v cty.Value) (fsm.Agent, error) {
	var a fsm.Agent
	if v.IsNull() || !v.Type().IsObjectType() {
		return a, errors.New(`must be an object such as { id = "opencode" }`)
	}
	members := []attr{
		{name: "id", required: true, set: setString(&a.ID, isAgentID)},
		{name: "display_name", set: setString(&a.DisplayName, notEmpty)},
		{name: "command", set: setString(&a.Command, notEmpty)},
		{name: "args", set: setStrings(&a.Args)},
		{name: "env", set: setStringMap(&a.Env, isEnvName)},
		{name: "env_from_secret", set: setStringMap(&a.EnvFromSecret, isEnvName)},
		{name: "session_mode", set: setString(&a.SessionMode, notEmpty)},
		{name: "model", set: setString(&a.Model, notEmpty)},
	}
	for name := range v.Type().AttributeTypes() {
		if !slices.ContainsFunc(members, func(m attr) bool { return m.name == name }) {
			return a, fmt.Errorf("there is no member %q", name)
		}
	}
	for _, m := range members {
		switch {
		case v.Type().HasAttribute(m.name) && !v.GetAttr(m.name).IsNull():
			if err := m.set(v.GetAttr(m.name)); err != nil {
				return a, fmt.Errorf("%s: %w", m.name, err)
			}
		case m.required:
			return a, fmt.Errorf("%s is missing", m.name)
		}
	}
	return a, preset.CheckAgent(a.ID, a.Command, a.Texts())
}

func isAgentID(s string) error {
	switch {
	case !fsm.ValidAgentID(s):
		return fmt.Errorf("%q is not an agent id: at most 63 of A-Z a-z 0-9 - _ ., the first no dot", s)
	case s == fsm.AgentCustom || s == fsm.AgentOpenHands:
		return fmt.Errorf("the agent id %q has a meaning of its own: choose another", s)
	}
	return nil
}
