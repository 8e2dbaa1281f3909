package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
)

const (
	// eventsPage is how many events a page has at most. One whose answer is too large is asked for again
	// with fewer, and one event may have oneEvent bytes.
	eventsPage = 100
	pageBytes  = 8 << 20
	oneEvent   = 64 << 20
)

// Events returns a page of a conversation's events from a token on, "" for the first one, and the token of
// the next page, "" at the end. A server takes an event's id for a token, and an unknown one for "".
func (c *Client) Events(
	ctx context.Context, baseURL, key, conversationID, token string,
) (list []json.RawMessage, next string, err error) {
	q := url.Values{}
	if token != "" {
		q.Set("page_id", token)
	}
	for limit := eventsPage; ; limit = max(limit/10, 1) {
		list, next, err = c.searchEvents(ctx, baseURL, key, conversationID, q, limit)
		if limit == 1 || !errors.Is(err, ErrTooLarge) {
			return list, next, err
		}
	}
}

// NewestEvent returns the last event of a conversation, nil if it has none.
func (c *Client) NewestEvent(ctx context.Context, baseURL, key, conversationID string) (json.RawMessage, error) {
	list, _, err := c.searchEvents(ctx, baseURL, key, conversationID, url.Values{"sort_order": {"TIMESTAMP_DESC"}}, 1)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0], nil
}

func (c *Client) searchEvents(
	ctx context.Context, baseURL, key, conversationID string, q url.Values, limit int,
) ([]json.RawMessage, string, error) {
	q.Set("limit", strconv.Itoa(limit))
	r := request{op: "search events", method: http.MethodGet, key: key, most: pageBytes,
		url: baseURL + "/api/conversations/" + url.PathEscape(conversationID) + "/events/search?" + q.Encode()}
	if limit == 1 {
		r.most = oneEvent
	}
	var page Page[json.RawMessage]
	if err := c.call(ctx, c.cfg.CallTimeout, r, &page); err != nil {
		return nil, "", err
	}
	if page.NextPageID == nil {
		return page.Items, "", nil
	}
	return page.Items, *page.NextPageID, nil
}
