package fsm

import (
	"strings"
	"time"
)

// maxFormerEndpoints is how many endpoints are kept that a user's settings named before.
const maxFormerEndpoints = 8

// ModelEndpoint says where the model requests of a conversation go: what its owner's settings named
// when it began, or when the owner moved it (VersionEndpoints).
type ModelEndpoint struct {
	// Model is the conversation's, with its vendor's prefix. It tells the endpoint where BaseURL is "".
	Model   string `json:"model,omitempty"`
	BaseURL string `json:"base_url,omitempty"`
	// Key is the path of the key in the secret store, "" for an endpoint without one. The settings know
	// the version (KeyOf), so that a rotated key counts for the conversations that run.
	Key string `json:"key,omitempty"`
	// Profile is the id of the LLM profile that named it, "" for the settings (VersionProfiles).
	Profile string `json:"profile,omitempty"`
}

// FormerEndpoint is an endpoint that settings named before, with the last key that they had for it.
type FormerEndpoint struct {
	Model   string    `json:"model,omitempty"`
	BaseURL string    `json:"base_url,omitempty"`
	Key     SecretRef `json:"key"`
}

// EndpointOf returns where the requests of a conversation go. bound is its endpoint, nil for one that
// was begun below VersionEndpoints or before anything was set. Such a one goes where the settings led
// before they were changed for the first time, else where they lead now. model is the conversation's
// own, nil for that of the settings. s may be nil.
func (s *Settings) EndpointOf(bound *ModelEndpoint, model *string) ModelEndpoint {
	switch {
	case bound != nil:
		return *bound
	case s == nil:
		return ModelEndpoint{Model: valueOr(model, "")}
	}
	e := s.present()
	if s.Origin != nil {
		e = *s.Origin
	}
	if m := valueOr(model, ""); m != "" {
		e.Model = m
	}
	return e
}

// KeyOf returns the key for an endpoint: the present one while the settings lead there, so that a key
// can be rotated, else the last one that they had for it. It returns false where the endpoint's key is
// no longer stored. leads returns the URL that a model and a base URL lead to. s may be nil.
func (s *Settings) KeyOf(e ModelEndpoint, leads func(model, baseURL string) string) (ref SecretRef, stored bool) {
	if s == nil {
		return SecretRef{}, e.Key == ""
	}
	to, now := leads(e.Model, e.BaseURL), s.present()
	switch {
	case leads(now.Model, now.BaseURL) == to:
		ref = s.LLMAPIKey
	default:
		for i := len(s.Former) - 1; i >= 0; i-- {
			if f := &s.Former[i]; leads(f.Model, f.BaseURL) == to {
				ref = f.Key
				break
			}
		}
	}
	return ref, e.Key == "" || !ref.IsZero()
}

// present returns where the settings lead.
func (s *Settings) present() ModelEndpoint {
	return ModelEndpoint{
		Model:   valueOr(s.Values.LLMModel, ""),
		BaseURL: valueOr(s.Values.LLMBaseURL, ""),
		Key:     s.LLMAPIKey.Path,
	}
}

// leave keeps what old led to, if s leads elsewhere: conversations that began there go on there. Back
// at a former endpoint without a new key (keyed) s has the key of that one: no other server's key goes
// there.
func (s *Settings) leave(old *Settings, keyed bool) {
	if old == nil {
		return
	}
	was, is := old.present(), s.present()
	if sameEndpoint(was.Model, was.BaseURL, is) || was == (ModelEndpoint{}) {
		return
	}
	if s.Origin == nil {
		s.Origin = new(was) // not &was, which every put would pay for
	}
	var kept []FormerEndpoint
	for _, f := range old.Former {
		switch {
		case sameEndpoint(f.Model, f.BaseURL, was):
		case !sameEndpoint(f.Model, f.BaseURL, is):
			kept = append(kept, f)
		case !keyed:
			s.LLMAPIKey = f.Key
		}
	}
	if !old.LLMAPIKey.IsZero() {
		kept = append(kept, FormerEndpoint{Model: was.Model, BaseURL: was.BaseURL, Key: old.LLMAPIKey})
	}
	s.Former = kept[max(0, len(kept)-maxFormerEndpoints):]
}

// sameEndpoint reports whether a model and a base URL surely lead to an endpoint. The state knows no
// vendors: without a base URL it compares what tells them.
func sameEndpoint(model, baseURL string, e ModelEndpoint) bool {
	return baseURL == e.BaseURL && (baseURL != "" || family(model) == family(e.Model))
}

// family returns what tells a model's vendor: its prefix, else the letters that its name begins with.
func family(model string) string {
	if prefix, _, prefixed := strings.Cut(model, "/"); prefixed {
		return prefix + "/"
	}
	if i := strings.IndexFunc(model, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }); i >= 0 {
		return model[:i]
	}
	return model
}

