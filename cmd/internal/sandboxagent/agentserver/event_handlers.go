package agentserver

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

// handleEventAdd handles POST /api/conversations/{id}/events: a message. With "run":true it also
// requests a run.
func (s *Server) handleEventAdd(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	o, ok := readObject(w, r)
	if !ok {
		return
	}
	msg := readMessage(o)
	if o.Value("content") == nil {
		missing(o, "content")
	}
	if id := o.UUID("id"); id != nil {
		msg.ID = decode.Dashed(*id)
	}
	if refused(w, o) {
		return
	}
	m := messageEvent(msg)
	m.ID = msg.ID
	s.done(w, r, s.message(c, m, msg.Run), http.StatusNotFound, "Not Found")
}

// eventFilter is the query of an event search or count.
type eventFilter struct {
	kind, source, body string
	from, before       string
	descending         bool
}

func readEventFilter(w http.ResponseWriter, q url.Values) (eventFilter, bool) {
	f := eventFilter{kind: q.Get("kind"), source: q.Get("source"), body: strings.ToLower(q.Get("body"))}
	var errs []decode.Problem
	switch q.Get("sort_order") {
	case "", "TIMESTAMP":
	case "TIMESTAMP_DESC":
		f.descending = true
	default:
		errs = append(errs,
			decode.NotOneOf([]string{"TIMESTAMP", "TIMESTAMP_DESC"}).At(q.Get("sort_order"), "query", "sort_order"))
	}
	for name, to := range map[string]*string{"timestamp__gte": &f.from, "timestamp__lt": &f.before} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		t, f := decode.ToTime(text)
		if f != nil {
			errs = append(errs, f.At(text, "query", name))
		}
		*to = t.Format(eventTime)
	}
	if len(errs) > 0 {
		writeInvalid(w, errs)
		return f, false
	}
	return f, true
}

// match returns the matching entries in the requested order. The caller holds the conversation's
// lock.
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

func (c *conversation) searchEvents(f eventFilter, token string, limit int) (agent.Page[json.RawMessage], error) {
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

// handleEventBatch handles GET /api/conversations/{id}/events. Its body is a JSON array of event
// ids.
func (s *Server) handleEventBatch(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	ids, ok := readIDs(w, r)
	if !ok {
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

// readIDs reads a JSON array of at most 100 event ids from the body, or responds 422.
func readIDs(w http.ResponseWriter, r *http.Request) ([]string, bool) {
	v, ok := readValue(w, r)
	if !ok {
		return nil, false
	}
	list, isList := v.([]any)
	ids := make([]string, 0, len(list))
	for _, e := range list {
		if id, ok := e.(string); ok {
			ids = append(ids, id)
		}
	}
	if !isList || len(ids) != len(list) || len(ids) > 100 {
		writeInvalid(w,
			[]decode.Problem{
				{Type: "list_type", Loc: []string{"body"}, Msg: "Input should be a valid list of at most 100 event ids"},
			})
		return nil, false
	}
	return ids, true
}

// eventsByID returns the events in the order of ids, nil for an unknown one.
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
