package agentserver

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxBatch is how many ids one batch call takes.
const maxBatch = 99

// find gives the conversation of the path, or answers 404.
func (s *Server) find(w http.ResponseWriter, r *http.Request) *conversation {
	if c := s.lookup(r); c != nil {
		return c
	}
	writeDetail(w, http.StatusNotFound, "Not Found")
	return nil
}

func (s *Server) lookup(r *http.Request) *conversation {
	id, ok := parseID(r.PathValue("id"))
	if !ok {
		return nil
	}
	return s.store.get(id)
}

// handleConversationBatch handles GET /api/conversations?ids=a&ids=b.
func (s *Server) handleConversationBatch(w http.ResponseWriter, r *http.Request) {
	ids := r.URL.Query()["ids"]
	if len(ids) == 0 {
		writeInvalid(w, []fieldError{{Type: "missing", Loc: []string{"query", "ids"}, Msg: "Field required"}})
		return
	}
	if len(ids) > maxBatch {
		writeInvalid(w, []fieldError{{Type: "too_long", Loc: []string{"query", "ids"}, Msg: "List should have at most 99 items"}})
		return
	}
	out := make([]*info, len(ids))
	for i, raw := range ids {
		id, ok := parseID(raw)
		if !ok {
			writeInvalid(w, []fieldError{{Type: "uuid_parsing", Loc: []string{"query", "ids", strconv.Itoa(i)},
				Msg: "Input should be a valid UUID, unable to parse it", Input: raw}})
			return
		}
		c := s.store.get(id)
		if c == nil {
			continue
		}
		v, err := c.info()
		if isGone(err) {
			continue
		}
		if err != nil {
			s.failed(w, r, err)
			return
		}
		out[i] = &v
	}
	writeJSON(w, http.StatusOK, out)
}

// handleConversationGet handles GET /api/conversations/{id}.
func (s *Server) handleConversationGet(w http.ResponseWriter, r *http.Request) {
	if c := s.find(w, r); c != nil {
		s.writeInfo(w, r, http.StatusOK, c)
	}
}

// page is one page of a listing.
type page[T any] struct {
	Items      []T     `json:"items"`
	NextPageID *string `json:"next_page_id"`
}

// limitOf reads limit (1..100, default 100), or answers 422.
func limitOf(w http.ResponseWriter, q url.Values) (int, bool) {
	text := q.Get("limit")
	if text == "" {
		return 100, true
	}
	bad := fieldError{Loc: []string{"query", "limit"}, Input: text}
	n, err := strconv.Atoi(text)
	switch {
	case err != nil:
		bad.Type, bad.Msg = "int_parsing", "Input should be a valid integer, unable to parse string as an integer"
	case n <= 0:
		bad.Type, bad.Msg, bad.Ctx = "greater_than", "Input should be greater than 0", map[string]any{"gt": 0}
	case n > 100:
		bad.Type, bad.Msg, bad.Ctx = "less_than_equal", "Input should be less than or equal to 100", map[string]any{"le": 100}
	default:
		return n, true
	}
	writeInvalid(w, []fieldError{bad})
	return 0, false
}

// filtered gives the conversations a search or a count means, in order.
func (s *Server) filtered(w http.ResponseWriter, r *http.Request) ([]info, bool) {
	q := r.URL.Query()
	order := q.Get("sort_order")
	orders := []string{"CREATED_AT", "UPDATED_AT", "CREATED_AT_DESC", "UPDATED_AT_DESC"}
	if order != "" && !slices.Contains(orders, order) {
		writeInvalid(w, []fieldError{{Type: "enum", Loc: []string{"query", "sort_order"}, Msg: "Input should be " + oneOf(orders), Input: order}})
		return nil, false
	}
	var list []info
	for _, c := range s.store.all() {
		v, err := c.info()
		if isGone(err) {
			continue
		}
		if err != nil {
			s.failed(w, r, err)
			return nil, false
		}
		if st := q.Get("status"); st == "" || st == v.ExecutionStatus {
			list = append(list, v)
		}
	}
	if strings.HasPrefix(order, "UPDATED_AT") {
		slices.SortStableFunc(list, func(a, b info) int { return b.UpdatedAt.Compare(a.UpdatedAt) })
	}
	if order == "CREATED_AT" || order == "UPDATED_AT" {
		slices.Reverse(list)
	}
	return list, true
}

