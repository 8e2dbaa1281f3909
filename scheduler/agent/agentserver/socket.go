package agentserver

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/httpapi/decode"
)

// Close codes (PROTOCOL.md, "Close codes").
const (
	closeUnauthorized websocket.StatusCode = 4001
	closeUnknown      websocket.StatusCode = 4004
)

// Limits of the WebSockets.
const (
	// writeTime is how long a client may take to read an event.
	writeTime      = 30 * time.Second
	maxSubscribers = 256
	// eventBatch is how many events are read from disk at a time.
	eventBatch = 100
)

// sockets are the open WebSockets. The zero value is empty.
type sockets struct {
	mu     sync.Mutex
	open   map[*socket]struct{}
	closed bool
	group  sync.WaitGroup
	// authTime is how long a client may take to send its key.
	authTime time.Duration
}

// socket is one subscriber of a conversation's events.
type socket struct {
	conn *websocket.Conn
	// end cancels its reads and writes.
	end context.CancelFunc
}

// add registers a subscriber; false if there are too many.
func (s *sockets) add(one *socket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.open) >= maxSubscribers {
		return false
	}
	if s.open == nil {
		s.open = map[*socket]struct{}{}
	}
	s.open[one] = struct{}{}
	s.group.Add(1)
	return true
}

func (s *sockets) remove(one *socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, one)
	s.group.Done()
}

// close ends all of them and waits.
func (s *sockets) close() {
	s.mu.Lock()
	s.closed = true
	for one := range s.open {
		one.end()
	}
	s.mu.Unlock()
	s.group.Wait()
}

// handleEventSocket handles GET /sockets/events/{id}. The key is in a header, the query or the
// first frame. The server sends events and receives messages; each message requests a run.
func (s *Server) handleEventSocket(w http.ResponseWriter, r *http.Request) {
	f, mode := eventFilter{}, r.URL.Query().Get("resend_mode")
	if mode == "since" {
		at, fault := decode.ToTime(r.URL.Query().Get("after_timestamp"))
		if fault != nil {
			writeDetail(w, http.StatusBadRequest, "after_timestamp must be a time")
			return
		}
		f.from = at.Format(eventTime)
	}
	// Any origin is allowed: access needs the key.
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // Accept has responded
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	one := &socket{conn: conn, end: cancel}
	defer cancel()
	defer func() { _ = conn.CloseNow() }()
	if !s.sockets.add(one) {
		_ = conn.Close(websocket.StatusTryAgainLater, "Too many subscribers") // the client may have left
		return
	}
	defer s.sockets.remove(one)
	if !s.introduced(ctx, conn, r) {
		return
	}
	c := s.lookup(r)
	if c == nil {
		_ = conn.Close(closeUnknown, "Conversation not found")
		return
	}
	cursor := c.cursor(mode, f) // before its own messages arrive
	go func() {
		defer cancel()
		s.receive(ctx, conn, c)
	}()
	s.publish(ctx, conn, c, cursor)
}

// receive reads messages until the client leaves. It ignores other frames.
func (s *Server) receive(ctx context.Context, conn *websocket.Conn, c *conversation) {
	conn.SetReadLimit(maxBody)
	for {
		_, frame, err := conn.Read(ctx)
		if err != nil {
			return
		}
		s.touch()
		d := json.NewDecoder(bytes.NewReader(frame))
		d.UseNumber()
		var m map[string]any
		if d.Decode(&m) != nil || m["content"] == nil {
			continue // for example a repeated auth frame
		}
		o := decode.Object{Members: m, Problems: &decode.Problems{}}
		msg := readMessage(o)
		if o.Problems.Err() != nil {
			continue
		}
		if c.append(append([]map[string]any{messageEvent(msg)}, runEvents()...)...) != nil {
			return
		}
	}
}

// publish sends the events from cursor on, and each new one, until ctx ends or the conversation is
// deleted.
func (s *Server) publish(ctx context.Context, conn *websocket.Conn, c *conversation, cursor int) {
	for {
		events, more, err := c.eventsFrom(cursor, eventBatch)
		if err != nil {
			_ = conn.Close(closeUnknown, "Conversation not found") // the client may have left
			return
		}
		for _, e := range events {
			if send(ctx, conn, e) != nil {
				return
			}
		}
		cursor += len(events)
		if len(events) > 0 {
			continue
		}
		select {
		case <-more:
		case <-ctx.Done():
			return
		}
	}
}

func send(ctx context.Context, conn *websocket.Conn, event []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return conn.Write(ctx, websocket.MessageText, event)
}

// cursor is a subscriber's first event: of all, since a time, or the next new one.
func (c *conversation) cursor(mode string, f eventFilter) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil || mode == "all" {
		return 0
	}
	if mode != "since" {
		return len(l.entries)
	}
	for i, e := range l.entries {
		if e.Timestamp >= f.from {
			return i
		}
	}
	return len(l.entries)
}

// eventsFrom reads at most limit events from index on. more is closed when there are new events.
func (c *conversation) eventsFrom(index, limit int) (events []json.RawMessage, more <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, err := c.events()
	if err != nil {
		return nil, nil, err
	}
	for _, e := range l.entries[min(index, len(l.entries)):min(index+limit, len(l.entries))] {
		b, err := l.body(e)
		if err != nil {
			return nil, nil, err
		}
		events = append(events, b)
	}
	if c.grown == nil {
		c.grown = make(chan struct{})
	}
	return events, c.grown, nil
}

// grew notifies the subscribers. The caller holds c.mu.
func (c *conversation) grew() {
	if c.grown != nil {
		close(c.grown)
		c.grown = nil
	}
}
