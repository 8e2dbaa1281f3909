package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/eventcut"
	"bivouac.dev/bivouac/httpapi/eventin"
	"bivouac.dev/bivouac/httpapi/eventseal"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// headerPosition has the position of the first of the events in the agent server's own order, counted in
// events that are kept. Without it they are kept in the order of their arrival. In the answer it is how
// many events the conversation has; after a 409 the sender goes on from there.
const headerPosition = "X-Event-Position"

// A sandbox sends eventBurst calls with events at once, and then eventCalls a second. They have
// eventByteBurst bytes at once, and then eventBytes a second. A call makes an entry of the log, and one more
// for about each MiB and for 1024 events.
const (
	eventCalls     = 50
	eventBurst     = 500
	eventBytes     = 8 << 20
	eventByteBurst = 64 << 20
	// maxSentEvents bounds the events of one call.
	maxSentEvents = 8192
)

// mostOfEvents bounds the events of one call: the largest event that is kept has room, and larger ones are
// cut.
const mostOfEvents = eventcut.MaxEvent + 2<<20

// handleWebhookEvents handles POST /api/v1/webhooks/events/{conversation_id}: an agent server sends
// events (API.md, "Webhooks from sandboxes"). 200 means that they are kept.
func (s *Server) handleWebhookEvents(c *call) (response.Response, error) {
	v, sandbox, err := c.callingSandbox()
	if err != nil {
		return response.Response{}, err
	}
	if over := int64(len(c.Body)) - max(0, c.Request.ContentLength); over > 0 { // packed, or of no known length
		if !s.eventBytes.AllowN(sandbox.ID, int(over)) {
			return response.Response{}, s.errSentTooOften()
		}
	}
	if err := c.TurnToRead(); err != nil {
		return response.Response{}, err
	}
	id := c.conversationID()
	events, position, err := c.sentEvents()
	if err != nil {
		return response.Response{}, err
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	row := v.Conversation(sandbox.UserID, id)
	if row == nil || row.SandboxID != sandbox.ID {
		return response.Response{}, response.Error(http.StatusNotFound, "Conversation not found")
	}
	if !v.Active(fsm.VersionEvents) {
		return response.Response{}, fsm.NeedsVersion("keeping events", fsm.VersionEvents, v.ProtocolVersion())
	}
	if len(events) == 0 {
		return response.OK(wire.Success{Success: true})
	}
	key, err := c.eventKey(v)
	if err != nil {
		return response.Response{}, err
	}
	to := eventin.Place{
		UserID: sandbox.UserID, ConversationID: row.ID, SandboxID: sandbox.ID,
		Credential: fsm.Credential{SandboxID: sandbox.ID, KeyHash: sandbox.KeyHash},
	}
	var facts fsm.EventFacts
	eventin.AddFacts(&facts, events, row.Untitled())
	done, err := eventin.Append(c.Ctx(), s.cfg.Events, key, c.Now, to, events, position, facts)
	if err != nil {
		return response.Response{}, response.NotFoundAs(err, "Conversation not found")
	}
	c.Writer.Header().Set(headerPosition, strconv.FormatUint(done.Number, 10))
	if done.Gap {
		return response.Response{}, response.Error(http.StatusConflict, fmt.Sprintf(
			"Events are missing before these: the conversation has %d, send what follows them.", done.Number))
	}
	return response.OK(wire.Success{Success: true})
}

// admitEvents counts a call with events, of as many bytes as its sender announces.
func (s *Server) admitEvents(sandbox string, bytes int64) error {
	if !s.appends.Allow(sandbox) || !s.eventBytes.AllowN(sandbox, int(min(max(bytes, 0), mostOfEvents))) {
		return s.errSentTooOften()
	}
	return nil
}

// errSentTooOften is the answer to a sandbox that sends more than eventCalls or eventBytes.
func (s *Server) errSentTooOften() error {
	s.metrics.limits.WithLabelValues(limitRate).Inc()
	return &response.HTTPError{
		Status: http.StatusTooManyRequests, Text: "This sandbox sends events too often", RetryAfter: time.Second,
	}
}

// sentEvents reads the events of the body that are kept, and where the first of them stands.
func (c *call) sentEvents() (events []eventin.Event, position uint64, err error) {
	refuse := func(format string, args ...any) ([]eventin.Event, uint64, error) {
		return nil, 0, response.Error(http.StatusUnprocessableEntity, fmt.Sprintf(format, args...))
	}
	position = cluster.NoPosition
	if text := c.Request.Header.Get(headerPosition); text != "" {
		if position, err = strconv.ParseUint(text, 10, 63); err != nil {
			return refuse("%s is no number", headerPosition)
		}
	}
	var list []json.RawMessage
	if err := json.Unmarshal(c.Body, &list); err != nil {
		return refuse("The body is no array of events")
	}
	if len(list) > maxSentEvents {
		return nil, 0, response.Error(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("The body has %d events, and may have %d: send them in parts", len(list), maxSentEvents))
	}
	if events, err = eventin.Read(list); err != nil {
		return refuse("%v", err)
	}
	return events, position, nil
}

// eventKey returns the key of the events of the caller's user, and makes the first one.
func (c *call) eventKey(v *fsm.View) (eventseal.Key, error) {
	u := v.User(c.Caller.User)
	if u == nil {
		return eventseal.Key{}, response.NotFound()
	}
	ref, err := eventseal.Ensure(c.Ctx(), c.server.secrets, u, c.Propose)
	if err != nil {
		return eventseal.Key{}, err
	}
	return c.openKey(ref)
}

// openKey reads a key of events.
func (c *call) openKey(ref fsm.SecretRef) (eventseal.Key, error) {
	key, err := eventseal.Of(c.Ctx(), c.server.secrets, ref)
	if fsm.CodeOf(err) == fsm.CodeNotFound {
		return key, fsm.Errorf(fsm.CodeSecretStore, "the key of this user's events is no longer in the secret store")
	}
	if err != nil {
		return key, request.SecretFailure(err)
	}
	return key, nil
}
