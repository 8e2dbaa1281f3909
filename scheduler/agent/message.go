package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
)

// SendMessage sends a message to a conversation. With m.Run the agent works on it; otherwise it
// waits, unlike an initial message.
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
