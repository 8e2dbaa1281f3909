package agentserver

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

// find returns the conversation in the path, or responds 404.
func (s *Server) find(w http.ResponseWriter, r *http.Request) *conversation {
	if c := s.lookup(r); c != nil {
		return c
	}
	writeDetail(w, http.StatusNotFound, "Not Found")
	return nil
}

func (s *Server) lookup(r *http.Request) *conversation {
	id, ok := decode.ParseUUID(r.PathValue("id"))
	if !ok {
		return nil
	}
	return s.store.get(id)
}

// handleConversationBatch handles GET /api/conversations?ids=a&ids=b.
func (s *Server) handleConversationBatch(w http.ResponseWriter, r *http.Request) {
	ids := r.URL.Query()["ids"]
	if len(ids) == 0 {
		writeInvalid(w, []decode.Problem{{Type: "missing", Loc: []string{"query", "ids"}, Msg: "Field required"}})
		return
	}
	if len(ids) > agent.MaxIDs {
		writeInvalid(w,
			[]decode.Problem{{Type: "too_long", Loc: []string{"query", "ids"}, Msg: "List should have at most 99 items"}})
		return
	}
	out := make([]*info, len(ids))
	for i, raw := range ids {
		id, f := decode.ToUUID(raw)
		if f != nil {
			writeInvalid(w, []decode.Problem{f.At(raw, "query", "ids", strconv.Itoa(i))})
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

// limitOf reads limit (1..100, default 100), or responds 422.
func limitOf(w http.ResponseWriter, q url.Values) (int, bool) {
	var problems decode.Problems
	n := decode.Query{Values: q, Problems: &problems}.Integer("limit", 100, 0, 100)
	if problems.Err() != nil {
		writeInvalid(w, problems.List)
		return 0, false
	}
	return int(n), true
}

// filtered returns the conversations that match a search or count, in order.
func (s *Server) filtered(w http.ResponseWriter, r *http.Request) ([]info, bool) {
	q := r.URL.Query()
	order := q.Get("sort_order")
	orders := []string{"CREATED_AT", "UPDATED_AT", "CREATED_AT_DESC", "UPDATED_AT_DESC"}
	if order != "" && !slices.Contains(orders, order) {
		writeInvalid(w, []decode.Problem{decode.NotOneOf(orders).At(order, "query", "sort_order")})
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
		// An unknown token means the first page.
		start = max(0, slices.IndexFunc(list, func(v info) bool { return v.ID == token }))
	}
	out := agent.Page[info]{Items: []info{}}
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

// handleConversationPatch handles PATCH /api/conversations/{id}: a title of 1 to 200 characters,
// and tags, which replace all tags.
func (s *Server) handleConversationPatch(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	o, ok := readObject(w, r)
	if !ok {
		return
	}
	title := o.Text("title", maxTitle)
	if title != nil && *title == "" {
		o.Fail("title", *title, &decode.Fault{Type: "string_too_short", Message: "String should have at least 1 character"})
	}
	tags := readTags(o)
	if refused(w, o) {
		return
	}
	err := c.change(func(x *meta) {
		if title != nil {
			x.Title, x.Autotitle = title, false
		}
		if o.Value("tags") != nil {
			x.Tags = tags
		}
	})
	if err == nil {
		s.webhooks.tell(c)
	}
	s.done(w, r, err, http.StatusNotFound, "Not Found")
}

// handleConversationDelete handles DELETE /api/conversations/{id}. The workspace's files stay.
func (s *Server) handleConversationDelete(w http.ResponseWriter, r *http.Request) {
	c := s.lookup(r)
	if c == nil {
		writeDetail(w, http.StatusBadRequest, "Bad Request")
		return
	}
	s.done(w, r, s.delete(c), http.StatusBadRequest, "Bad Request")
}

// done responds with success, the given status for a deleted conversation, or a 500.
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
