package httpapi

import (
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// taskSetupBody is what a start task asks its user about (API.md, "Start tasks: setup").
type taskSetupBody struct {
	Repository string           `json:"repository"`
	Hash       string           `json:"hash"`
	Directory  string           `json:"directory"`
	Files      []fsm.SetupFile  `json:"files"`
	Answer     *fsm.SetupAnswer `json:"answer"`
	Skipped    bool             `json:"skipped"`
}

// newTaskSetupBody returns nil for a task that asks nothing. v may be nil: there is no answer yet.
func newTaskSetupBody(v *fsm.View, t *fsm.StartTask) *taskSetupBody {
	s := t.Setup
	if s == nil {
		return nil
	}
	b := &taskSetupBody{
		Repository: s.Repository, Hash: s.Hash, Directory: s.Directory, Files: s.Files, Skipped: s.Skipped,
	}
	if v == nil {
		return b
	}
	if row := v.Setup(t.UserID, s.Repository, s.Hash); row != nil && row.Answer != "" {
		b.Answer = &row.Answer
	}
	return b
}

// skippedText says what a finished start went on without, "" for nothing.
func skippedText(t *fsm.StartTask) string {
	if t.Setup == nil || !t.Setup.Skipped || t.Status != fsm.StartTaskReady {
		return ""
	}
	names := make([]string, 0, len(t.Setup.Files))
	for _, f := range t.Setup.Files {
		names = append(names, f.Path)
	}
	return "The conversation began without the files of " + t.Setup.Repository + " that run by themselves: " +
		decode.Truncate(strings.Join(names, ", "), 300)
}

// handleStartTaskSetup handles POST /api/v1/start-tasks/{task_id}/setup: the user's answer to what the
// task asks.
func (s *Server) handleStartTaskSetup(c *call) (response.Response, error) {
	text := c.Params.ByName("task_id")
	id, f := decode.ToUUID(text)
	if f != nil {
		c.Problems.Add(f.Type, []string{"path", "task_id"}, f.Message, decode.Echo(text, false), f.Context)
	}
	o := c.Object()
	o.Strict("hash", "accept")
	b := &fsm.StartTaskAnswerBody{ID: id, Hash: o.MustText("hash", fsm.MaxName)}
	if o.Require("accept") {
		b.Accept = o.BooleanOr("accept", false)
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	prepare := func() (fsm.Body, request.SecretWrites, error) { return b, request.SecretWrites{}, nil }
	out, err := c.Once(prepare, func(res fsm.Result) (response.Response, error) {
		if res.StartTask == nil {
			return response.Response{}, request.ErrEmptyResult(fsm.StartTaskAnswer)
		}
		return response.OK(wire.Success{Success: true})
	})
	return out, response.NotFoundAs(err, "Start task not found")
}
