package conversationapi

import (
	"errors"
	"net/http"
	"strings"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
)

// defaultRounds is how often a goal is judged at most.
const defaultRounds = 10

// HandleGoal handles POST /api/conversations/{id}/goal: the agent runs until a judge finds the objective
// reached.
func (a *API) HandleGoal(w http.ResponseWriter, r *http.Request) {
	c, o, ok := a.opened(w, r)
	if !ok {
		return
	}
	objective := o.Text("objective", wire.MaxText)
	if o.Value("objective") == nil {
		wire.Missing(o, "objective")
	}
	rounds := wire.Positive(o, "max_iterations", defaultRounds)
	if wire.Refused(w, o) {
		return
	}
	if strings.TrimSpace(*objective) == "" {
		wire.WriteDetail(w, http.StatusBadRequest, "Goal objective must not be empty.")
		return
	}
	a.goalDone(w, r, a.conversations.StartGoal(c, *objective, int(rounds)))
}

// HandleGoalStop handles POST /api/conversations/{id}/goal/stop. The run in progress goes on.
func (a *API) HandleGoalStop(w http.ResponseWriter, r *http.Request) {
	if c := a.find(w, r); c != nil {
		c.StopGoal()
		a.done(w, r, nil)
	}
}

// HandleGoalResume handles POST /api/conversations/{id}/goal/resume: the last goal, if it was
// interrupted.
func (a *API) HandleGoalResume(w http.ResponseWriter, r *http.Request) {
	if c := a.find(w, r); c != nil {
		a.goalDone(w, r, a.conversations.ResumeGoal(c))
	}
}

func (a *API) goalDone(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, conversation.ErrRunning):
		wire.WriteDetail(w, http.StatusConflict, "Conversation run or goal loop already running.")
	case errors.Is(err, conversation.ErrNoJudge):
		wire.WriteDetail(w, http.StatusBadRequest,
			"This conversation's agent judges no goals: send the objective as a message")
	case errors.Is(err, conversation.ErrNoGoal):
		wire.WriteDetail(w, http.StatusBadRequest, "There is no goal to resume: none was started, or it has ended")
	case err != nil:
		a.answerFailure(w, r, err)
	default:
		a.done(w, r, nil)
	}
}
