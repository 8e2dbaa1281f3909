package native

import (
	"cmp"
	"encoding/json"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// The ids of the uses of models in the stats. The settings may name the agent's otherwise.
const (
	usageAgent     = "agent"
	usageCondenser = "condenser"
)

// counted is the update that adds an answer's tokens and cost to the stats. A page removes the parts
// of an answer when the answer comes right after them, so it is stored after that.
func (e *Engine) counted(c *client, id string, a *answer) event.Event {
	if id == usageAgent && c.llm.UsageID != "" {
		id = c.llm.UsageID
	}
	var stats event.Stats
	if raw := e.conv.State(engine.KeyStats); len(raw) > 0 {
		if err := json.Unmarshal(raw, &stats); err != nil {
			e.log.Warn("the conversation's stats can't be read and begin anew", "error", err)
			stats = event.Stats{}
		}
	}
	if stats.UsageToMetrics == nil {
		stats.UsageToMetrics = map[string]event.Metrics{}
	}
	m := stats.UsageToMetrics[id]
	m.ModelName = c.llm.Model
	m.AccumulatedCost += c.cost(a)
	prompt, completion := int64(a.usage.PromptTokens), int64(a.usage.CompletionTokens)
	t := &m.AccumulatedTokenUsage
	t.Model, t.ResponseID = c.llm.Model, cmp.Or(a.id, t.ResponseID)
	t.PromptTokens += prompt
	t.CompletionTokens += completion
	t.CacheWriteTokens += int64(a.cached)
	if d := a.usage.PromptTokensDetails; d != nil {
		t.CacheReadTokens += int64(d.CachedTokens)
	}
	if d := a.usage.CompletionTokensDetails; d != nil {
		t.ReasoningTokens += int64(d.ReasoningTokens)
	}
	t.ContextWindow = int64(c.profile.get().Window)
	t.PerTurnToken = prompt + completion
	stats.UsageToMetrics[id] = m
	return engine.Update(engine.KeyStats, stats)
}

// spent stores what an answer cost that did not come.
func (e *Engine) spent(c *client, id string, a *answer) error {
	if a == nil || a.usage.PromptTokens == 0 && a.usage.CompletionTokens == 0 && a.cost == nil {
		return nil
	}
	return e.conv.Append(e.counted(c, id, a))
}

// cost is what an answer cost in US dollars: by the settings' prices, else by the vendor's list where
// the vendor is asked without a gateway, else as the server says.
func (c *client) cost(a *answer) float64 {
	var sum float64
	if p := c.llm.InputCostPerToken; p != nil {
		sum += *p * float64(a.usage.PromptTokens)
	}
	if p := c.llm.OutputCostPerToken; p != nil {
		sum += *p * float64(a.usage.CompletionTokens)
	}
	if c.llm.InputCostPerToken != nil || c.llm.OutputCostPerToken != nil {
		return sum
	}
	if r := c.rates(); r != nil {
		used := preset.Tokens{
			Input: int64(a.usage.PromptTokens), Written: int64(a.cached), Output: int64(a.usage.CompletionTokens),
		}
		if d := a.usage.PromptTokensDetails; d != nil {
			used.Cached = int64(min(d.CachedTokens, a.usage.PromptTokens))
		}
		return r.Cost(used) / 1e6
	}
	if a.cost != nil {
		sum = *a.cost
	}
	return sum
}