// endpointForStart returns the endpoint of the conversation of a start, nil below VersionEndpoints or while
// the user has set nothing. A child goes where its parent goes, unless it names a model itself: then,
// and without a parent, where the settings lead.
func (t *transaction) endpointForStart(user string, model *string, parent *Conversation) *ModelEndpoint {
	s := t.settingsOf(user)
	if !t.meta.active(VersionEndpoints) || s == nil {
		return nil
	}
	e := s.present()
	if parent != nil {
		e = s.EndpointOf(parent.LLM, parent.LLMModel)
	}
	if m := valueOr(model, ""); m != "" {
		e.Model = m
	}
	if e == (ModelEndpoint{}) {
		return nil
	}
	return &e
}

// endpointOfProfile returns where a user's LLM profile leads, with model if that is not "".
func (t *transaction) endpointOfProfile(user, id, model string) (*ModelEndpoint, *Error) {
	p := profileByID(t.txn, user, ProfileLLM, id)
	if p == nil {
		return nil, Errorf(CodeNotFound, "LLM profile not found")
	}
	e := p.endpoint()
	if model != "" {
		e.Model = model
	}
	return &e, nil
}

// ConversationSwitchLLMBody moves a conversation of Command.UserID to the endpoint that its owner's
// settings name now, with Model if that is not "" (POST
// /api/v1/app-conversations/{id}/switch_llm), or to that of an LLM profile (…/switch_profile). An
// unknown conversation or profile is CodeNotFound. It sets Result.Conversation.
type ConversationSwitchLLMBody struct {
	ID    string `json:"id"`
	Model string `json:"model,omitempty"`
	// Profile is the id of an LLM profile, "" for the settings (VersionProfiles).
	Profile string `json:"profile,omitempty"`
}

// CommandType implements Body.
func (*ConversationSwitchLLMBody) CommandType() CommandType { return ConversationSwitchLLM }

// check implements Body.
func (b *ConversationSwitchLLMBody) check(r *rules) {
	r.lookedUp("conversation id", b.ID)
	r.text("model", b.Model, MaxLine)
	r.lookedUp("profile", b.Profile)
}

// EndpointForSwitch returns where ConversationSwitchLLM would move a user's conversation, or its error.
// Callers use it before they tell the agent.
func (v *View) EndpointForSwitch(userID, model, profile string, now time.Time) (*ModelEndpoint, *Error) {
	return v.transaction(now).endpointForSwitch(userID, model, profile)
}

func (t *transaction) endpointForSwitch(userID, model, profile string) (*ModelEndpoint, *Error) {
	if !t.meta.active(VersionEndpoints) {
		return nil, NeedsVersion("moving a conversation to another endpoint of models", VersionEndpoints,
			t.meta.ProtocolVersion)
	}
	if profile != "" && t.meta.active(VersionProfiles) {
		return t.endpointOfProfile(userID, profile, model)
	}
	e := t.endpointForStart(userID, &model, nil)
	if e == nil {
		return nil, Errorf(CodeConflict, "the settings name no model: store llm_model, llm_base_url or llm_api_key first")
	}
	return e, nil
}

func (t *transaction) applyConversationSwitchLLM(b *ConversationSwitchLLMBody) (Result, *Error) {
	old := first[Conversation](t.txn, tableConversations, indexID, keyOf(t.cmd.UserID, b.ID))
	if old == nil {
		return Result{}, errConversationNotFound()
	}
	c := *old
	var err *Error
	if c.LLM, err = t.endpointForSwitch(c.UserID, b.Model, b.Profile); err != nil {
		return Result{}, err
	}
	if c.LLM.Model != "" {
		model := c.LLM.Model
		c.LLMModel = &model
	}
	if err := t.mayGrow(c.UserID, growthOf(&t.meta, old, &c)); err != nil {
		return Result{}, err
	}
	c.UpdatedAt = t.now
	put(t, tableConversations, old, &c)
	return Result{Conversation: &c}, nil
}

// textBytes returns the bytes of an endpoint's texts, 0 for none.
func (e *ModelEndpoint) textBytes() int {
	if e == nil {
		return 0
	}
	return elementOverhead + len(e.Model) + len(e.BaseURL) + len(e.Key) + len(e.Profile)
}

// endpointBytes returns what the endpoints that the settings named before take, without their keys.
func (s *Settings) endpointBytes() int {
	n := s.Origin.textBytes()
	for i := range s.Former {
		n += elementOverhead + len(s.Former[i].Model) + len(s.Former[i].BaseURL)
	}
	return n
}
