package eventin

import (
	"encoding/json"
	"math"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
)

// The states of a conversation that lists show.
const (
	keyStatus = "execution_status"
	keyStats  = "stats"
)

// KindMessage and sourceUser are those of what a user says.
const (
	KindMessage = "MessageEvent"
	sourceUser  = "user"
)

// titleLength is how much of a message makes a title, as at upstream.
const titleLength = 50

// AddFacts reads from events what lists show of their conversation, and adds it to that of the events before.
// It is readable in the log, so a message's text is in it only where a title is made of it.
func AddFacts(facts *fsm.EventFacts, events []Event, untitled bool) {
	for _, e := range events {
		switch e.Head.Kind {
		case KindStateUpdate:
			addState(facts, e.Text)
		case KindMessage:
			if untitled && facts.Title == "" && e.Head.Source == sourceUser {
				facts.Title = titleOf(e.Text)
			}
		}
	}
}

// addState reads a change of the conversation's state. What can't be read says nothing.
func addState(facts *fsm.EventFacts, text json.RawMessage) {
	var e struct {
		Key   string          `json:"key"`
		Value json.RawMessage `json:"value"`
	}
	if json.Unmarshal(text, &e) != nil {
		return
	}
	switch e.Key {
	case keyStatus:
		var status string
		if json.Unmarshal(e.Value, &status) == nil && IsExecutionStatus(status) {
			facts.Status = status
		}
	case keyStats:
		var stats struct {
			Usages map[string]metrics `json:"usage_to_metrics"`
		}
		if json.Unmarshal(e.Value, &stats) == nil && len(stats.Usages) > 0 {
			facts.Usage = usageOf(stats.Usages)
		}
	}
}

// metrics is upstream's MetricsSnapshot.
type metrics struct {
	Model  string  `json:"model_name"`
	Cost   float64 `json:"accumulated_cost"` // US dollars
	Tokens struct {
		Prompt        int64 `json:"prompt_tokens"`
		Completion    int64 `json:"completion_tokens"`
		CacheRead     int64 `json:"cache_read_tokens"`
		CacheWrite    int64 `json:"cache_write_tokens"`
		Reasoning     int64 `json:"reasoning_tokens"`
		ContextWindow int64 `json:"context_window"`
		PerTurn       int64 `json:"per_turn_token"`
	} `json:"accumulated_token_usage"`
}

// usageOf adds up what a conversation used models for. The model is the agent's.
func usageOf(usages map[string]metrics) (all fsm.AgentUsage) {
	for _, m := range usages {
		t := m.Tokens
		one := fsm.AgentUsage{
			Prompt: t.Prompt, Completion: t.Completion, CacheRead: t.CacheRead,
			CacheWrite: t.CacheWrite, Reasoning: t.Reasoning,
		}
		if cost := m.Cost * fsm.Dollar; cost > 0 && cost < math.MaxInt64/2 {
			one.Cost = int64(cost)
		}
		one = one.Clamped() // so that no sum passes the greatest number
		all = fsm.AgentUsage{
			Cost: all.Cost + one.Cost, Prompt: all.Prompt + one.Prompt, Completion: all.Completion + one.Completion,
			CacheRead: all.CacheRead + one.CacheRead, CacheWrite: all.CacheWrite + one.CacheWrite,
			Reasoning: all.Reasoning + one.Reasoning,
		}.Clamped()
	}
	if agent, known := usages["agent"]; known {
		all.Model = decode.Truncate(agent.Model, fsm.MaxLine)
		all.ContextWindow, all.PerTurn = agent.Tokens.ContextWindow, agent.Tokens.PerTurn
	}
	return all.Clamped()
}

// titleOf is the beginning of a user's message in one line.
func titleOf(text json.RawMessage) string {
	var e struct {
		Message struct {
			Content []struct {
				Text string `json:"text"`
			} `json:"content"`
		} `json:"llm_message"`
	}
	if json.Unmarshal(text, &e) != nil {
		return ""
	}
	for _, one := range e.Message.Content {
		if line := []rune(strings.Join(strings.Fields(one.Text), " ")); len(line) > 0 {
			return string(line[:min(len(line), titleLength)])
		}
	}
	return ""
}

// IsExecutionStatus reports whether the API knows an agent server's status: an unknown one is null.
func IsExecutionStatus(s string) bool {
	switch s {
	case "idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "stuck", "deleting":
		return true
	}
	return false
}