// handleConversationSearch handles GET /api/conversations/search.
func (s *Server) handleConversationSearch(w http.ResponseWriter, r *http.Request) {
	limit, ok := limitOf(w, r.URL.Query())
	if !ok {
		return
	}
	list, ok := s.filtered(w, r)
	if !ok {
		return
	}
	start := 0
	if token := r.URL.Query().Get("page_id"); token != "" {
		// A token that names nothing starts at the beginning.
		start = max(0, slices.IndexFunc(list, func(v info) bool { return v.ID == token }))
	}
	out := page[info]{Items: []info{}}
	end := min(start+limit, len(list))
	out.Items = append(out.Items, list[start:end]...)
	if end < len(list) {
		out.NextPageID = &list[end].ID
	}
	writeJSON(w, http.StatusOK, out)
}

// handleConversationCount handles GET /api/conversations/count.
func (s *Server) handleConversationCount(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("status") == "" {
		s.store.mu.RLock()
		n := len(s.store.byID)
		s.store.mu.RUnlock()
		writeJSON(w, http.StatusOK, n)
		return
	}
	if list, ok := s.filtered(w, r); ok {
		writeJSON(w, http.StatusOK, len(list))
	}
}

// handleConversationPatch handles PATCH /api/conversations/{id}: a title of 1
// to 200 characters, and tags that replace all.
func (s *Server) handleConversationPatch(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	m := readObject(w, r)
	if m == nil {
		return
	}
	var d reader
	title := d.str(m, "title")
	if title != nil {
		if n := utf8.RuneCountInString(*title); n == 0 {
			d.fail("string_too_short", "String should have at least 1 character", *title, "title")
		} else if n > maxTitle {
			d.fail("string_too_long", "String should have at most 200 characters", nil, "title")
		}
	}
	tags := d.tags(m)
	if len(d.errs) > 0 {
		writeInvalid(w, d.errs)
		return
	}
	err := c.change(func(x *meta) {
		if title != nil {
			x.Title = title
		}
		if m["tags"] != nil {
			x.Tags = tags
		}
	})
	s.done(w, r, err, http.StatusNotFound, "Not Found")
}

// handleConversationDelete handles DELETE /api/conversations/{id}; the
// workspace's files stay.
func (s *Server) handleConversationDelete(w http.ResponseWriter, r *http.Request) {
	c := s.lookup(r)
	if c == nil {
		writeDetail(w, http.StatusBadRequest, "Bad Request")
		return
	}
	s.done(w, r, s.store.delete(c), http.StatusBadRequest, "Bad Request")
}

// handleRun handles POST /api/conversations/{id}/run; see the package's
// comment for what a run does.
func (s *Server) handleRun(w http.ResponseWriter, r *http.Request) {
	if c := s.find(w, r); c != nil {
		s.done(w, r, c.append(runEvents()...), http.StatusNotFound, "Not Found")
	}
}

// handlePause handles POST /api/conversations/{id}/pause and /interrupt. As
// nothing runs, both only note it.
func (s *Server) handlePause(w http.ResponseWriter, r *http.Request) {
	c := s.lookup(r)
	if c == nil {
		writeDetail(w, http.StatusBadRequest, "Bad Request")
		return
	}
	s.done(w, r, c.pause(), http.StatusBadRequest, "Bad Request")
}

// pause notes a pause once.
func (c *conversation) pause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil || l.status == statusPaused {
		return err
	}
	defer c.grew()
	return l.append([]map[string]any{newEvent(kindPause, "user"), statusEvent(statusPaused)})
}

// handlePreparePause handles POST /api/conversations/prepare-for-sandbox-pause.
// All is on disk already; the indexes in memory are let go.
func (s *Server) handlePreparePause(w http.ResponseWriter, _ *http.Request) {
	s.store.unload()
	w.WriteHeader(http.StatusNoContent)
}

// done answers success, or the status for a conversation that has just gone.
func (s *Server) done(w http.ResponseWriter, r *http.Request, err error, goneStatus int, goneDetail string) {
	switch {
	case isGone(err):
		writeDetail(w, goneStatus, goneDetail)
	case err != nil:
		s.failed(w, r, err)
	default:
		writeJSON(w, http.StatusOK, success{Success: true})
	}
}
