package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/eventin"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

const (
	// maxEventBatch bounds the ids of a batch.
	maxEventBatch = 100

	orderOldest = "TIMESTAMP"
	orderNewest = "TIMESTAMP_DESC"
)

// eventKinds are the kinds that a search may name. More of them are kept and shown.
func eventKinds() []string {
	return []string{
		"ServerErrorEvent", "ACPToolCallEvent", "Condensation", "CondensationRequest", "CondensationSummaryEvent",
		"ConversationErrorEvent", eventin.KindStateUpdate, "HookExecutionEvent", "LLMCompletionLogEvent", "ActionEvent",
		eventin.KindMessage, "AgentErrorEvent", "ObservationEvent", "UserRejectObservation", "SystemPromptEvent",
		eventin.KindDelta, "TokenEvent", "InterruptEvent", "PauseEvent",
	}
}

// eventFilter narrows a search of events.
type eventFilter struct {
	kind string
	from *time.Time
	to   *time.Time
}

// eventFilterOf reads the filter of a request.
func (c *call) eventFilterOf() eventFilter {
	return eventFilter{
		kind: c.Query.Enum("kind__eq", "", eventKinds()),
		from: c.Query.Time("timestamp__gte"), to: c.Query.Time("timestamp__lt"),
	}
}

// isZero reports whether the filter takes all events.
func (f eventFilter) isZero() bool { return f.kind == "" && f.from == nil && f.to == nil }

// query is the reading of what the filter takes, from a position on.
func (f eventFilter) query(from uint64, back bool) cluster.EventQuery {
	q := cluster.EventQuery{From: from, Back: back}
	if !f.isZero() {
		q.Takes = f.takes
	}
	return q
}

// takes reports whether the filter takes an event.
func (f eventFilter) takes(head fsm.EventHead) bool {
	if f.kind != "" && head.Kind != f.kind {
		return false
	}
	if f.from == nil && f.to == nil {
		return true
	}
	at, known := timeOfEvent(head.Timestamp)
	return known && (f.from == nil || !at.Before(*f.from)) && (f.to == nil || at.Before(*f.to))
}

