package httpapi

import (
	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/legacy"
)

// handleV0Start handles POST /api/conversations.
func (s *Server) handleV0Start(c *call) (answer, error) {
	o := c.object()
	request, wished := legacy.ReadStart(o, c.who.bearer)
	in := startInput{request: request, secrets: startSecrets{MCPConfig: readMCPConfig(o)}, join: wished != nil}
	if err := c.check(); err != nil {
		return answer{}, err
	}
	if wished != nil {
		if err := legacy.CheckID(*wished); err != nil {
			return answer{}, err
		}
		in.conversation, in.v0ID = legacy.MapID(c.who.user, *wished)
	}
	return c.once(func() (fsm.Body, secretWrites, error) {
		v, err := c.viewWith(cluster.Linearizable)
		if err != nil {
			return nil, secretWrites{}, err
		}
		if err := legacy.CheckSettings(v.Settings(c.who.user)); err != nil {
			return nil, secretWrites{}, err
		}
		if err := s.sharedNow().git.Repository(c.ctx(), v.Providers(c.who.user), &in.request); err != nil {
			return nil, secretWrites{}, err
		}
		if !in.joins(v, c.who.user) {
			err := c.admitted(v, func(v *fsm.View) *fsm.Error { return v.StartAdmission(c.who.user, &in.request, c.now) })
			if err != nil {
				return nil, secretWrites{}, err
			}
		}
		stored := in
		// Before VersionCharacters Apply bounds the id in bytes. It need not be stored: the
		// conversation's id is derived from it.
		if len(in.v0ID) > fsm.MaxCommandID && !v.Active(fsm.VersionCharacters) {
			stored.v0ID = ""
		}
		return stored.command(c.who.user)
	}, func(res fsm.Result) (answer, error) {
		return newV0Start(in, res)
	})
}

// joins reports whether the start joins a conversation that exists or is being started, and so
// needs no sandbox of its own.
func (in startInput) joins(v *fsm.View, user string) bool {
	if !in.join || in.conversation == "" {
		return false
	}
	task := v.StartTaskByConversation(user, in.conversation)
	return v.Conversation(user, in.conversation) != nil || task != nil && !task.Done()
}

// newV0Start returns the id of the started or joined conversation. A joined conversation without a
// start task has the requested id.
func newV0Start(in startInput, res fsm.Result) (answer, error) {
	id := in.v0ID
	if id == "" {
		id = in.conversation
	}
	if id == "" {
		if res.StartTask == nil {
			return answer{}, errEmptyResult(fsm.StartTaskCreate)
		}
		id = res.StartTask.ConversationID
	}
	return ok(legacy.NewStartBody(id))
}
