package agentserver

import (
	"context"
	"maps"
	"net/http"
	"strings"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// handleSwitchLLM handles POST /api/conversations/{id}/switch_llm. The next step calls the new model.
func (s *Server) handleSwitchLLM(w http.ResponseWriter, r *http.Request) {
	c, o, ok := s.opened(w, r)
	if !ok {
		return
	}
	l, ok := o.Masked().Object("llm")
	if !ok && o.Value("llm") == nil {
		missing(o, "llm")
	}
	shown := readLLM(l)
	if refused(w, o) {
		return
	}
	sw, ok := engineAs[engine.Switcher](s, w, r, c, "This conversation's agent can't change its model")
	if !ok {
		return
	}
	stored, err := s.requested(c)
	if err != nil {
		s.answerFailure(w, r, err)
		return
	}
	given, _ := o.Value("llm").(map[string]any)
	now := stored.agent().LLM
	if s.relay.relays(now) && s.relay.leaves(now, given) {
		writeDetail(w, http.StatusBadRequest,
			"This conversation's models are behind the gateway, which has their keys: name a model alone. "+
				"Its owner moves it to another endpoint with POST /api/v1/app-conversations/{id}/switch_llm")
		return
	}
	llm, kept := withAccess(now, given)
	if kept {
		c.mu.Lock()
		shown.BaseURL, shown.APIKey = c.meta.Agent.LLM.BaseURL, c.meta.Agent.LLM.APIKey
		c.mu.Unlock()
	}
	if err = s.switchLLM(r.Context(), c, sw, llm, shown); err != nil {
		s.answerFailure(w, r, err)
		return
	}
	s.done(w, r, c.Append(engine.Update("agent", shown)), http.StatusNotFound, "Not Found")
}

// switchLLM stores how the conversation reaches its model, and gives it to the engine.
func (s *Server) switchLLM(
	ctx context.Context,
	c *conversation,
	sw engine.Switcher,
	llm map[string]any,
	shown llmInfo,
) error {
	if err := s.amendAgent(c, "llm", llm); err != nil {
		return err
	}
	if err := c.change(func(m *meta) { m.Agent.LLM = shown }); err != nil {
		return err
	}
	setup, err := s.setup(c)
	if err != nil {
		return err
	}
	return sw.SwitchLLM(ctx, setup.Agent.LLM)
}

// amendAgent changes a member of the agent in the create request, in either form of it.
func (s *Server) amendAgent(c *conversation, member string, value any) error {
	return s.amend(c, func(request map[string]any) {
		for _, form := range []string{"agent_settings", "agent"} {
			if a, ok := request[form].(map[string]any); ok {
				a[member] = value
			}
		}
	})
}

// leaves reports whether a switch names a server that is not the gateway, or a key that is no token of
// the gateway's. A client may send back what it was shown.
func (r *relay) leaves(now engine.LLM, given map[string]any) bool {
	key, base := access(given)
	elsewhere := base != "" && base != strings.TrimRight(now.BaseURL, "/") && !r.relays(engine.LLM{BaseURL: base})
	return elsewhere || key != "" && !r.relays(engine.LLM{APIKey: key})
}

// withAccess returns what is stored of a switch. One without a key and another base URL stays with the
// server that now names, and keeps its key: kept is true.
func withAccess(now engine.LLM, given map[string]any) (llm map[string]any, kept bool) {
	key, base := access(given)
	model, _ := given["model"].(string)
	old := strings.TrimRight(now.BaseURL, "/")
	if key != "" || base != "" && base != old || preset.BaseURL(model, old) != preset.BaseURL(now.Model, old) {
		return given, false
	}
	llm = maps.Clone(given)
	llm["base_url"], llm["api_key"] = now.BaseURL, now.APIKey
	return llm, true
}

// access returns the key and the base URL that a switch names, "" for none and for what is masked.
func access(given map[string]any) (key, base string) {
	key, _ = given["api_key"].(string)
	if key == decode.Masked {
		key = ""
	}
	base, _ = given["base_url"].(string)
	return key, strings.TrimRight(base, "/")
}

// handleSwitchACPModel handles POST /api/conversations/{id}/switch_acp_model. The next step asks the
// agent for the model.
func (s *Server) handleSwitchACPModel(w http.ResponseWriter, r *http.Request) {
	c, o, ok := s.opened(w, r)
	if !ok {
		return
	}
	model := o.Text("model", maxName)
	if model == nil || *model == "" {
		missing(o, "model")
	}
	if refused(w, o) {
		return
	}
	sw, ok := engineAs[engine.ModelSwitcher](s, w, r, c, "This conversation's agent is no ACP agent: use switch_llm")
	if !ok {
		return
	}
	err := s.amendAgent(c, "acp_model", *model)
	if err == nil {
		err = c.change(func(m *meta) { m.Agent.ACPModel = *model })
	}
	if err == nil {
		err = sw.SwitchModel(r.Context(), *model)
	}
	if err != nil {
		s.answerFailure(w, r, err)
		return
	}
	s.done(w, r, nil, http.StatusNotFound, "Not Found")
}

// refusing handles an operation that this server can't do on a conversation: the member of the body
// is checked, and the answer says why.
func (s *Server) refusing(member string, status int, why string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, o, ok := s.opened(w, r)
		if !ok {
			return
		}
		if o.Text(member, maxText) == nil {
			missing(o, member)
		}
		if !refused(w, o) {
			writeDetail(w, status, why)
		}
	}
}

// handleGoalStop handles POST /api/conversations/{id}/goal/stop: no goal runs.
func (s *Server) handleGoalStop(w http.ResponseWriter, r *http.Request) {
	if s.find(w, r) != nil {
		writeJSON(w, http.StatusOK, success{Success: true})
	}
}

// handleGoalResume handles POST /api/conversations/{id}/goal/resume, which is refused.
func (s *Server) handleGoalResume(w http.ResponseWriter, r *http.Request) {
	if s.find(w, r) != nil {
		writeDetail(w, http.StatusBadRequest, "There is no goal to resume: this server runs none")
	}
}

// handleSkillsSync handles POST /api/skills/sync: there are no public skills to fetch.
func (s *Server) handleSkillsSync(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK,
		map[string]string{
			"status":  "error",
			"message": "This server fetches no public skills: put skills into the repository",
		})
}
