package fsm

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// EventsAppendBody appends events to a conversation of Command.UserID that is in the sandbox. The
// leader has looked their ids up: none of them is in the conversation yet. At is the number of events
// that it found. If there is another number by now, that is CodeConflict, and it looks again. An
// unknown conversation is CodeNotFound, more than the user may keep CodeLimit.
type EventsAppendBody struct {
	ConversationID string `json:"conversation_id"`
	SandboxID      string `json:"sandbox_id"`
	At             uint64 `json:"at"`
	// Events are as AppendEvent stores them.
	Events [][]byte `json:"events"`
	// Facts is what they say of the conversation.
	Facts EventFacts `json:"facts,omitzero"`
}

// CommandType implements Body.
func (*EventsAppendBody) CommandType() CommandType { return EventsAppend }

// check implements Body.
func (b *EventsAppendBody) check(r *rules) {
	r.lookedUp("conversation id", b.ConversationID)
	r.lookedUp("sandbox id", b.SandboxID)
	checkEvents(r, b.Events)
	b.Facts.check(r)
}

func (t *transaction) applyEventsAppend(b *EventsAppendBody) (Result, *Error) {
	c := first[Conversation](t.txn, tableConversations, indexID, keyOf(t.cmd.UserID, b.ConversationID))
	if c == nil || c.SandboxID != b.SandboxID {
		return Result{}, errConversationNotFound()
	}
	chain := newChain(c.UserID, c.ID, t.index)
	if c.Events != nil {
		chain = *c.Events
	}
	if chain.Number != b.At {
		return Result{}, Errorf(CodeConflict, "the conversation has %d events and not %d: send what follows them",
			chain.Number, b.At)
	}
	size := 0
	for _, stored := range b.Events {
		size += len(stored)
	}
	most := cmp.Or(t.limitsOf(c.UserID).EventBytes, t.meta.Installation.PerUser.EventBytes, DefaultUserEventBytes)
	if usageOf(t.txn, c.UserID).EventBytes+size > most {
		return Result{}, &Error{
			Code: CodeLimit, RetryAfter: limitRetry, Limit: LimitOfUser + LimitEvents,
			Message: fmt.Sprintf("your limit of stored events (%d bytes) is reached: delete conversations, "+
				"or ask the operator for more", most),
		}
	}
	change := EventChange{UserID: c.UserID, ConversationID: c.ID, Before: chain.Hash, Events: b.Events}
	for _, stored := range b.Events {
		chain = chain.Next(stored)
	}
	change.Chain = chain
	next := *c
	next.Events = &chain
	next.UpdatedAt = t.now
	b.Facts.addTo(&next)
	put(t, tableConversations, c, &next)
	t.store.events = append(t.store.events, change)
	return Result{}, nil
}

// dropEvents notes that the events of a conversation are removed with it, if it has any.
func (t *transaction) dropEvents(c *Conversation) {
	if c.Events != nil {
		t.store.events = append(t.store.events, EventChange{
			UserID: c.UserID, ConversationID: c.ID, Chain: *c.Events, Dropped: true,
		})
	}
}

// EventsKeyBody records the key that seals the events of Command.UserID. The first one stays: another node
// may have made one at the same time. It sets Result.User, which has the key that counts.
type EventsKeyBody struct {
	Key SecretRef `json:"key"`
}

// CommandType implements Body.
func (*EventsKeyBody) CommandType() CommandType { return EventsKey }

// check implements Body.
func (b *EventsKeyBody) check(r *rules) {
	r.ref("key", b.Key)
	if b.Key.IsZero() {
		r.check(false, "key is missing")
	}
}

func (t *transaction) applyEventsKey(b *EventsKeyBody) (Result, *Error) {
	old := first[User](t.txn, tableUsers, indexID, []byte(t.cmd.UserID))
	switch {
	case old == nil:
		return Result{}, Errorf(CodeNotFound, "User not found")
	case !old.EventKey.IsZero():
		return Result{User: old}, nil
	}
	u := *old
	u.EventKey = b.Key
	put(t, tableUsers, old, &u)
	return Result{User: &u}, nil
}

// binaryBody is a body that EncodeBinary does not write as JSON, because it is bytes for the most part.
type binaryBody interface {
	Body
	// appendBinary appends the body, whose first byte is no '{'.
	appendBinary(b []byte) ([]byte, error)
	// readBinary reads the whole of b, whose memory it may keep.
	readBinary(b []byte) error
}

// eventsForm is the first byte of an EventsAppendBody.
const eventsForm = 0x01

// appendBinary implements binaryBody: the form, both ids, the position, the number of events and each
// event behind its length. Numbers are uvarints.
func (b *EventsAppendBody) appendBinary(to []byte) ([]byte, error) {
	size := 1 + len(b.ConversationID) + len(b.SandboxID) + (5+len(b.Events))*binary.MaxVarintLen64
	for _, stored := range b.Events {
		size += len(stored)
		if len(stored) == 0 {
			return nil, Errorf(CodeInvalid, "%v", errEvent)
		}
	}
	if len(b.Events) == 0 || !utf8.ValidString(b.ConversationID) || !utf8.ValidString(b.SandboxID) {
		return nil, Errorf(CodeInvalid, "command %s has no events, or an id that is no valid UTF-8", EventsAppend)
	}
	facts := ""
	if b.Facts != (EventFacts{}) {
		encoded, err := json.Marshal(b.Facts)
		if err != nil {
			return nil, Errorf(CodeInvalid, "command %s: %v", EventsAppend, err)
		}
		facts = string(encoded)
	}
	to = append(append(make([]byte, 0, len(to)+size+len(facts)), to...), eventsForm)
	for _, text := range []string{b.ConversationID, b.SandboxID, facts} {
		to = append(binary.AppendUvarint(to, uint64(len(text))), text...)
	}
	to = binary.AppendUvarint(to, b.At)
	to = binary.AppendUvarint(to, uint64(len(b.Events)))
	for _, stored := range b.Events {
		to = append(binary.AppendUvarint(to, uint64(len(stored))), stored...)
	}
	return to, nil
}

// errEventsBody: the body of events.append can't be read.
var errEventsBody = errors.New("its body is cut short")

// readBinary implements binaryBody.
func (b *EventsAppendBody) readBinary(raw []byte) error {
	if len(raw) == 0 || raw[0] != eventsForm {
		return errEventsBody
	}
	conversation, raw, err := cutText(raw[1:])
	if err != nil {
		return errEventsBody
	}
	sandbox, raw, err := cutText(raw)
	if err != nil || !utf8.Valid(conversation) || !utf8.Valid(sandbox) {
		return errEventsBody
	}
	facts, raw, err := cutText(raw)
	if err != nil {
		return errEventsBody
	}
	at, n := binary.Uvarint(raw)
	if n <= 0 {
		return errEventsBody
	}
	raw = raw[n:]
	count, n := binary.Uvarint(raw)
	if n <= 0 || count == 0 || count > uint64(len(raw)) {
		return errEventsBody
	}
	raw = raw[n:]
	*b = EventsAppendBody{ConversationID: string(conversation), SandboxID: string(sandbox), At: at}
	if len(facts) > 0 && json.Unmarshal(facts, &b.Facts) != nil {
		return errEventsBody
	}
	for range count {
		var stored []byte
		if stored, raw, err = cutText(raw); err != nil || len(stored) == 0 {
			return errEventsBody
		}
		b.Events = append(b.Events, stored[:len(stored):len(stored)])
	}
	if len(raw) > 0 {
		return errEventsBody
	}
	return nil
}
