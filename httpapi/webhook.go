package httpapi

import (
	"net/http"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// handleWebhookConversation handles POST /api/v1/webhooks/conversations: an agent server sends the
// state of a conversation (API.md, "Webhooks from sandboxes"). Its title replaces one that no user
// gave.
func (s *Server) handleWebhookConversation(c *call) (response.Response, error) {
	v, sandbox, err := c.callingSandbox()
	if err != nil {
		return response.Response{}, err
	}
	o := c.Object()
	o.Require("id")
	id, title := decode.OrZero(o.UUID("id")), o.Title(memberTitle, maxTitle)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	row := v.Conversation(sandbox.UserID, id)
	if row == nil || row.SandboxID != sandbox.ID {
		return response.Response{}, response.Error(http.StatusNotFound, "Conversation not found")
	}
	if decode.OrZero(title) == "" || !row.AutoTitle || *title == decode.OrZero(row.Title) {
		return response.OK(wire.Success{Success: true})
	}
	body := &fsm.ConversationUpdateBody{ID: id, Automatic: true, Set: []string{memberTitle}, Title: title}
	if err := fsm.Validate(body); err != nil {
		return response.Response{}, err
	}
	if !c.server.titles.Allow(sandbox.ID) {
		c.server.metrics.limits.WithLabelValues(limitRate).Inc()
		return response.Response{}, &response.HTTPError{
			Status: http.StatusTooManyRequests, Text: "This sandbox changes titles too often", RetryAfter: titlePause,
		}
	}
	if _, err := c.Propose(body); err != nil {
		return response.Response{}, response.NotFoundAs(err, "Conversation not found")
	}
	return response.OK(wire.Success{Success: true})
}

// A sandbox changes titleBurst titles at once, as one with many conversations does, and then one each
// titlePause: each is an entry of the log.
const (
	titlePause = 10 * time.Second
	titleBurst = 20
)

// presentedSandbox returns the sandbox whose key a request has, as far as this node knows, before
// its body is read.
func (c *call) presentedSandbox() (*fsm.Sandbox, string, error) {
	key := c.Request.Header.Get(proxy.HeaderKey)
	if key == "" {
		return nil, "", response.Error(http.StatusUnauthorized, "X-Session-API-Key header is required")
	}
	row, err := c.server.sandboxOfKey(c, key)
	if err != nil {
		return nil, "", err
	}
	if !proxy.Opens(row, key) || !proxy.IsOwned(row) {
		request.InfoOf(c.Request.Context()).Refused = refusedUnknown
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
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return nil, nil, err
	}
	row := v.SandboxByKeyHash(apikey.Hash(key)) // this node may have been behind
	if id := c.Params.ByName("sandbox_id"); !proxy.Opens(row, key) || !proxy.IsOwned(row) || id != "" && id != row.ID {
		request.InfoOf(c.Request.Context()).Refused = refusedUnknown
		return nil, nil, response.Error(http.StatusUnauthorized, "Invalid session API key")
	}
	c.Caller.User = row.UserID
	request.InfoOf(c.Request.Context()).Sandbox = row.ID
	return v, row, c.server.admit(c.Request.Context(), limits.Client{Sandbox: row.ID})
}
