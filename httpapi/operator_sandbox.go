package httpapi

import (
	"net/http"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
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

// operatorView is the view of a listing.
func (c *call) operatorView(act, owner string) (*fsm.View, error) {
	v, err := c.View()
	if err != nil {
		return nil, err
	}
	return v, c.Operate(v, act, "", owner)
}

// ownedSandbox finds a sandbox of any user for an operator's act, which it logs.
func (c *call) ownedSandbox(act string) (*fsm.View, *fsm.Sandbox, error) {
	id := c.Params.ByName("sandbox_id")
	v, err := c.View()
	if err != nil {
		return nil, nil, err
	}
	row := v.SandboxAny(id)
	if row == nil || row.Member() || row.Desired == fsm.DesiredDeleted {
		return nil, nil, response.NotFound()
	}
	return v, row, c.Operate(v, act, row.ID, row.UserID)
}

// handleOperatorSandboxList handles GET /api/v1/operator/sandboxes.
func (s *Server) handleOperatorSandboxList(c *call) (response.Response, error) {
	user := decode.OrZero(c.Query.Text("user", fsm.MaxName))
	p := fsm.Page{After: request.PageIDOf(c.Query), Limit: request.LimitOf(c.Query)}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.operatorView("list sandboxes", user)
	if err != nil {
		return response.Response{}, err
	}
	rows, next := v.OwnedSandboxes(user, p)
	items := make([]wire.OwnedSandbox, len(rows))
	for i, row := range rows {
		items[i] = newOwnedSandboxBody(row)
	}
	return response.OK(wire.NewPage(items, next))
}

// handleOperatorSandboxGet handles GET /api/v1/operator/sandboxes/{sandbox_id}.
func (s *Server) handleOperatorSandboxGet(c *call) (response.Response, error) {
	_, row, err := c.ownedSandbox("show sandbox")
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(newOwnedSandboxBody(row))
}

// handleOperatorSandboxPause handles POST /api/v1/operator/sandboxes/{sandbox_id}/pause.
func (s *Server) handleOperatorSandboxPause(c *call) (response.Response, error) {
	return c.operateSandbox("pause sandbox", &fsm.SandboxPauseBody{ID: c.Params.ByName("sandbox_id"), Operator: true})
}

// handleOperatorSandboxResume handles POST /api/v1/operator/sandboxes/{sandbox_id}/resume. The
// limits of the owner hold.
func (s *Server) handleOperatorSandboxResume(c *call) (response.Response, error) {
	return c.operateSandbox("resume sandbox", &fsm.SandboxResumeBody{ID: c.Params.ByName("sandbox_id"), Operator: true})
}

// handleOperatorSandboxDelete handles DELETE /api/v1/operator/sandboxes/{sandbox_id}.
func (s *Server) handleOperatorSandboxDelete(c *call) (response.Response, error) {
	return c.operateSandbox("delete sandbox", &fsm.SandboxDeleteBody{ID: c.Params.ByName("sandbox_id"), Operator: true})
}

// operateSandbox sends an operator's command about any user's sandbox.
func (c *call) operateSandbox(act string, body fsm.Body) (response.Response, error) {
	id := c.Params.ByName("sandbox_id")
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	owner := ""
	if row := v.SandboxAny(id); row != nil {
		owner = row.UserID
	}
	if err := c.Operate(v, act, id, owner); err != nil {
		return response.Response{}, err
	}
	return c.commandSandbox(body)
}

// handleOperatorSandboxLogs handles GET /api/v1/operator/sandboxes/{sandbox_id}/logs, the owner's
// call for any user's sandbox.
func (s *Server) handleOperatorSandboxLogs(c *call) (response.Response, error) {
	wanted, err := c.logRequest()
	if err != nil {
		return response.Response{}, err
	}
	act := "read logs"
	if wanted.part.Follow {
		act = "follow logs"
	}
	v, row, err := c.ownedSandbox(act)
	if err != nil {
		return response.Response{}, err
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
func (s *Server) handleOperatorConversationList(c *call) (response.Response, error) {
	user := decode.OrZero(c.Query.Text("user", fsm.MaxName))
	p := fsm.Page{After: request.PageIDOf(c.Query), Limit: request.LimitOf(c.Query)}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.operatorView("list conversations", user)
	if err != nil {
		return response.Response{}, err
	}
	rows, next := v.OwnedConversations(user, p)
	items := make([]wire.OwnedConversation, len(rows))
	for i, row := range rows {
		items[i] = newOwnedConversationBody(row)
	}
	return response.OK(wire.NewPage(items, next))
}

// conversationOf reads which user's conversation a request means. An id is unique for a user only.
func (c *call) conversationOf(act string) (v *fsm.View, user, id string, err error) {
	c.Query.Required("user")
	user = decode.OrZero(c.Query.Text("user", fsm.MaxName))
	if err := c.Check(); err != nil {
		return nil, "", "", err
	}
	id, fine := decode.ParseUUID(c.Params.ByName("conversation_id"))
	if !fine {
		return nil, "", "", response.Error(http.StatusBadRequest, "Invalid conversation ID format")
	}
	if v, err = c.View(); err != nil {
		return nil, "", "", err
	}
	return v, user, id, c.Operate(v, act, id, user)
}

// handleOperatorConversationGet handles GET /api/v1/operator/app-conversations/{conversation_id}.
func (s *Server) handleOperatorConversationGet(c *call) (response.Response, error) {
	v, user, id, err := c.conversationOf("show conversation")
	if err != nil {
		return response.Response{}, err
	}
	row := v.Conversation(user, id)
	if row == nil {
		return response.Response{}, response.Error(http.StatusNotFound, "Conversation not found")
	}
	return response.OK(newOwnedConversationBody(row))
}

// handleOperatorConversationDelete handles DELETE
// /api/v1/operator/app-conversations/{conversation_id}, as the owner's own deletion.
func (s *Server) handleOperatorConversationDelete(c *call) (response.Response, error) {
	_, user, id, err := c.conversationOf("delete conversation")
	if err != nil {
		return response.Response{}, err
	}
	if _, err := c.Propose(&fsm.ConversationDeleteBody{ID: id, DeleteSandbox: true, Owner: user}); err != nil {
		return response.Response{}, response.NotFoundAs(err, "Conversation not found")
	}
	return response.OK(wire.Success{Success: true})
}
