package httpapi

import (
	"net/http"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/response"
)

// handleWebhookConversation handles POST /api/v1/webhooks/conversations: an agent server sends the
// state of a conversation (API.md, "Webhooks from sandboxes"). Its title replaces one that no user
// gave.
func (s *Server) handleWebhookConversation(c *call) (answer, error) {
	v, sandbox, err := c.callingSandbox()
	if err != nil {
		return answer{}, err
	}
	o := c.object()
	o.Require("id")
	id, title := decode.OrZero(o.UUID("id")), o.Text(memberTitle, maxTitle)
	if err := c.check(); err != nil {
		return answer{}, err
	}
	row := v.Conversation(sandbox.UserID, id)
	if row == nil || row.SandboxID != sandbox.ID {
		return answer{}, response.Error(http.StatusNotFound, "Conversation not found")
	}
	if decode.OrZero(title) == "" || !row.AutoTitle || *title == decode.OrZero(row.Title) {
		return ok(success{Success: true})
	}
	body := &fsm.ConversationUpdateBody{ID: id, Automatic: true, Set: []string{memberTitle}, Title: title}
	if err := fsm.Validate(body); err != nil {
		return answer{}, err
	}
	if _, err := c.propose(body); err != nil {
		return answer{}, response.NotFoundAs(err, "Conversation not found")
	}
	return ok(success{Success: true})
}

// presentedSandbox returns the sandbox whose key a request has, as far as this node knows, before
// its body is read.
func (c *call) presentedSandbox() (*fsm.Sandbox, string, error) {
	key := c.r.Header.Get(proxy.HeaderKey)
	if key == "" {
		return nil, "", response.Error(http.StatusUnauthorized, "X-Session-API-Key header is required")
	}
	row, err := c.server.sandboxOfKey(c, key)
	if err != nil {
		return nil, "", err
	}
	if !proxy.Opens(row, key) || !proxy.IsOwned(row) {
		requestInfoOf(c.r.Context()).Refused = refusedUnknown
		return nil, "", response.Error(http.StatusUnauthorized, "Invalid session API key")
	}
	return row, key, nil
}

// callingSandbox authenticates a sandbox by its key alone, in every state but deleted: an agent
// server may call before its sandbox counts as running. It returns the view with the sandbox.
func (c *call) callingSandbox() (*fsm.View, *fsm.Sandbox, error) {
	_, key, err := c.presentedSandbox()
	if err != nil {
		return nil, nil, err
	}
	v, err := c.viewWith(cluster.Linearizable)
	if err != nil {
		return nil, nil, err
	}
	row := v.SandboxByKeyHash(apikey.Hash(key)) // this node may have been behind
	if !proxy.Opens(row, key) || !proxy.IsOwned(row) {
		requestInfoOf(c.r.Context()).Refused = refusedUnknown
		return nil, nil, response.Error(http.StatusUnauthorized, "Invalid session API key")
	}
	c.who.user = row.UserID
	requestInfoOf(c.r.Context()).Sandbox = row.ID
	return v, row, c.server.admit(c.r.Context(), rateClient{sandbox: row.ID})
}
