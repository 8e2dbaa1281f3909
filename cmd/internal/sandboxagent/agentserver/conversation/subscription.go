package conversation

import (
	"encoding/json"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// maxFrames limits what waits for a slow subscriber beside the stored events.
const maxFrames = 4096

// Subscription is a subscriber's place in a conversation's events. The conversation's lock guards
// it.
type Subscription struct {
	// cursor is the index of the next stored event.
	cursor int
	// frames are events that are sent and not stored, each with the index of the stored event that
	// it comes before.
	frames []frame
}

type frame struct {
	before int
	event  []byte
}

// push adds an event that is not stored. Of too many the oldest is dropped: what is stored
// supersedes it.
func (s *Subscription) push(before int, e []byte) {
	if len(s.frames) >= maxFrames {
		s.frames = s.frames[1:]
	}
	s.frames = append(s.frames, frame{before, e})
}

// Subscribe adds a subscriber, which gets the whole state and then the stored events: all, those
// since a time, or new ones only: mode is all, since or another text.
func (c *Conversation) Subscribe(mode, since string) (*Subscription, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return nil, err
	}
	sub := &Subscription{cursor: len(l.entries)}
	switch mode {
	case "all":
		sub.cursor = 0
	case "since":
		for i, e := range l.entries {
			if e.Timestamp >= since {
				sub.cursor = i
				break
			}
		}
	}
	state := c.fullState(l)
	fill(state).Timestamp = c.stamp()
	b, err := json.Marshal(state)
	if err != nil {
		return nil, err
	}
	sub.push(0, event.Frame(b))
	if c.subs == nil {
		c.subs = map[*Subscription]struct{}{}
	}
	c.subs[sub] = struct{}{}
	return sub, nil
}

// Unsubscribe removes a subscriber.
func (c *Conversation) Unsubscribe(sub *Subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.subs, sub)
}

// Next returns at most limit frames for a subscriber, in their order. more is closed when there are
// new ones.
func (c *Conversation) Next(sub *Subscription, limit int) (events []json.RawMessage, more <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return nil, nil, err
	}
	for len(events) < limit {
		if len(sub.frames) > 0 && sub.frames[0].before <= sub.cursor {
			events = append(events, sub.frames[0].event)
			sub.frames = sub.frames[1:]
			continue
		}
		if sub.cursor >= len(l.entries) {
			break
		}
		b, err := l.body(l.entries[sub.cursor])
		if err != nil {
			return nil, nil, err
		}
		events = append(events, event.Frame(b))
		sub.cursor++
	}
	if c.grown == nil {
		c.grown = make(chan struct{})
	}
	return events, c.grown, nil
}

// grew notifies the subscribers. The caller holds c.mu.
func (c *Conversation) grew() {
	if c.grown != nil {
		close(c.grown)
		c.grown = nil
	}
}
