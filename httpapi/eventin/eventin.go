// Package eventin takes events of agent servers in: it reads their heads, leaves out what is not kept,
// seals the rest and appends it. The API's webhook and the leader's fetch both do so.
package eventin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/eventcut"
	"bivouac.dev/bivouac/httpapi/eventseal"
)

// What of an agent server's events is not kept: pieces of texts that come again as a whole, and states
// that are made of the others.
const (
	KindDelta       = "StreamingDeltaEvent"
	KindStateUpdate = "ConversationStateUpdateEvent"
	keyFullState    = "full_state"
)

// appendBytes bounds the events of one command, beside its last one.
const appendBytes = 1 << 20

// Event is an event as an agent server has it.
type Event struct {
	Head fsm.EventHead
	Text json.RawMessage
}

// Read returns those of a list of events that are kept, each id once. An error says what is no event.
func Read(list []json.RawMessage) ([]Event, error) {
	var events []Event
	ids := map[string]bool{}
	for i, text := range list {
		var e struct {
			ID        string `json:"id"`
			Kind      string `json:"kind"`
			Source    string `json:"source"`
			Timestamp string `json:"timestamp"`
			Key       string `json:"key"`
		}
		if err := json.Unmarshal(text, &e); err != nil || e.ID == "" {
			return nil, fmt.Errorf("Event %d is no object with an id", i) //nolint:staticcheck // a client reads it
		}
		if e.Kind == KindDelta || e.Kind == KindStateUpdate && e.Key == keyFullState {
			continue
		}
		head := fsm.EventHead{ID: ComparedID(e.ID), Kind: e.Kind, Source: e.Source, Timestamp: e.Timestamp}
		if max(len(head.ID), len(head.Kind), len(head.Source), len(head.Timestamp)) > fsm.MaxEventHead {
			//nolint:staticcheck // a client reads it
			return nil, fmt.Errorf("The id, kind, source or timestamp of event %d is too long", i)
		}
		if !ids[head.ID] {
			events = append(events, Event{head, eventcut.Cut(text)})
		}
		ids[head.ID] = true
	}
	return events, nil
}

// ComparedID is an event's id as it is compared: with or without dashes it is the same.
func ComparedID(text string) string {
	if hex, fine := decode.ParseUUID(text); fine {
		return hex
	}
	return text
}

// Cluster keeps events. *cluster.Node implements it.
type Cluster interface {
	AppendEvents(ctx context.Context, cmd fsm.Command) (cluster.AppendedEvents, error)
}

// Place is where events belong. Credential is that of a sandbox that sends them, zero for the leader's own.
type Place struct {
	UserID, ConversationID, SandboxID string
	Credential                        fsm.Credential
}

// Append seals events and appends those that the conversation does not have, in their order. The first one
// has a position at the sender, or cluster.NoPosition. The facts become the conversation's if any event is
// new. It ends at a gap.
func Append(
	ctx context.Context, c Cluster, key eventseal.Key, now time.Time, to Place, events []Event, position uint64,
	facts fsm.EventFacts,
) (done cluster.AppendedEvents, err error) {
	added := 0
	for len(events) > 0 {
		n, size := 0, 0
		body := &fsm.EventsAppendBody{ConversationID: to.ConversationID, SandboxID: to.SandboxID, At: position,
			Facts: facts}
		for n < len(events) && n < fsm.MaxAppendedEvents && (n == 0 || size+len(events[n].Text) <= appendBytes) {
			body.Events = append(body.Events, key.Seal(to.ConversationID, events[n].Head, events[n].Text))
			size += len(events[n].Text)
			n++
		}
		cmd := fsm.NewCommand(uuid.NewString(), now, to.UserID, body)
		cmd.Credential = to.Credential
		if done, err = c.AppendEvents(ctx, cmd); err != nil || done.Gap {
			return done, err
		}
		if done.Added > 0 {
			facts.Title = "" // it has one
		}
		added += done.Added
		if events = events[n:]; position != cluster.NoPosition {
			position += uint64(n)
		}
	}
	done.Added = added
	return done, nil
}
