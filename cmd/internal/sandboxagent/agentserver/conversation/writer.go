package conversation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

var _ engine.Conversation = (*Conversation)(nil)

// Append implements engine.Conversation.
func (c *Conversation) Append(events ...event.Event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.write(events...)
}

// Events implements engine.Conversation.
func (c *Conversation) Events() ([]event.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.history()
}

// State implements engine.Conversation.
func (c *Conversation) State(key string) json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return nil
	}
	return c.state(l, key)
}

// state returns the latest value of a key, else that of the creation. The caller holds c.mu.
func (c *Conversation) state(l *eventLog, key string) json.RawMessage {
	if v, ok := l.state[key]; ok {
		return v
	}
	var created any
	switch key {
	case engine.KeyConfirmationPolicy:
		created = c.meta.ConfirmationPolicy
	case engine.KeySecurityAnalyzer:
		created = c.meta.SecurityAnalyzer
	case engine.KeyStatus:
		created = engine.StatusIdle
	case engine.KeyStuckDetection:
		created = c.meta.StuckDetection
	default:
		return nil
	}
	b, err := json.Marshal(created)
	if err != nil {
		return nil // these types encode
	}
	return b
}

// Send implements engine.Conversation.
func (c *Conversation) Send(e event.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log != nil && !c.deleted {
		c.send(e)
	}
}

// send sends an event to the subscribers only. The caller holds c.mu and has loaded the events.
func (c *Conversation) send(e event.Event) {
	if len(c.subs) == 0 {
		return
	}
	h := fill(e)
	h.Timestamp = c.stamp()
	b, err := json.Marshal(e)
	if err != nil {
		return // events of this tree encode
	}
	b = event.Frame(b)
	for sub := range c.subs {
		sub.push(len(c.log.entries), b)
	}
	c.grew()
}

// write stores events and wakes the subscribers. The caller holds c.mu. Events that could not be
// stored before come first.
func (c *Conversation) write(events ...event.Event) error {
	l, err := c.events()
	if err != nil {
		return err
	}
	parent := l.lastID()
	if n := len(c.unsaved); n > 0 {
		parent = c.unsaved[n-1].Envelope().ID
	}
	for _, e := range events {
		h := fill(e)
		if c.copying && h.Timestamp >= c.latest {
			c.latest = h.Timestamp
		} else {
			h.Timestamp = c.stamp()
		}
		if id := parent; id != "" && h.ParentID == nil {
			h.ParentID = &id
		}
		parent = h.ID
	}
	all := slices.Concat(c.unsaved, events)
	if len(all) == 0 {
		return nil
	}
	defer c.grew()
	if err := l.append(all); err != nil {
		return err
	}
	c.tellStored()
	c.unsaved = nil
	if c.decoded != nil {
		c.decoded = append(c.decoded, all...)
	}
	if c.branch != nil {
		c.branch = append(c.branch, all...)
	}
	return nil
}

// conclude is write for the events that end a run. If the disk does not take them, they are sent and
// count from now on, and are written with the next ones. The caller holds c.mu.
func (c *Conversation) conclude(events ...event.Event) error {
	err := c.write(events...)
	if err == nil || IsGone(err) || c.log == nil {
		return err
	}
	for _, e := range events {
		c.send(e)
		if u, ok := e.(*event.StateUpdate); ok {
			c.log.state[u.Key] = u.Value
		}
	}
	c.unsaved = append(c.unsaved, events...)
	return err
}

// fill sets what the engine left empty.
func fill(e event.Event) *event.Head {
	event.Complete(e)
	h := e.Envelope()
	h.Kind = event.KindOf(e)
	if h.ID == "" {
		h.ID = newUUID()
	}
	h.Source = cmp.Or(h.Source, event.SourceEnvironment)
	return h
}

// stamp is the present time as text, never before the latest event's. The caller holds c.mu.
func (c *Conversation) stamp() string {
	t := max(now().Format(eventTime), c.latest)
	c.latest = t
	return t
}

// history returns the decoded events, which stay in memory. The caller holds c.mu.
func (c *Conversation) history() ([]event.Event, error) {
	l, err := c.events()
	if err != nil {
		return nil, err
	}
	if c.decoded == nil {
		list := make([]event.Event, 0, len(l.entries))
		for _, e := range l.entries {
			b, err := l.body(e)
			if err != nil {
				return nil, err
			}
			one, err := event.Decode(b)
			if err != nil {
				return nil, fmt.Errorf("event %s: %w", e.ID, err)
			}
			list = append(list, one)
		}
		c.decoded = list
	}
	return c.active(c.decoded), nil
}

// lastID is the id of the latest event, empty without one.
func (l *eventLog) lastID() string {
	if len(l.entries) == 0 {
		return ""
	}
	return l.entries[len(l.entries)-1].ID
}

// updated is the time of the latest event, if it is later than t.
func (l *eventLog) updated(t time.Time) time.Time {
	if n := len(l.entries); n > 0 {
		if at, err := time.Parse(eventTime, l.entries[n-1].Timestamp); err == nil && at.After(t) {
			return at
		}
	}
	return t
}

// ErrorFrame is an event that tells a subscriber what was wrong with its frame. It is not stored.
func ErrorFrame(code, detail string) ([]byte, error) {
	e := &event.ServerError{Code: code, Detail: detail}
	fill(e).Timestamp = now().Format(eventTime)
	b, err := json.Marshal(e)
	return event.Frame(b), err
}
