package fsm

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"
)

// EventHead has the members of an event that stay readable beside its sealed body.
type EventHead struct {
	ID        string
	Kind      string
	Source    string
	Timestamp string
}

const (
	// MaxEventHead bounds each text of an EventHead, in bytes.
	MaxEventHead = 256
	// MaxAppendedEvents bounds the events of one command.
	MaxAppendedEvents = 1024
	// eventForm is the first byte of a stored event.
	eventForm = 0x01
	// eventTexts is the number of texts in an EventHead.
	eventTexts = 4
)

// errEvent: a stored event can't be read.
var errEvent = errors.New("an event's head is cut short or has another form than this program knows")

// AppendEvent appends the stored form of an event to b: the form, the texts of its head, each with its
// length as a uvarint, and the body, of which the state knows nothing.
func AppendEvent(b []byte, head EventHead, body []byte) []byte {
	b = append(b, eventForm)
	for _, text := range [eventTexts]string{head.ID, head.Kind, head.Source, head.Timestamp} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	return append(b, body...)
}

// CutEvent reads what AppendEvent wrote. The body shares the memory of stored.
func CutEvent(stored []byte) (head EventHead, body []byte, err error) {
	texts, body, err := cutEvent(stored)
	if err != nil {
		return EventHead{}, nil, err
	}
	return EventHead{
		ID: string(texts[0]), Kind: string(texts[1]), Source: string(texts[2]), Timestamp: string(texts[3]),
	}, body, nil
}

// EventID returns the id of a stored event, nil for what is none. It shares the memory of stored.
func EventID(stored []byte) []byte {
	texts, _, err := cutEvent(stored)
	if err != nil {
		return nil
	}
	return texts[0]
}

// EventOutline returns a stored event without its body, nil for what is none. It shares the memory of
// stored.
func EventOutline(stored []byte) []byte {
	_, body, err := cutEvent(stored)
	if err != nil {
		return nil
	}
	return stored[: len(stored)-len(body) : len(stored)-len(body)]
}

// cutEvent is CutEvent without copies.
func cutEvent(stored []byte) (texts [eventTexts][]byte, body []byte, err error) {
	if len(stored) == 0 || stored[0] != eventForm {
		return texts, nil, errEvent
	}
	rest := stored[1:]
	for i := range texts {
		if texts[i], rest, err = cutText(rest); err != nil {
			return texts, nil, errEvent
		}
	}
	return texts, rest, nil
}

// checkEvents adds the rules of stored events: each can be read, and no id is there twice.
func checkEvents(r *rules, events [][]byte) {
	if len(events) == 0 || len(events) > MaxAppendedEvents {
		r.check(false, "1 to %d events can be appended at once", MaxAppendedEvents)
		return
	}
	var ids map[string]bool
	if len(events) > 1 {
		ids = make(map[string]bool, len(events))
	}
	for _, stored := range events {
		texts, _, err := cutEvent(stored)
		if err != nil {
			r.check(false, "%v", err)
			return
		}
		for _, text := range texts {
			if len(text) > MaxEventHead || !utf8.Valid(text) {
				r.check(false, "a text of an event's head is longer than %d bytes or no valid UTF-8", MaxEventHead)
				return
			}
		}
		if id := texts[0]; len(id) == 0 || ids[string(id)] {
			r.check(false, "an event has no id, or that of another")
			return
		}
		if ids != nil {
			ids[string(texts[0])] = true
		}
	}
}
