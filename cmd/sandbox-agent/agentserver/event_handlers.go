package agentserver

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// handleEventAdd handles POST /api/conversations/{id}/events: a message, which
// with "run":true also asks for a run.
func (s *Server) handleEventAdd(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	m := readObject(w, r)
	if m == nil {
		return
	}
	var d reader
	msg := d.message(m)
	if m["content"] == nil {
		d.missing("content")
	}
	if len(d.errs) > 0 {
		writeInvalid(w, d.errs)
		return
	}
	events := []map[string]any{messageEvent(msg)}
	if msg.Run {
		events = append(events, runEvents()...)
	}
	s.done(w, r, c.append(events...), http.StatusNotFound, "Not Found")
}

// eventFilter is the query of an event search or count.
type eventFilter struct {
	kind, source, body string
	from, before       string
	descending         bool
}

func readEventFilter(w http.ResponseWriter, q url.Values) (eventFilter, bool) {
	f := eventFilter{kind: q.Get("kind"), source: q.Get("source"), body: strings.ToLower(q.Get("body"))}
	var errs []fieldError
	switch q.Get("sort_order") {
	case "", "TIMESTAMP":
	case "TIMESTAMP_DESC":
		f.descending = true
	default:
		errs = append(errs, fieldError{Type: "enum", Loc: []string{"query", "sort_order"},
			Msg: "Input should be 'TIMESTAMP' or 'TIMESTAMP_DESC'", Input: q.Get("sort_order")})
	}
	for name, to := range map[string]*string{"timestamp__gte": &f.from, "timestamp__lt": &f.before} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		t, ok := parseTime(text)
		if !ok {
			errs = append(errs, fieldError{Type: "datetime_from_date_parsing", Loc: []string{"query", name},
				Msg: "Input should be a valid datetime or date", Input: text})
		}
		*to = t.Format(eventTime)
	}
	if len(errs) > 0 {
		writeInvalid(w, errs)
		return f, false
	}
	return f, true
}

// parseTime takes a time with a zone, or a naive one as UTC.
func parseTime(s string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999", time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC(), true
		}
	}
	return time.Time{}, false
}

// match gives the entries that fit, in the order asked for. The caller holds
// the conversation's lock.
func (f eventFilter) match(l *eventLog) ([]eventEntry, error) {
	var out []eventEntry
	for _, e := range l.entries {
		if (f.kind != "" && e.Kind != f.kind) || (f.source != "" && e.Source != f.source) ||
			(f.from != "" && e.Timestamp < f.from) || (f.before != "" && e.Timestamp >= f.before) {
			continue
		}
		if f.body != "" {
			b, err := l.body(e)
			if err != nil {
				return nil, err
			}
			if !bytes.Contains(bytes.ToLower(b), []byte(f.body)) {
				continue
			}
		}
		out = append(out, e)
	}
	if f.descending {
		slices.Reverse(out)
	}
	return out, nil
}

// handleEventSearch handles GET /api/conversations/{id}/events/search.
func (s *Server) handleEventSearch(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	q := r.URL.Query()
	limit, ok := limitOf(w, q)
	if !ok {
		return
	}
	f, ok := readEventFilter(w, q)
	if !ok {
		return
	}
	out, err := c.searchEvents(f, q.Get("page_id"), limit)
	switch {
	case isGone(err):
		writeDetail(w, http.StatusNotFound, "Not Found")
	case err != nil:
		s.failed(w, r, err)
	default:
		writeJSON(w, http.StatusOK, out)
	}
}

func (c *conversation) searchEvents(f eventFilter, token string, limit int) (page[json.RawMessage], error) {
	out := page[json.RawMessage]{Items: []json.RawMessage{}}
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
		// A token that names nothing starts at the beginning.
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

// handleEventCount handles GET /api/conversations/{id}/events/count.
func (s *Server) handleEventCount(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	f, ok := readEventFilter(w, r.URL.Query())
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	var list []eventEntry
	if err == nil {
		list, err = f.match(l)
	}
	switch {
	case isGone(err):
		writeDetail(w, http.StatusNotFound, "Not Found")
	case err != nil:
		s.failed(w, r, err)
	default:
		writeJSON(w, http.StatusOK, len(list))
	}
}

// handleEventGet handles GET /api/conversations/{id}/events/{event}.
func (s *Server) handleEventGet(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	list, err := c.eventsByID([]string{r.PathValue("event")})
	switch {
	case isGone(err), err == nil && list[0] == nil:
		writeDetail(w, http.StatusNotFound, "Not Found")
	case err != nil:
		s.failed(w, r, err)
	default:
		writeJSON(w, http.StatusOK, list[0])
	}
}

// handleEventBatch handles GET /api/conversations/{id}/events, whose body is a
// JSON array of event ids.
func (s *Server) handleEventBatch(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	v, ok := readValue(w, r)
	if !ok {
		return
	}
	list, isList := v.([]any)
	ids := make([]string, 0, len(list))
	for _, e := range list {
		if id, ok := e.(string); ok {
			ids = append(ids, id)
		}
	}
	if !isList || len(ids) != len(list) || len(ids) > 100 {
		writeInvalid(w, []fieldError{{Type: "list_type", Loc: []string{"body"}, Msg: "Input should be a valid list of at most 100 event ids"}})
		return
	}
	out, err := c.eventsByID(ids)
	switch {
	case isGone(err):
		writeDetail(w, http.StatusNotFound, "Not Found")
	case err != nil:
		s.failed(w, r, err)
	default:
		writeJSON(w, http.StatusOK, out)
	}
}

// eventsByID gives the events in the order asked for, nil where there is none.
func (c *conversation) eventsByID(ids []string) ([]json.RawMessage, error) {
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
