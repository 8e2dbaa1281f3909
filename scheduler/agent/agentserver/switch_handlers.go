package agentserver

import (
	"net/http"

	"bivouac.dev/bivouac/scheduler/agent/engine"
)

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
	eng, err := s.engineOf(c)
	if err != nil {
		s.answerFailure(w, r, err)
		return
	}
	sw, ok := eng.(engine.ModelSwitcher)
	if !ok {
		writeDetail(w, http.StatusBadRequest, "This conversation's agent is no ACP agent: use switch_llm")
		return
	}
	err = s.amend(c, func(request map[string]any) {
		for _, form := range []string{"agent_settings", "agent"} {
			if a, ok := request[form].(map[string]any); ok {
				a["acp_model"] = *model
			}
		}
	})
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
	writeJSON(w, http.StatusOK, map[string]string{"status": "error", "message": "This server fetches no public skills: put skills into the repository"})
}
