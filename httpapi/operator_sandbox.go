package httpapi

import (
	"net/http"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

func newOwnedSandboxBody(row *fsm.Sandbox) wire.OwnedSandbox {
	b := wire.OwnedSandbox{
		ID: row.ID, UserID: row.UserID, SpecID: row.SpecID, Status: row.State(),
		Isolation: row.Template.Isolated(), CreatedAt: wire.At(row.CreatedAt),
	}
	if row.Status.Generation == row.Generation {
		b.StatusDetail = wire.OrNull(row.Status.Detail)
	}
	if p := row.Status.Placement; p != nil {
		b.NomadClient = wire.OrNull(p.NodeID)
	}
	return b
}

// operate allows an operator's act on what a user has, and logs it with the id of the key. object
// and owner are "" where it is about many.
func (c *call) operate(v *fsm.View, act, object, owner string) error {
	if !v.Active(fsm.VersionAccess) {
		return fsm.NeedsVersion("an operator's act on a sandbox or conversation", fsm.VersionAccess, v.ProtocolVersion())
	}
	c.acted = true
	c.server.log.Info("operator acts for a user", "act", act, "key", c.keyID(v), "operator", c.who.user,
		"object", object, "owner", owner, "request", requestInfoOf(c.r.Context()).ID)
	return nil
}

// operatorView is the view of a listing.
func (c *call) operatorView(act, owner string) (*fsm.View, error) {
	v, err := c.view()
	if err != nil {
		return nil, err
	}
	return v, c.operate(v, act, "", owner)
}

// ownedSandbox finds a sandbox of any user for an operator's act, which it logs.
func (c *call) ownedSandbox(act string) (*fsm.View, *fsm.Sandbox, error) {
	id := c.params.ByName("sandbox_id")
	v, err := c.view()
	if err != nil {
		return nil, nil, err
	}
	row := v.SandboxAny(id)
	if row == nil || row.Member() || row.Desired == fsm.DesiredDeleted {
		return nil, nil, response.NotFound()
	}
	return v, row, c.operate(v, act, row.ID, row.UserID)
}

// handleOperatorSandboxList handles GET /api/v1/operator/sandboxes.
func (s *Server) handleOperatorSandboxList(c *call) (answer, error) {
	user := decode.OrZero(c.query.Text("user", fsm.MaxName))
	p := fsm.Page{After: pageIDOf(c.query), Limit: limitOf(c.query)}
	if err := c.check(); err != nil {
		return answer{}, err
	}
	v, err := c.operatorView("list sandboxes", user)
	if err != nil {
		return answer{}, err
	}
	rows, next := v.OwnedSandboxes(user, p)
	items := make([]wire.OwnedSandbox, len(rows))
	for i, row := range rows {
		items[i] = newOwnedSandboxBody(row)
	}
	return ok(wire.NewPage(items, next))
}

// handleOperatorSandboxGet handles GET /api/v1/operator/sandboxes/{sandbox_id}.
func (s *Server) handleOperatorSandboxGet(c *call) (answer, error) {
	_, row, err := c.ownedSandbox("show sandbox")
	if err != nil {
		return answer{}, err
	}
	return ok(newOwnedSandboxBody(row))
}

// handleOperatorSandboxPause handles POST /api/v1/operator/sandboxes/{sandbox_id}/pause.
func (s *Server) handleOperatorSandboxPause(c *call) (answer, error) {
	return c.operateSandbox("pause sandbox", &fsm.SandboxPauseBody{ID: c.params.ByName("sandbox_id"), Operator: true})
}

// handleOperatorSandboxResume handles POST /api/v1/operator/sandboxes/{sandbox_id}/resume. The
// limits of the owner hold.
func (s *Server) handleOperatorSandboxResume(c *call) (answer, error) {
	return c.operateSandbox("resume sandbox", &fsm.SandboxResumeBody{ID: c.params.ByName("sandbox_id"), Operator: true})
}

// handleOperatorSandboxDelete handles DELETE /api/v1/operator/sandboxes/{sandbox_id}.
func (s *Server) handleOperatorSandboxDelete(c *call) (answer, error) {
	return c.operateSandbox("delete sandbox", &fsm.SandboxDeleteBody{ID: c.params.ByName("sandbox_id"), Operator: true})
}

// operateSandbox sends an operator's command about any user's sandbox.
func (c *call) operateSandbox(act string, body fsm.Body) (answer, error) {
	id := c.params.ByName("sandbox_id")
	v, err := c.view()
	if err != nil {
		return answer{}, err
	}
	owner := ""
	if row := v.SandboxAny(id); row != nil {
		owner = row.UserID
	}
	if err := c.operate(v, act, id, owner); err != nil {
		return answer{}, err
	}
	return c.commandSandbox(body)
}

// handleOperatorSandboxLogs handles GET /api/v1/operator/sandboxes/{sandbox_id}/logs, the owner's
// call for any user's sandbox.
func (s *Server) handleOperatorSandboxLogs(c *call) (answer, error) {
	wanted, err := c.logRequest()
	if err != nil {
		return answer{}, err
	}
	act := "read logs"
	if wanted.part.Follow {
		act = "follow logs"
	}
	v, row, err := c.ownedSandbox(act)
	if err != nil {
		return answer{}, err
	}
	return c.sandboxLog(v, row, wanted)
}

func newOwnedConversationBody(row *fsm.Conversation) wire.OwnedConversation {
	return wire.OwnedConversation{
		ID: row.ID, UserID: row.UserID, SandboxID: row.SandboxID, Title: row.Title,
		CreatedAt: wire.At(row.CreatedAt), UpdatedAt: wire.At(row.UpdatedAt),
	}
}

// handleOperatorConversationList handles GET /api/v1/operator/app-conversations.
func (s *Server) handleOperatorConversationList(c *call) (answer, error) {
	user := decode.OrZero(c.query.Text("user", fsm.MaxName))
	p := fsm.Page{After: pageIDOf(c.query), Limit: limitOf(c.query)}
	if err := c.check(); err != nil {
		return answer{}, err
	}
	v, err := c.operatorView("list conversations", user)
	if err != nil {
		return answer{}, err
	}
	rows, next := v.OwnedConversations(user, p)
	items := make([]wire.OwnedConversation, len(rows))
	for i, row := range rows {
		items[i] = newOwnedConversationBody(row)
	}
	return ok(wire.NewPage(items, next))
}

// conversationOf reads which user's conversation a request means. An id is unique for a user only.
func (c *call) conversationOf(act string) (v *fsm.View, user, id string, err error) {
	c.query.Required("user")
	user = decode.OrZero(c.query.Text("user", fsm.MaxName))
	if err := c.check(); err != nil {
		return nil, "", "", err
	}
	id, fine := decode.ParseUUID(c.params.ByName("conversation_id"))
	if !fine {
		return nil, "", "", response.Error(http.StatusBadRequest, "Invalid conversation ID format")
	}
	if v, err = c.view(); err != nil {
		return nil, "", "", err
	}
	return v, user, id, c.operate(v, act, id, user)
}

// handleOperatorConversationGet handles GET /api/v1/operator/app-conversations/{conversation_id}.
func (s *Server) handleOperatorConversationGet(c *call) (answer, error) {
	v, user, id, err := c.conversationOf("show conversation")
	if err != nil {
		return answer{}, err
	}
	row := v.Conversation(user, id)
	if row == nil {
		return answer{}, response.Error(http.StatusNotFound, "Conversation not found")
	}
	return ok(newOwnedConversationBody(row))
}

// handleOperatorConversationDelete handles DELETE
// /api/v1/operator/app-conversations/{conversation_id}, as the owner's own deletion.
func (s *Server) handleOperatorConversationDelete(c *call) (answer, error) {
	_, user, id, err := c.conversationOf("delete conversation")
	if err != nil {
		return answer{}, err
	}
	if _, err := c.propose(&fsm.ConversationDeleteBody{ID: id, DeleteSandbox: true, Owner: user}); err != nil {
		return answer{}, response.NotFoundAs(err, "Conversation not found")
	}
	return ok(wire.Success{Success: true})
}
