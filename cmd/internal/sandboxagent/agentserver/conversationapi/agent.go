package conversationapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/relay"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

const (
	maxQuestion = 64 << 10
	// askTime is how long a model may take for a side question.
	askTime = 5 * time.Minute
)

// opened returns the conversation in the path and the object in the body, or has responded.
func (a *API) opened(w http.ResponseWriter, r *http.Request) (*conversation.Conversation, decode.Object, bool) {
	c := a.find(w, r)
	if c == nil {
		return nil, decode.Object{}, false
	}
	o, ok := wire.ReadObject(w, r)
	return c, o, ok
}

// HandlePolicy handles POST /api/conversations/{id}/confirmation_policy.
func (a *API) HandlePolicy(w http.ResponseWriter, r *http.Request) {
	c, o, ok := a.opened(w, r)
	if !ok {
		return
	}
	if o.Value("policy") == nil {
		wire.Missing(o, "policy")
	}
	policy := readPolicy(o, "policy")
	if wire.Refused(w, o) {
		return
	}
	a.done(w, r, c.Append(engine.Update(engine.KeyConfirmationPolicy, policy)))
}

// HandleAnalyzer handles POST /api/conversations/{id}/security_analyzer. Null removes it.
func (a *API) HandleAnalyzer(w http.ResponseWriter, r *http.Request) {
	c, o, ok := a.opened(w, r)
	if !ok {
		return
	}
	var analyzer *agent.Kind
	if o.Value("security_analyzer") != nil {
		analyzer = &agent.Kind{Kind: readKind(o, "security_analyzer", "", nil)}
	}
	if wire.Refused(w, o) {
		return
	}
	a.done(w, r, c.Append(engine.Update(engine.KeySecurityAnalyzer, analyzer)))
}

// HandleSecrets handles POST /api/conversations/{id}/secrets: secrets that are added or replaced.
func (a *API) HandleSecrets(w http.ResponseWriter, r *http.Request) {
	c, o, ok := a.opened(w, r)
	if !ok {
		return
	}
	if o.Value("secrets") == nil {
		wire.Missing(o, "secrets")
	}
	names := readSecretNames(o)
	if wire.Refused(w, o) {
		return
	}
	added, _ := o.Value("secrets").(map[string]any)
	err := a.conversations.AddSecrets(c, added, names)
	a.done(w, r, err)
}

// engineAs returns a conversation's engine as one that can do what T names. ok is false when there is
// none: it then has answered, with lacks for an engine that can't.
func engineAs[T any](
	a *API,
	w http.ResponseWriter,
	r *http.Request,
	c *conversation.Conversation,
	lacks string,
) (can T, ok bool) {
	eng, err := a.conversations.EngineOf(c)
	if err != nil {
		a.answerFailure(w, r, err)
		return can, false
	}
	if can, ok = eng.(T); !ok {
		wire.WriteDetail(w, http.StatusBadRequest, lacks)
	}
	return can, ok
}

// HandleAsk handles POST /api/conversations/{id}/ask_agent: a side question, of which nothing is
// stored.
func (a *API) HandleAsk(w http.ResponseWriter, r *http.Request) {
	c, o, ok := a.opened(w, r)
	if !ok {
		return
	}
	question := o.Text("question", maxQuestion)
	if question == nil {
		wire.Missing(o, "question")
	}
	if wire.Refused(w, o) {
		return
	}
	asker, ok := engineAs[engine.Asker](a, w, r, c, "This conversation's agent answers no side questions")
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	text, err := asker.Ask(ctx, *question)
	if err != nil {
		a.answerFailure(w, r, err)
		return
	}
	wire.WriteJSON(w, http.StatusOK, map[string]string{"response": text})
}

// HandleTitle handles POST /api/conversations/{id}/generate_title. It returns the title and does not
// set it.
func (a *API) HandleTitle(w http.ResponseWriter, r *http.Request) {
	c, o, ok := a.opened(w, r)
	if !ok {
		return
	}
	longest := wire.Positive(o, "max_length", conversation.AutoTitle)
	if wire.Refused(w, o) {
		return
	}
	title, err := a.conversations.SuggestTitle(r.Context(), c)
	switch {
	case err != nil:
		a.done(w, r, err)
		return
	case title == "":
		wire.WriteDetail(w, http.StatusBadRequest, "The conversation has no message to make a title of")
		return
	}
	if runes := []rune(title); int64(len(runes)) > min(longest, maxTitle) {
		title = string(runes[:min(longest, maxTitle)])
	}
	wire.WriteJSON(w, http.StatusOK, map[string]string{"title": title})
}

// HandleCondense handles POST /api/conversations/{id}/condense. It responds when the history is
// condensed.
func (a *API) HandleCondense(w http.ResponseWriter, r *http.Request) {
	c := a.find(w, r)
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	switch err := a.conversations.Condense(ctx, c); {
	case errors.Is(err, engine.ErrNoCondenser):
		wire.WriteDetail(w, http.StatusBadRequest, "This conversation's agent has no condenser")
	case err != nil:
		a.answerFailure(w, r, err)
	default:
		a.done(w, r, nil)
	}
}

// HandleFinalResponse handles GET /api/conversations/{id}/agent_final_response.
func (a *API) HandleFinalResponse(w http.ResponseWriter, r *http.Request) {
	c := a.find(w, r)
	if c == nil {
		return
	}
	events, err := c.Events()
	if err != nil {
		a.done(w, r, err)
		return
	}
	wire.WriteJSON(w, http.StatusOK, map[string]string{"response": event.FinalResponse(events)})
}

// answerFailure responds with what an engine could not do. Its detail has no secret in it.
func (a *API) answerFailure(w http.ResponseWriter, r *http.Request, err error) {
	var f *engine.Failure
	switch {
	case errors.As(err, &f):
		wire.WriteDetail(w, http.StatusBadGateway, f.Code+": "+f.Detail)
	case errors.Is(err, conversation.ErrStopping), errors.Is(err, relay.ErrClosed):
		wire.WriteDetail(w, http.StatusServiceUnavailable, "The server stops")
	default:
		a.done(w, r, err)
	}
}
