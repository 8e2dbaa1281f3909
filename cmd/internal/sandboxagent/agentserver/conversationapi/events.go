package conversationapi

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/httpapi/decode"
)

// otherEvent refuses a message with the id of another event.
const otherEvent = "An event with this id is there, and it is no message: leave the id out, or send a new one"

// HandleEventAdd handles POST /api/conversations/{id}/events: a message. With "run":true it also
// requests a run.
func (a *API) HandleEventAdd(w http.ResponseWriter, r *http.Request) {
	c := a.find(w, r)
	if c == nil {
		return
	}
	o, ok := wire.ReadObject(w, r)
	if !ok {
		return
	}
	msg := readMessage(o)
	if o.Value("content") == nil {
		wire.Missing(o, "content")
	}
	if wire.Refused(w, o) {
		return
	}
	err := a.conversations.Message(c, msg)
	if errors.Is(err, conversation.ErrNoMessage) {
		wire.WriteDetail(w, http.StatusConflict, otherEvent)
		return
	}
	a.done(w, r, err)
}

func readEventFilter(w http.ResponseWriter, q url.Values) (conversation.Filter, bool) {
	f := conversation.Filter{Kind: q.Get("kind"), Source: q.Get("source"), Body: strings.ToLower(q.Get("body"))}
	var errs []decode.Problem
	switch q.Get("sort_order") {
	case "", "TIMESTAMP":
	case "TIMESTAMP_DESC":
		f.Descending = true
	default:
		errs = append(errs,
			decode.NotOneOf([]string{"TIMESTAMP", "TIMESTAMP_DESC"}).At(q.Get("sort_order"), "query", "sort_order"))
	}
	for name, to := range map[string]*string{"timestamp__gte": &f.From, "timestamp__lt": &f.Before} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		t, f := decode.ToTime(text)
		if f != nil {
			errs = append(errs, f.At(text, "query", name))
		}
		*to = t.Format(event.TimeFormat)
	}
	if len(errs) > 0 {
		wire.WriteInvalid(w, errs)
		return f, false
	}
	return f, true
}

// HandleEventSearch handles GET /api/conversations/{id}/events/search.
func (a *API) HandleEventSearch(w http.ResponseWriter, r *http.Request) {
	c := a.find(w, r)
	if c == nil {
		return
	}
	q := r.URL.Query()
	limit, ok := wire.ReadLimit(w, q)
	if !ok {
		return
	}
	f, ok := readEventFilter(w, q)
	if !ok {
		return
	}
	out, err := c.SearchEvents(f, q.Get("page_id"), limit)
	a.respond(w, r, http.StatusOK, out, err)
}

// HandleEventCount handles GET /api/conversations/{id}/events/count.
func (a *API) HandleEventCount(w http.ResponseWriter, r *http.Request) {
	c := a.find(w, r)
	if c == nil {
		return
	}
	f, ok := readEventFilter(w, r.URL.Query())
	if !ok {
		return
	}
	n, err := c.CountEvents(f)
	a.respond(w, r, http.StatusOK, n, err)
}

// HandleEventGet handles GET /api/conversations/{id}/events/{event}.
func (a *API) HandleEventGet(w http.ResponseWriter, r *http.Request) {
	c := a.find(w, r)
	if c == nil {
		return
	}
	list, err := c.EventsByID([]string{r.PathValue("event")})
	switch {
	case conversation.IsGone(err), err == nil && list[0] == nil:
		wire.WriteDetail(w, http.StatusNotFound, "Not Found")
	case err != nil:
		wire.WriteFailure(w, r, a.logger, err)
	default:
		wire.WriteJSON(w, http.StatusOK, list[0])
	}
}

// HandleEventBatch handles GET /api/conversations/{id}/events. Its body is a JSON array of event
// ids.
func (a *API) HandleEventBatch(w http.ResponseWriter, r *http.Request) {
	c := a.find(w, r)
	if c == nil {
		return
	}
	ids, ok := wire.ReadIDs(w, r)
	if !ok {
		return
	}
	out, err := c.EventsByID(ids)
	a.respond(w, r, http.StatusOK, out, err)
}
