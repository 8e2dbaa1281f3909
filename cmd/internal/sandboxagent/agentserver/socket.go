package agentserver

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
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
	sub, err := c.subscribe(mode, f) // before its own messages arrive
	if err != nil {
		_ = conn.Close(closeUnknown, "Conversation not found")
		return
	}
	defer c.unsubscribe(sub)
	go func() {
		defer cancel()
		s.receive(ctx, conn, c)
	}()
	s.publish(ctx, conn, c, sub)
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
		if err := d.Decode(&m); err != nil {
			s.refuse(ctx, conn, "InvalidFrame", "The frame is not a JSON object.")
			continue
		}
		if m["type"] == "auth" {
			continue // a repeated first frame
		}
		o := decode.Object{Members: m, Problems: &decode.Problems{}}
		msg := readMessage(o)
		if o.Value("content") == nil || o.Problems.Err() != nil {
			s.refuse(ctx, conn, "InvalidFrame", "The frame is not a message with a role and a content.")
			continue
		}
		if err := s.message(c, messageEvent(msg), true); err != nil {
			if isGone(err) {
				return
			}
			s.logger.Error("a message over a socket was not stored", "conversation", c.id, "error", err)
			s.refuse(ctx, conn, "MessageNotStored", "The message could not be stored. Send it again.")
		}
	}
}

// publish sends the subscriber's events, and each new one, until ctx ends or the conversation is
// deleted.
func (s *Server) publish(ctx context.Context, conn *websocket.Conn, c *conversation, sub *subscription) {
	for {
		frames, more, err := c.next(sub, eventBatch)
		if err != nil {
			_ = conn.Close(closeUnknown, "Conversation not found") // the client may have left
			return
		}
		for _, f := range frames {
			if send(ctx, conn, f) != nil {
				return
			}
		}
		if len(frames) > 0 {
			continue
		}
		select {
		case <-more:
		case <-ctx.Done():
			return
		}
	}
}

// refuse tells a subscriber that its frame was not processed.
func (s *Server) refuse(ctx context.Context, conn *websocket.Conn, code, detail string) {
	e := &event.ServerError{Code: code, Detail: detail}
	fill(e).Timestamp = now().Format(eventTime)
	b, err := json.Marshal(e)
	if err == nil {
		_ = send(ctx, conn, b) // the client may have left
	}
}

func send(ctx context.Context, conn *websocket.Conn, event []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return conn.Write(ctx, websocket.MessageText, event)
}
