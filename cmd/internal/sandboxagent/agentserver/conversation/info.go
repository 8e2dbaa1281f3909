package conversation

import (
	"encoding/json"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

// Info is the protocol's ConversationInfo.
type Info struct {
	ID                   string            `json:"id"`
	Workspace            agent.Workspace   `json:"workspace"`
	PersistenceDir       string            `json:"persistence_dir"`
	MaxIterations        int64             `json:"max_iterations"`
	StuckDetection       bool              `json:"stuck_detection"`
	ExecutionStatus      string            `json:"execution_status"`
	ConfirmationPolicy   json.RawMessage   `json:"confirmation_policy"`
	SecurityAnalyzer     json.RawMessage   `json:"security_analyzer"`
	ActivatedKnowledge   json.RawMessage   `json:"activated_knowledge_skills"`
	ActivatedPathRules   json.RawMessage   `json:"activated_path_rules"`
	BlockedActions       map[string]string `json:"blocked_actions"`
	BlockedMessages      map[string]string `json:"blocked_messages"`
	AgentState           json.RawMessage   `json:"agent_state"`
	Stats                event.Stats       `json:"stats"`
	Metrics              *event.Metrics    `json:"metrics"`
	Agent                AgentInfo         `json:"agent"`
	SecretNames          []string          `json:"secret_names"`
	Title                *string           `json:"title"`
	Tags                 map[string]string `json:"tags"`
	ParentConversationID *string           `json:"parent_conversation_id"`
	UserID               *string           `json:"user_id"`
	ForkedFrom           *string           `json:"forked_from_conversation_id"`
	ForkedFromEvent      *string           `json:"forked_from_event_id"`
	LastUserMessageID    *string           `json:"last_user_message_id"`
	LeafEventID          *string           `json:"leaf_event_id"`
	CreatedAt            time.Time         `json:"created_at"`
	UpdatedAt            time.Time         `json:"updated_at"`
}

// Info returns the conversation's present state. UpdatedAt is never before the latest event.
func (c *Conversation) Info() (Info, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return Info{}, err
	}
	return c.snapshot(l), nil
}

// snapshot is info for a caller that holds c.mu.
func (c *Conversation) snapshot(l *eventLog) Info {
	m := c.meta
	stats := c.stats(l)
	return Info{
		ID: decode.Dashed(m.ID), Workspace: m.Workspace, PersistenceDir: c.dir,
		MaxIterations: m.MaxIterations, StuckDetection: m.StuckDetection, ExecutionStatus: l.status(),
		ConfirmationPolicy: c.state(l,
			engine.KeyConfirmationPolicy), SecurityAnalyzer: c.state(l, engine.KeySecurityAnalyzer),
		ActivatedKnowledge: or(l.state[engine.KeyActivatedSkills],
			"[]"), ActivatedPathRules: or(l.state[engine.KeyActivatedPathRules], "[]"),
		BlockedActions: map[string]string{}, BlockedMessages: map[string]string{}, AgentState: or(
			l.state[engine.KeyAgentState],
			"{}",
		),
		Stats: stats, Metrics: total(stats), Agent: m.Agent, SecretNames: m.SecretNames,
		Title: m.Title, Tags: m.Tags, ParentConversationID: m.ParentID, UserID: m.UserID,
		ForkedFrom: m.ForkedFrom, ForkedFromEvent: m.ForkedFromEvent, LastUserMessageID: l.lastUserMessage(),
		LeafEventID: l.leaf(),
		CreatedAt:   m.CreatedAt, UpdatedAt: l.updated(m.UpdatedAt),
	}
}

// lastUserMessage is the id of the user's latest message, nil without one.
func (l *eventLog) lastUserMessage() *string {
	for n := len(l.entries) - 1; n >= 0; n = l.entries[n].parent {
		if e := l.entries[n]; e.Kind == event.KindMessage && e.Source == event.SourceUser {
			return &e.ID
		}
	}
	return nil
}

func or(v json.RawMessage, otherwise string) json.RawMessage {
	if len(v) == 0 {
		return json.RawMessage(otherwise)
	}
	return v
}

// stats are the metrics that the engine has reported. The caller holds c.mu.
func (c *Conversation) stats(l *eventLog) event.Stats {
	out := event.Stats{}
	if json.Unmarshal(l.state[engine.KeyStats], &out) != nil || out.UsageToMetrics == nil {
		out.UsageToMetrics = map[string]event.Metrics{}
	}
	return out
}

// total adds the metrics of all uses, nil without any.
func total(s event.Stats) *event.Metrics {
	if len(s.UsageToMetrics) == 0 {
		return nil
	}
	out := event.Metrics{ModelName: "default"}
	for _, m := range s.UsageToMetrics {
		out.AccumulatedCost += m.AccumulatedCost
		sum, u := &out.AccumulatedTokenUsage, m.AccumulatedTokenUsage
		sum.PromptTokens += u.PromptTokens
		sum.CompletionTokens += u.CompletionTokens
		sum.CacheReadTokens += u.CacheReadTokens
		sum.CacheWriteTokens += u.CacheWriteTokens
		sum.ReasoningTokens += u.ReasoningTokens
		sum.ContextWindow = max(sum.ContextWindow, u.ContextWindow)
	}
	if m, ok := s.UsageToMetrics["agent"]; ok {
		out.ModelName = m.ModelName
	}
	return &out
}

// fullState is the update that has the whole state. It is sent, not stored. The caller holds c.mu.
func (c *Conversation) fullState(l *eventLog) event.Event {
	b, err := json.Marshal(c.snapshot(l))
	members := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(b, &members)
	}
	if err != nil {
		members = nil // an info encodes to an object
	}
	for name, v := range members {
		if string(v) == "null" {
			delete(members, name)
		}
	}
	return engine.Update("full_state", members)
}

// sendState sends the whole state to the subscribers. The caller holds c.mu.
func (c *Conversation) sendState() {
	if c.log != nil && !c.deleted && len(c.subs) > 0 {
		c.send(c.fullState(c.log))
	}
}
