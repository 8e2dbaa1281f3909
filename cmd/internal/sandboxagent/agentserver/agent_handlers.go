package agentserver

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

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
func (s *Server) opened(w http.ResponseWriter, r *http.Request) (*conversation, decode.Object, bool) {
	c := s.find(w, r)
	if c == nil {
		return nil, decode.Object{}, false
	}
	o, ok := readObject(w, r)
	return c, o, ok
}

// handlePolicy handles POST /api/conversations/{id}/confirmation_policy.
func (s *Server) handlePolicy(w http.ResponseWriter, r *http.Request) {
	c, o, ok := s.opened(w, r)
	if !ok {
		return
	}
	if o.Value("policy") == nil {
		missing(o, "policy")
	}
	policy := readPolicy(o, "policy")
	if refused(w, o) {
		return
	}
	s.done(w, r, c.Append(engine.Update(engine.KeyConfirmationPolicy, policy)), http.StatusNotFound, "Not Found")
}

// handleAnalyzer handles POST /api/conversations/{id}/security_analyzer. Null removes it.
func (s *Server) handleAnalyzer(w http.ResponseWriter, r *http.Request) {
	c, o, ok := s.opened(w, r)
	if !ok {
		return
	}
	var analyzer *agent.Kind
	if o.Value("security_analyzer") != nil {
		analyzer = &agent.Kind{Kind: readKind(o, "security_analyzer", "", nil)}
	}
	if refused(w, o) {
		return
	}
	s.done(w, r, c.Append(engine.Update(engine.KeySecurityAnalyzer, analyzer)), http.StatusNotFound, "Not Found")
}

// handleSecrets handles POST /api/conversations/{id}/secrets: secrets that are added or replaced.
func (s *Server) handleSecrets(w http.ResponseWriter, r *http.Request) {
	c, o, ok := s.opened(w, r)
	if !ok {
		return
	}
	if o.Value("secrets") == nil {
		missing(o, "secrets")
	}
	names := readSecretNames(o)
	if refused(w, o) {
		return
	}
	added, _ := o.Value("secrets").(map[string]any)
	err := s.amend(c, func(request map[string]any) {
		all, ok := request["secrets"].(map[string]any)
		if !ok {
			all = map[string]any{}
		}
		maps.Copy(all, added)
		request["secrets"] = all
	})
	if err == nil {
		err = c.change(func(m *meta) {
			m.SecretNames = slices.Compact(slices.Sorted(slices.Values(slices.Concat(m.SecretNames, names))))
		})
	}
	if err == nil {
		err = s.hand(c)
	}
	s.done(w, r, err, http.StatusNotFound, "Not Found")
}

// hand gives the engine the conversation's present secrets.
func (s *Server) hand(c *conversation) error {
	c.mu.Lock()
	eng := c.engine
	c.mu.Unlock()
	if eng == nil {
		return nil // the next engine reads them
	}
	setup, err := s.setup(c)
	if err != nil {
		return err
	}
	if u, ok := eng.(engine.SecretsUpdater); ok {
		u.UpdateSecrets(setup.Secrets)
	}
	return nil
}

// amend changes the create request that the conversation's engines are made of.
func (s *Server) amend(c *conversation, fn func(map[string]any)) error {
	c.control.Lock()
	defer c.control.Unlock()
	c.mu.Lock()
	request := c.request
	c.mu.Unlock()
	if request == nil {
		var err error
		if request, err = s.store.request(c.id); err != nil {
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

// engineAs returns a conversation's engine as one that can do what T names. ok is false when there is
// none: it then has answered, with lacks for an engine that can't.
func engineAs[T any](
	s *Server,
	w http.ResponseWriter,
	r *http.Request,
	c *conversation,
	lacks string,
) (can T, ok bool) {
	eng, err := s.engineOf(c)
	if err != nil {
		s.answerFailure(w, r, err)
		return can, false
	}
	if can, ok = eng.(T); !ok {
		writeDetail(w, http.StatusBadRequest, lacks)
	}
	return can, ok
}

// handleAsk handles POST /api/conversations/{id}/ask_agent: a side question, of which nothing is
// stored.
func (s *Server) handleAsk(w http.ResponseWriter, r *http.Request) {
	c, o, ok := s.opened(w, r)
	if !ok {
		return
	}
	question := o.Text("question", maxQuestion)
	if question == nil {
		missing(o, "question")
	}
	if refused(w, o) {
		return
	}
	asker, ok := engineAs[engine.Asker](s, w, r, c, "This conversation's agent answers no side questions")
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	text, err := asker.Ask(ctx, *question)
	if err != nil {
		s.answerFailure(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"response": text})
}

// handleTitle handles POST /api/conversations/{id}/generate_title. It returns the title and does not
// set it.
func (s *Server) handleTitle(w http.ResponseWriter, r *http.Request) {
	c, o, ok := s.opened(w, r)
	if !ok {
		return
	}
	longest := positive(o, "max_length", autoTitle)
	if refused(w, o) {
		return
	}
	c.mu.Lock()
	l, err := c.events()
	text := ""
	if err == nil && l.first >= 0 {
		text = c.firstText()
	}
	c.mu.Unlock()
	short := shortTitle(text)
	switch {
	case err != nil:
		s.done(w, r, err, http.StatusNotFound, "Not Found")
		return
	case short == nil:
		writeDetail(w, http.StatusBadRequest, "The conversation has no message to make a title of")
		return
	}
	title := *short
	if eng, err := s.engineOf(c); err == nil {
		if t, ok := eng.(engine.Titler); ok {
			ctx, cancel := context.WithTimeout(r.Context(), titleTime)
			defer cancel()
			if better, err := t.Title(ctx, text); err == nil && better != "" {
				title = better
			}
		}
	}
	if runes := []rune(title); int64(len(runes)) > min(longest, maxTitle) {
		title = string(runes[:min(longest, maxTitle)])
	}
	writeJSON(w, http.StatusOK, map[string]string{"title": title})
}

// handleCondense handles POST /api/conversations/{id}/condense: the next step condenses the history.
func (s *Server) handleCondense(w http.ResponseWriter, r *http.Request) {
	if c := s.find(w, r); c != nil {
		s.done(w, r, c.Append(&event.CondensationRequest{Head: event.Head{Source: event.SourceUser}}), http.StatusNotFound,
			"Not Found")
	}
}

// handleFinalResponse handles GET /api/conversations/{id}/agent_final_response.
func (s *Server) handleFinalResponse(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	events, err := c.Events()
	if err != nil {
		s.done(w, r, err, http.StatusNotFound, "Not Found")
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"response": event.FinalResponse(events)})
}

// answerFailure responds with what an engine could not do. Its detail has no secret in it.
func (s *Server) answerFailure(w http.ResponseWriter, r *http.Request, err error) {
	var f *engine.Failure
	switch {
	case errors.As(err, &f):
		writeDetail(w, http.StatusBadGateway, f.Code+": "+f.Detail)
	case errors.Is(err, errStopping):
		writeDetail(w, http.StatusServiceUnavailable, "The server stops")
	default:
		s.done(w, r, err, http.StatusNotFound, "Not Found")
	}
}
