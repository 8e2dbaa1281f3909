package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/relay"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

// ErrBehindGateway means that a switch would leave the model gateway.
var ErrBehindGateway = errors.New("the conversation's models are behind the gateway")

// amend changes the create request that the conversation's engines are made of.
func (s *Service) amend(c *Conversation, fn func(map[string]any)) error {
	c.control.Lock()
	defer c.control.Unlock()
	c.mu.Lock()
	request := c.request
	c.mu.Unlock()
	if request == nil {
		var err error
		if request, err = s.store.request(c.Id); err != nil {
			return err
		}
	}
	members := map[string]any{}
	if request != nil {
		if err := json.Unmarshal(request, &members); err != nil {
			return err
		}
	}
	fn(members)
	b, err := json.Marshal(members)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deleted {
		return errGone
	}
	if s.store.sealer == nil {
		c.request = b
		return nil
	}
	return s.store.reseal(c, b)
}

// amendAgent changes a member of the agent in the create request, in either form of it.
func (s *Service) amendAgent(c *Conversation, member string, value any) error {
	return s.amend(c, func(request map[string]any) {
		for _, form := range []string{"agent_settings", "agent"} {
			if a, ok := request[form].(map[string]any); ok {
				a[member] = value
			}
		}
	})
}

// AddSecrets adds or replaces secrets, and gives them to the engine. names are theirs.
func (s *Service) AddSecrets(c *Conversation, added map[string]any, names []string) error {
	err := s.amend(c, func(request map[string]any) {
		all, ok := request["secrets"].(map[string]any)
		if !ok {
			all = map[string]any{}
		}
		maps.Copy(all, added)
		request["secrets"] = all
	})
	if err == nil {
		err = c.change(func(m *Meta) {
			m.SecretNames = slices.Compact(slices.Sorted(slices.Values(slices.Concat(m.SecretNames, names))))
		})
	}
	if err == nil {
		err = s.hand(c)
	}
	return err
}

// hand gives the engine the conversation's present secrets.
func (s *Service) hand(c *Conversation) error {
	c.mu.Lock()
	eng := c.engine
	c.mu.Unlock()
	if eng == nil {
		return nil // the next engine reads them
	}
	setup, err := s.Setup(c)
	if err != nil {
		return err
	}
	if u, ok := eng.(engine.SecretsUpdater); ok {
		u.UpdateSecrets(setup.Secrets)
	}
	return nil
}

// SwitchLLM stores how the conversation reaches its model, and gives it to the engine. given is what the
// client named, shown what it is shown of it. The error is ErrBehindGateway where the client may
// choose a model alone.
func (s *Service) SwitchLLM(
	ctx context.Context,
	c *Conversation,
	sw engine.Switcher,
	given map[string]any,
	shown LLMInfo,
) error {
	stored, err := s.requested(c)
	if err != nil {
		return err
	}
	now := stored.agent().LLM
	if s.relay.Relays(now) && s.relay.Leaves(now, given) {
		return ErrBehindGateway
	}
	llm, kept := relay.WithAccess(now, given)
	if kept {
		c.mu.Lock()
		shown.BaseURL, shown.APIKey = c.meta.Agent.LLM.BaseURL, c.meta.Agent.LLM.APIKey
		c.mu.Unlock()
	}
	if err := s.amendAgent(c, "llm", llm); err != nil {
		return err
	}
	if err := c.change(func(m *Meta) { m.Agent.LLM = shown }); err != nil {
		return err
	}
	setup, err := s.Setup(c)
	if err != nil {
		return err
	}
	if err := sw.SwitchLLM(ctx, setup.Agent.LLM); err != nil {
		return err
	}
	return c.Append(engine.Update("agent", shown))
}

// SwitchACPModel stores the model of an agent that speaks the Agent Client Protocol, and asks the
// agent for it.
func (s *Service) SwitchACPModel(
	ctx context.Context,
	c *Conversation,
	sw engine.ModelSwitcher,
	model string,
) error {
	err := s.amendAgent(c, "acp_model", model)
	if err == nil {
		err = c.change(func(m *Meta) { m.Agent.ACPModel = model })
	}
	if err == nil {
		err = sw.SwitchModel(ctx, model)
	}
	return err
}