// timeOfEvent reads an event's timestamp, which names no zone as a rule.
func timeOfEvent(text string) (time.Time, bool) {
	for _, layout := range []string{"2006-01-02T15:04:05", time.RFC3339} { // both take fractions
		if at, err := time.Parse(layout, text); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

// eventsOf finds the conversation whose events a request reads, nil for one without events and for one
// that the request may not read, which both have none.
type eventsOf func(*call) (*fsm.View, *fsm.Conversation, error)

// eventsOfPath is the eventsOf of the caller's conversation that the path names.
func (c *call) eventsOfPath() (*fsm.View, *fsm.Conversation, error) {
	id := c.conversationID()
	if err := c.Check(); err != nil {
		return nil, nil, err
	}
	v, err := c.View()
	if err != nil {
		return nil, nil, err
	}
	row := v.Conversation(c.Caller.User, id)
	if row == nil || row.Events == nil {
		return v, nil, nil
	}
	return v, row, nil
}

// opened returns the text of stored events.
func (c *call) opened(v *fsm.View, row *fsm.Conversation, stored [][]byte) ([]json.RawMessage, error) {
	if len(stored) == 0 {
		return nil, nil
	}
	u := v.User(row.UserID)
	if u == nil {
		return nil, response.NotFound()
	}
	key, err := c.openKey(u.EventKey)
	if err != nil {
		return nil, err
	}
	texts := make([]json.RawMessage, len(stored))
	for i, one := range stored {
		if one == nil {
			continue
		}
		if _, texts[i], err = key.Open(row.ID, one); err != nil {
			return nil, fmt.Errorf("event %d of a page: %w", i, err)
		}
	}
	return texts, nil
}

// handleEventSearch handles GET /api/v1/conversation/{conversation_id}/events/search.
func (s *Server) handleEventSearch(c *call) (response.Response, error) {
	return s.searchEvents(c, (*call).eventsOfPath)
}

// handleEventCount handles GET /api/v1/conversation/{conversation_id}/events/count.
func (s *Server) handleEventCount(c *call) (response.Response, error) {
	return s.countEvents(c, (*call).eventsOfPath)
}

// handleEventBatch handles GET /api/v1/conversation/{conversation_id}/events.
func (s *Server) handleEventBatch(c *call) (response.Response, error) {
	return s.batchEvents(c, (*call).eventsOfPath)
}

// handleEventGet handles GET /api/v1/conversation/{conversation_id}/events/{event_id}.
func (s *Server) handleEventGet(c *call) (response.Response, error) {
	return s.oneEvent(c, (*call).eventsOfPath)
}

// searchEvents answers with a page of events. Its token is the position of the next event.
func (s *Server) searchEvents(c *call, of eventsOf) (response.Response, error) {
	filter, limit := c.eventFilterOf(), request.LimitOf(c.Query)
	back := c.Query.Enum("sort_order", orderOldest, []string{orderOldest, orderNewest}) == orderNewest
	token := request.PageIDOf(c.Query)
	v, row, err := of(c)
	if err != nil {
		return response.Response{}, err
	}
	page, positions, next := [][]byte(nil), []uint64(nil), ""
	if row != nil {
		from := uint64(0)
		if back {
			from = row.Events.Number - 1
		}
		if at, err := strconv.ParseUint(token, 10, 64); err == nil && at < row.Events.Number {
			from = at
		}
		size := 0
		err := s.cfg.Events.ReadEvents(c.Ctx(), *row.Events, filter.query(from, back), func(at uint64, stored []byte) bool {
			if len(page) == limit || len(page) > 0 && size+len(stored) > request.MaxPageBytes {
				next = strconv.FormatUint(at, 10)
				return false
			}
			page, positions, size = append(page, bytes.Clone(stored)), append(positions, at), size+len(stored)
			return true
		})
		if err != nil {
			return response.Response{}, err
		}
	}
	texts, err := c.opened(v, row, page)
	if err != nil {
		return response.Response{}, err
	}
	list := request.List{
		N: len(texts), Item: func(i int) any { return texts[i] }, Size: func(i int) int { return len(texts[i]) },
	}
	return c.BoundedPage(list, next, func(limit int) string { return strconv.FormatUint(positions[limit], 10) })
}

// countEvents answers with the number of events.
func (s *Server) countEvents(c *call, of eventsOf) (response.Response, error) {
	filter := c.eventFilterOf()
	_, row, err := of(c)
	switch {
	case err != nil:
		return response.Response{}, err
	case row == nil:
		return response.OK(0)
	case filter.isZero():
		return response.OK(row.Events.Number)
	}
	n := 0
	q := filter.query(0, false)
	q.Outlines = true
	err = s.cfg.Events.ReadEvents(c.Ctx(), *row.Events, q, func(uint64, []byte) bool { n++; return true })
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(n)
}

// oneEvent answers with one event.
func (s *Server) oneEvent(c *call, of eventsOf) (response.Response, error) {
	id := eventin.ComparedID(c.Params.ByName("event_id"))
	v, row, err := of(c)
	if err != nil {
		return response.Response{}, err
	}
	unknown := response.Error(http.StatusNotFound, "Event not found")
	if row == nil {
		return response.Response{}, unknown
	}
	found, err := s.cfg.Events.FindEvents(c.Ctx(), *row.Events, []string{id})
	if err != nil {
		return response.Response{}, err
	}
	if found[id] == nil {
		return response.Response{}, unknown
	}
	texts, err := c.opened(v, row, [][]byte{found[id]})
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(texts[0])
}

// batchEvents answers with events by their ids, null for what is not there.
func (s *Server) batchEvents(c *call, of eventsOf) (response.Response, error) {
	sent := c.Query.Required("id")
	v, row, err := of(c)
	if err != nil {
		return response.Response{}, err
	}
	if len(sent) > maxEventBatch {
		return response.Response{}, response.Error(http.StatusBadRequest,
			fmt.Sprintf("Too many ids requested. Maximum is %d.", maxEventBatch))
	}
	if row == nil {
		return response.OK(make([]*json.RawMessage, len(sent)))
	}
	ids := make([]string, len(sent))
	for i, text := range sent {
		ids[i] = eventin.ComparedID(text)
	}
	found, err := s.cfg.Events.FindEvents(c.Ctx(), *row.Events, ids)
	if err != nil {
		return response.Response{}, err
	}
	stored := make([][]byte, len(sent))
	size := 0
	for i, id := range ids {
		stored[i] = found[id]
		size += len(stored[i])
	}
	if size > request.MaxBatchBytes {
		return response.Response{}, response.Error(http.StatusBadRequest,
			"These events are too large for one answer: ask for fewer.")
	}
	items, err := c.opened(v, row, stored)
	if err != nil {
		return response.Response{}, err
	}
	list := request.List{
		N: len(items), Item: func(i int) any { return items[i] }, Size: func(i int) int { return len(items[i]) },
	}
	encoded, err := c.Items(list, request.MaxBatchBytes)
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(response.EncodedItems{Before: "[", Items: encoded, After: "]"})
}
