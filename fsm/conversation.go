package fsm

import "time"

// Conversation is an app conversation (API.md, "Conversations: members"). It exists from the moment
// its start task becomes READY. The key is (UserID, ID): clients choose ids, and the rejection of an
// id that another user has would reveal that it exists.
type Conversation struct {
	// ID is 32 lower-case hex characters.
	ID     string `json:"id"`
	UserID string `json:"user_id"`
	// V0ID is the id that a V0 client uses, if it differs from ID.
	V0ID               string        `json:"v0_id,omitempty"`
	SandboxID          string        `json:"sandbox_id"`
	SelectedRepository *string       `json:"selected_repository"`
	SelectedBranch     *string       `json:"selected_branch"`
	GitProvider        *ProviderType `json:"git_provider"`
	Title              *string       `json:"title"`
	// AutoTitle means that no user gave the title. It is false below VersionModels.
	AutoTitle bool              `json:"auto_title,omitzero"`
	Trigger   *string           `json:"trigger"`
	PRNumber  []int64           `json:"pr_number"`
	LLMModel  *string           `json:"llm_model"`
	AgentKind string            `json:"agent_kind"`
	ParentID  *string           `json:"parent_conversation_id"`
	Public    *bool             `json:"public"`
	Tags      map[string]string `json:"tags"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`
	// LLM is where its model requests go, nil below VersionEndpoints (Settings.EndpointOf).
	LLM *ModelEndpoint `json:"llm,omitempty"`
	// AgentProfile is the agent profile that its start named, nil for none (VersionProfiles).
	AgentProfile *LaunchedProfile `json:"agent_profile,omitempty"`
	// Models is what the conversation used models for. It is zero below VersionModels.
	Models ModelUsage `json:"models,omitzero"`
	// Events are those that its agent server sent, nil for none.
	Events *EventChain `json:"events,omitempty"`
	// Said is what they say of it, nil for nothing. Its sandbox could forge it.
	Said *EventFacts `json:"said,omitempty"`
}

// check adds the rules of a conversation.
func (c *Conversation) check(r *rules) {
	r.id("conversation id", c.ID)
	for _, f := range []struct {
		name  string
		value *string
		limit int
	}{
		{"selected_repository", c.SelectedRepository, MaxPath}, {"selected_branch", c.SelectedBranch, MaxPath},
		{
			"title",
			c.Title,
			r.limit(MaxLine, MaxParagraph),
		}, {"trigger", c.Trigger, MaxName}, {"llm_model", c.LLMModel, MaxLine},
	} {
		r.optional(f.name, f.value, f.limit)
	}
	if c.ParentID != nil {
		r.id("parent_conversation_id", *c.ParentID)
	}
	if c.GitProvider != nil {
		r.check(c.GitProvider.Known(), "unknown git provider %q", clip(string(*c.GitProvider)))
	}
	r.count("pr_number", len(c.PRNumber))
	r.text("agent_kind", c.AgentKind, MaxName)
	r.texts("tags", c.Tags)
}
