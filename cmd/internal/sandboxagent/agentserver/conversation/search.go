package conversation

import (
	"bytes"
	"encoding/json"
	"slices"

	"bivouac.dev/bivouac/scheduler/agent"
)

// Filter is the query of an event search or count.
type Filter struct {
	Kind, Source, Body string
	From, Before       string
	Descending         bool
}

// match returns the matching entries in the requested order. The caller holds the conversation's
// lock.
func (f Filter) match(l *eventLog) ([]eventEntry, error) {
	var out []eventEntry
	for _, e := range l.entries {
		if (f.Kind != "" && e.Kind != f.Kind) || (f.Source != "" && e.Source != f.Source) ||
			(f.From != "" && e.Timestamp < f.From) || (f.Before != "" && e.Timestamp >= f.Before) {
			continue
		}
		if f.Body != "" {
			b, err := l.body(e)
			if err != nil {
				return nil, err
			}
			if !bytes.Contains(bytes.ToLower(b), []byte(f.Body)) {
				continue
			}
		}
		out = append(out, e)
	}
	if f.Descending {
		slices.Reverse(out)
	}
	return out, nil
}

// SearchEvents returns a page of the matching events; an unknown token means the first one.
func (c *Conversation) SearchEvents(f Filter, token string, limit int) (agent.Page[json.RawMessage], error) {
	out := agent.Page[json.RawMessage]{Items: []json.RawMessage{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return out, err
	}
	list, err := f.match(l)
	if err != nil {
		return out, err
	}
	start := 0
	if token != "" {
		// An unknown token means the first page.
		start = max(0, slices.IndexFunc(list, func(e eventEntry) bool { return e.ID == token }))
	}
	end := min(start+limit, len(list))
	for _, e := range list[start:end] {
		b, err := l.body(e)
		if err != nil {
			return out, err
		}
		out.Items = append(out.Items, b)
	}
	if end < len(list) {
		out.NextPageID = &list[end].ID
	}
	return out, nil
}

// CountEvents counts the matching events.
func (c *Conversation) CountEvents(f Filter) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return 0, err
	}
	list, err := f.match(l)
	return len(list), err
}

// EventsByID returns the events in the order of ids, nil for an unknown one.
func (c *Conversation) EventsByID(ids []string) ([]json.RawMessage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return nil, err
	}
	out := make([]json.RawMessage, len(ids))
	for i, id := range ids {
		n, ok := l.byID[id]
		if !ok {
			continue
		}
		if out[i], err = l.body(l.entries[n]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// EventIDs are the ids of the stored events, in their order.
func (c *Conversation) EventIDs() ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(l.entries))
	for i, e := range l.entries {
		ids[i] = e.ID
	}
	return ids, nil
}
