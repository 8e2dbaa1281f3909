package conversationapi

import (
	"errors"
	"net/http"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

// HandleSwitchLLM handles POST /api/conversations/{id}/switch_llm. The next step calls the new model.
func (a *API) HandleSwitchLLM(w http.ResponseWriter, r *http.Request) {
	c, o, ok := a.opened(w, r)
	if !ok {
		return
	}
	l, ok := o.Masked().Object("llm")
	if !ok && o.Value("llm") == nil {
		wire.Missing(o, "llm")
	}
	shown := readLLM(l)
	if wire.Refused(w, o) {
		return
	}
	sw, ok := engineAs[engine.Switcher](a, w, r, c, "This conversation's agent can't change its model")
	if !ok {
		return
	}
	given, _ := o.Value("llm").(map[string]any)
	err := a.conversations.SwitchLLM(r.Context(), c, sw, given, shown)
	switch {
	case errors.Is(err, conversation.ErrBehindGateway):
		wire.WriteDetail(w, http.StatusBadRequest,
			"This conversation's models are behind the gateway, which has their keys: name a model alone. "+
				"Its owner moves it to another endpoint with POST /api/v1/app-conversations/{id}/switch_llm")
	case err != nil:
		a.answerFailure(w, r, err)
	default:
		a.done(w, r, nil)
	}
}

// HandleSwitchACPModel handles POST /api/conversations/{id}/switch_acp_model. The next step asks the
// agent for the model.
func (a *API) HandleSwitchACPModel(w http.ResponseWriter, r *http.Request) {
	c, o, ok := a.opened(w, r)
	if !ok {
		return
	}
	model := o.Text("model", wire.MaxName)
	if model == nil || *model == "" {
		wire.Missing(o, "model")
	}
	if wire.Refused(w, o) {
		return
	}
	sw, ok := engineAs[engine.ModelSwitcher](a, w, r, c, "This conversation's agent is no ACP agent: use switch_llm")
	if !ok {
		return
	}
	err := a.conversations.SwitchACPModel(r.Context(), c, sw, *model)
	if err != nil {
		a.answerFailure(w, r, err)
		return
	}
	a.done(w, r, nil)
}

// Unsupported handles an operation that this server can't do on a conversation: the member of the body
// is checked, and the answer says why.
func (a *API) Unsupported(member string, status int, why string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, o, ok := a.opened(w, r)
		if !ok {
			return
		}
		if o.Text(member, wire.MaxText) == nil {
			wire.Missing(o, member)
		}
		if !wire.Refused(w, o) {
			wire.WriteDetail(w, status, why)
		}
	}
}
