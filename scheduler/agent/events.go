package agent

import (
	"bytes"
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
	oneEvent   = 16 << 20
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
	page := struct {
		Items      boundedList `json:"items"`
		NextPageID string      `json:"next_page_id"`
	}{Items: boundedList{most: limit}}
	if err := c.call(ctx, c.cfg.CallTimeout, r, &page); err != nil {
		return nil, "", err
	}
	return page.Items.items, page.NextPageID, nil
}

// boundedList is a JSON array of at most so many values. One with more is an error before the others are
// read: millions of small values take many times the bytes of their text.
type boundedList struct {
	most  int
	items []json.RawMessage
}

var (
	errNoList   = errors.New("this is no list")
	errLongList = errors.New("the list is longer than was asked for")
)

// UnmarshalJSON implements json.Unmarshaler.
func (l *boundedList) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	switch t, err := d.Token(); {
	case err != nil || t == nil: // null
		return err
	case t != json.Delim('['):
		return errNoList
	}
	l.items = nil
	for d.More() {
		if len(l.items) == l.most {
			return errLongList
		}
		var item json.RawMessage
		if err := d.Decode(&item); err != nil {
			return err
		}
		l.items = append(l.items, item)
	}
	return nil
}
