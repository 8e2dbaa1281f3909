package conversation

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	exact "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/relay"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

const (
	// promptTime bounds the making of a system prompt, the start of its tools' servers included.
	promptTime = 20 * time.Second
	// idleTTL is how long an engine without a run is kept, with its processes.
	idleTTL = 20 * time.Minute
)

// KindACP is the kind of an agent that speaks the Agent Client Protocol.
const KindACP = "acp"

const kindNative = "openhands"

// EngineOf returns the conversation's engine and makes it if needed.
func (s *Service) EngineOf(c *Conversation) (engine.Engine, error) {
	c.making.Lock()
	defer c.making.Unlock()
	c.mu.Lock()
	eng, deleted := c.engine, c.deleted
	c.mu.Unlock()
	switch {
	case deleted:
		return nil, errGone
	case eng != nil:
		return eng, nil
	case s.ctx.Err() != nil:
		return nil, ErrStopping
	}
	setup, err := s.Setup(c)
	if err != nil {
		return nil, err
	}
	if eng, err = s.cfg.NewEngine(setup, c); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.engine = eng
	c.mu.Unlock()
	return eng, nil
}

// Setup is what an engine needs of a conversation.
func (s *Service) Setup(c *Conversation) (engine.Setup, error) {
	r, err := s.requested(c)
	if err != nil {
		return engine.Setup{}, err
	}
	c.mu.Lock()
	dir, m := c.dir, c.meta
	c.mu.Unlock()
	of := r.agent()
	if of.LLM, err = s.relay.Access(c.Id, of.LLM); err != nil {
		return engine.Setup{}, err
	}
	setup := engine.Setup{
		ID: c.Id, Dir: dir, WorkingDir: m.Workspace.WorkingDir,
		Agent: of, Secrets: r.secrets(),
		Environ: relay.BesideProxies(config.CommandEnv(s.cfg.Environ,
			s.cfg.Env)), Credential: s.cfg.Tools, Logger: s.logger.With("conversation", c.Id),
	}
	return setup, nil
}

// requested reads what is stored of the conversation's create request.
func (s *Service) requested(c *Conversation) (r setupRequest, err error) {
	c.mu.Lock()
	request := c.request
	c.mu.Unlock()
	if request == nil {
		if request, err = s.store.request(c.Id); err != nil {
			return setupRequest{}, err
		}
	}
	if request != nil {
		err = readRequest(request, &r)
	}
	return r, err
}

// readRequest decodes a stored create request as conversationapi did: names match exactly. Former
// programs stored a name that was sent twice; the last value counts.
func readRequest(request []byte, into any) error {
	return exact.Unmarshal(request, into, jsontext.AllowDuplicateNames(true))
}

// setupRequest is the part of the create request that engines need.
type setupRequest struct {
	AgentSettings *agentRequest              `json:"agent_settings"`
	Agent         *agentRequest              `json:"agent"`
	Secrets       map[string]json.RawMessage `json:"secrets"`
	HookConfig    json.RawMessage            `json:"hook_config"`
}

type agentRequest struct {
	engine.Agent
	engine.ACP
	// Kind is ACPAgent or Agent, in the form "agent".
	Kind    string `json:"kind"`
	Context struct {
		Suffix string            `json:"system_message_suffix"`
		Skills []json.RawMessage `json:"skills"`
	} `json:"agent_context"`
	ToolList []struct {
		Name string `json:"name"`
	} `json:"tools"`
}

func (r setupRequest) agent() engine.Agent {
	from := r.AgentSettings
	if from == nil {
		from = r.Agent
	}
	if from == nil {
		return engine.Agent{Kind: kindNative}
	}
	out := from.Agent
	out.ACP, out.Suffix, out.Skills, out.Hooks = from.ACP, from.Context.Suffix, from.Context.Skills, r.HookConfig
	if out.Kind == "" || out.Kind == "llm" {
		out.Kind = kindNative
	}
	if from.Kind == "ACPAgent" {
		out.Kind = KindACP
	}
	for _, t := range from.ToolList {
		out.Tools = append(out.Tools, t.Name)
	}
	return out
}

// secrets are the static secrets.
func (r setupRequest) secrets() map[string]engine.Secret {
	out := map[string]engine.Secret{}
	for name, raw := range r.Secrets {
		var plain string
		if json.Unmarshal(raw, &plain) == nil {
			out[name] = engine.Secret{Value: plain}
			continue
		}
		var one engine.Secret
		if readRequest(raw, &one) == nil && one.Value != "" {
			out[name] = one
		}
	}
	return out
}

// opening returns the events that a message adds: the system prompt before the first one, what the
// engine adds to a user's, and the message. Without an engine it is the message alone; the run then
// reports why there is none.
func (s *Service) opening(c *Conversation, m *event.Message) []event.Event {
	eng, err := s.EngineOf(c)
	if err != nil {
		return []event.Event{m}
	}
	// A conversation that is being created has no events to read.
	c.mu.Lock()
	l, err := c.events()
	first := err != nil || !slices.ContainsFunc(l.entries,
		func(e eventEntry) bool { return e.Kind == event.KindSystemPrompt })
	c.mu.Unlock()
	var events []event.Event
	if p, ok := eng.(engine.Prompter); ok && first {
		ctx, cancel := context.WithTimeout(s.ctx, promptTime)
		if e := p.SystemPrompt(ctx); e != nil {
			events = append(events, e)
		}
		cancel()
	}
	if m.Source == event.SourceUser {
		if a, ok := eng.(engine.Augmenter); ok {
			events = append(events, a.Augment(m)...)
		}
	}
	return append(events, m)
}

// rest closes the engine if no run starts for a while. The caller holds c.mu.
func (s *Service) rest(c *Conversation) {
	if c.resting != nil {
		c.resting.Stop()
	}
	c.resting = time.AfterFunc(idleTTL, func() { s.release(c) })
}

// release closes the engine of a conversation that does not run.
func (s *Service) release(c *Conversation) {
	c.control.Lock()
	defer c.control.Unlock()
	c.mu.Lock()
	eng := c.engine
	if c.run != nil {
		eng = nil
	} else {
		c.engine = nil
	}
	c.mu.Unlock()
	if eng == nil {
		return
	}
	if err := eng.Close(); err != nil {
		s.logger.Warn("an engine did not close", "conversation", c.Id, "error", err)
	}
}
