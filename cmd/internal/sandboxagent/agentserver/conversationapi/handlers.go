// Package conversationapi has the routes of conversations: it reads requests and writes responses, and
// leaves the work to package conversation.
package conversationapi

import (
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/socket"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

// API has the routes of conversations and their events.
type API struct {
	conversations *conversation.Service
	sockets       *socket.Set
	// tools is the user that makes directories of workspaces; nil is this process's own.
	tools  *syscall.Credential
	logger *slog.Logger
}

// New returns the API of conversations, whose subscribers are on sockets.
func New(cfg config.Config, all *conversation.Service, sockets *socket.Set) *API {
	return &API{conversations: all, sockets: sockets, tools: cfg.Tools, logger: cfg.Logger}
}

// find returns the conversation in the path, or responds 404.
func (a *API) find(w http.ResponseWriter, r *http.Request) *conversation.Conversation {
	if c := a.lookup(r); c != nil {
		return c
	}
	wire.WriteDetail(w, http.StatusNotFound, "Not Found")
	return nil
}

func (a *API) lookup(r *http.Request) *conversation.Conversation {
	id, ok := decode.ParseUUID(r.PathValue("id"))
	if !ok {
		return nil
	}
	return a.conversations.Get(id)
}

// HandleBatch handles GET /api/conversations?ids=a&ids=b.
func (a *API) HandleBatch(w http.ResponseWriter, r *http.Request) {
	ids := r.URL.Query()["ids"]
	if len(ids) == 0 {
		wire.WriteInvalid(w, []decode.Problem{{Type: "missing", Loc: []string{"query", "ids"}, Msg: "Field required"}})
		return
	}
	if len(ids) > agent.MaxIDs {
		wire.WriteInvalid(w,
			[]decode.Problem{{Type: "too_long", Loc: []string{"query", "ids"}, Msg: "List should have at most 99 items"}})
		return
	}
	out := make([]*conversation.Info, len(ids))
	for i, raw := range ids {
		id, f := decode.ToUUID(raw)
		if f != nil {
			wire.WriteInvalid(w, []decode.Problem{f.At(raw, "query", "ids", strconv.Itoa(i))})
			return
		}
		c := a.conversations.Get(id)
		if c == nil {
			continue
		}
		v, err := c.Info()
		if conversation.IsGone(err) {
			continue
		}
		if err != nil {
			wire.WriteFailure(w, r, a.logger, err)
			return
		}
		out[i] = &v
	}
	wire.WriteJSON(w, http.StatusOK, out)
}

// HandleGet handles GET /api/conversations/{id}.
func (a *API) HandleGet(w http.ResponseWriter, r *http.Request) {
	if c := a.find(w, r); c != nil {
		a.writeInfo(w, r, http.StatusOK, c)
	}
}

// filtered returns the conversations that match a search or count, in order.
func (a *API) filtered(w http.ResponseWriter, r *http.Request) ([]conversation.Info, bool) {
	q := r.URL.Query()
	order := q.Get("sort_order")
	orders := []string{"CREATED_AT", "UPDATED_AT", "CREATED_AT_DESC", "UPDATED_AT_DESC"}
	if order != "" && !slices.Contains(orders, order) {
		wire.WriteInvalid(w, []decode.Problem{decode.NotOneOf(orders).At(order, "query", "sort_order")})
		return nil, false
	}
	var list []conversation.Info
	for _, c := range a.conversations.All() {
		v, err := c.Info()
		if conversation.IsGone(err) {
			continue
		}
		if err != nil {
			wire.WriteFailure(w, r, a.logger, err)
			return nil, false
		}
		if st := q.Get("status"); st == "" || st == v.ExecutionStatus {
			list = append(list, v)
		}
	}
	if strings.HasPrefix(order, "UPDATED_AT") {
		slices.SortStableFunc(list, func(a, b conversation.Info) int { return b.UpdatedAt.Compare(a.UpdatedAt) })
	}
	if order == "CREATED_AT" || order == "UPDATED_AT" {
		slices.Reverse(list)
	}
	return list, true
}

// HandleSearch handles GET /api/conversations/search.
func (a *API) HandleSearch(w http.ResponseWriter, r *http.Request) {
	limit, ok := wire.ReadLimit(w, r.URL.Query())
	if !ok {
		return
	}
	list, ok := a.filtered(w, r)
	if !ok {
		return
	}
	start := 0
	if token := r.URL.Query().Get("page_id"); token != "" {
		// An unknown token means the first page.
		start = max(0, slices.IndexFunc(list, func(v conversation.Info) bool { return v.ID == token }))
	}
	out := agent.Page[conversation.Info]{Items: []conversation.Info{}}
	end := min(start+limit, len(list))
	out.Items = append(out.Items, list[start:end]...)
	if end < len(list) {
		out.NextPageID = &list[end].ID
	}
	wire.WriteJSON(w, http.StatusOK, out)
}

// HandleCount handles GET /api/conversations/count.
func (a *API) HandleCount(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("status") == "" {
		wire.WriteJSON(w, http.StatusOK, a.conversations.Count())
		return
	}
	if list, ok := a.filtered(w, r); ok {
		wire.WriteJSON(w, http.StatusOK, len(list))
	}
}

// HandlePatch handles PATCH /api/conversations/{id}: a title of 1 to 200 characters,
// and tags, which replace all tags.
func (a *API) HandlePatch(w http.ResponseWriter, r *http.Request) {
	c := a.find(w, r)
	if c == nil {
		return
	}
	o, ok := wire.ReadObject(w, r)
	if !ok {
		return
	}
	title := o.Text("title", maxTitle)
	if title != nil && *title == "" {
		o.Fail("title", *title, &decode.Fault{Type: "string_too_short", Message: "String should have at least 1 character"})
	}
	tags := readTags(o)
	if wire.Refused(w, o) {
		return
	}
	err := a.conversations.Update(c, func(x *conversation.Meta) {
		if title != nil {
			x.Title, x.Autotitle = title, false
		}
		if o.Value("tags") != nil {
			x.Tags = tags
		}
	})
	a.done(w, r, err)
}

// HandleDelete handles DELETE /api/conversations/{id}. The workspace's files stay.
func (a *API) HandleDelete(w http.ResponseWriter, r *http.Request) {
	c := a.lookup(r)
	if c == nil {
		wire.WriteDetail(w, http.StatusBadRequest, "Bad Request")
		return
	}
	a.doneOr(w, r, a.conversations.Delete(c), http.StatusBadRequest, "Bad Request")
}

// respond responds with v, or with the error: 404 for a deleted conversation, otherwise 500.
func (a *API) respond(w http.ResponseWriter, r *http.Request, status int, v any, err error) {
	switch {
	case conversation.IsGone(err):
		wire.WriteDetail(w, http.StatusNotFound, "Not Found")
	case conversation.IsFull(err):
		a.logger.Warn("the disk is full", "route", r.Method+" "+r.URL.Path)
		wire.WriteDetail(w, http.StatusInsufficientStorage, diskFull)
	case err != nil:
		wire.WriteFailure(w, r, a.logger, err)
	default:
		wire.WriteJSON(w, status, v)
	}
}

// diskFull refuses what can't be stored.
const diskFull = "The sandbox's disk is full: delete files in it, then send this again"

// done responds with success, or with the error as respond does.
func (a *API) done(w http.ResponseWriter, r *http.Request, err error) {
	a.respond(w, r, http.StatusOK, wire.Success{Success: true}, err)
}

// doneOr is done with another response for a deleted conversation.
func (a *API) doneOr(w http.ResponseWriter, r *http.Request, err error, gone int, detail string) {
	if conversation.IsGone(err) {
		wire.WriteDetail(w, gone, detail)
		return
	}
	a.done(w, r, err)
}
