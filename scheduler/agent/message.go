package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
)

// SendMessage gives a conversation a message, and with m.Run has the agent work
// on it. Unlike an initial message it waits when Run is false.
func (c *Client) SendMessage(ctx context.Context, baseURL, key, conversationID string, m Message) error {
	const op = "send message"
	body, err := json.Marshal(m)
	if err != nil {
		return &Error{Op: op, Kind: ErrRefused, Detail: "the message can't be encoded"}
	}
	return c.call(ctx, c.cfg.CallTimeout, request{
		op: op, method: http.MethodPost, key: key, body: body,
		url: baseURL + "/api/conversations/" + url.PathEscape(conversationID) + "/events",
	}, nil)
}
