package fsm

// EventFacts is what events say of their conversation. The control plane reads it before it seals them.
type EventFacts struct {
	// Status is its execution status, "" for not said.
	Status string `json:"status,omitempty"`
	// Title is the start of a user's message, for a conversation that has no title of its own.
	Title string `json:"title,omitempty"`
	// Usage is what its agent server counted so far, zero for not said. Budgets don't count it.
	Usage AgentUsage `json:"usage,omitzero"`
}

// AgentUsage is what an agent server counted of its models.
type AgentUsage struct {
	Model string `json:"model,omitempty"`
	// Cost is in billionths of a US dollar (Dollar).
	Cost          int64 `json:"cost,omitempty"`
	Prompt        int64 `json:"prompt,omitempty"`
	Completion    int64 `json:"completion,omitempty"`
	CacheRead     int64 `json:"cache_read,omitempty"`
	CacheWrite    int64 `json:"cache_write,omitempty"`
	Reasoning     int64 `json:"reasoning,omitempty"`
	ContextWindow int64 `json:"context_window,omitempty"`
	PerTurn       int64 `json:"per_turn,omitempty"`
}

// numbers are the numbers of u.
func (u *AgentUsage) numbers() []*int64 {
	return []*int64{
		&u.Cost, &u.Prompt, &u.Completion, &u.CacheRead, &u.CacheWrite, &u.Reasoning, &u.ContextWindow, &u.PerTurn,
	}
}

// Clamped returns u with each number between 0 and the most that is kept.
func (u AgentUsage) Clamped() AgentUsage {
	for _, n := range u.numbers() {
		*n = min(max(*n, 0), maxUsage)
	}
	return u
}

// check adds the rules of facts.
func (f *EventFacts) check(r *rules) {
	r.text("status", f.Status, MaxName)
	r.text("title", f.Title, MaxLine)
	r.text("model", f.Usage.Model, MaxLine)
	r.check(f.Usage == f.Usage.Clamped(), "a number of the agent's usage is out of bounds")
}

// UntitledOf is the title of a conversation before it has one.
func UntitledOf(id string) string { return "Conversation " + id[:min(5, len(id))] }

// Untitled reports whether a user's message gives the conversation its title.
func (c *Conversation) Untitled() bool {
	return c.AutoTitle && valueOr(c.Title, "") == UntitledOf(c.ID)
}

// addTo makes facts those of a conversation. What is not said stays.
func (f *EventFacts) addTo(c *Conversation) {
	if f.Title != "" && c.Untitled() {
		title := f.Title
		c.Title = &title
	}
	if f.Status == "" && f.Usage == (AgentUsage{}) {
		return
	}
	said := EventFacts{}
	if c.Said != nil {
		said = *c.Said
	}
	if f.Status != "" {
		said.Status = f.Status
	}
	if f.Usage != (AgentUsage{}) {
		said.Usage = f.Usage
	}
	c.Said = &said
}
