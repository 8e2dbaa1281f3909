// Package socket has the WebSockets of the agent server: who may open one, how many, and their end.
package socket

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Close codes (PROTOCOL.md, "Close codes").
const (
	Unauthorized websocket.StatusCode = 4001
	Unknown      websocket.StatusCode = 4004
)

// Limits of the WebSockets.
const (
	// writeTime is how long a client may take to read an event.
	writeTime      = 30 * time.Second
	maxSubscribers = 256
	// maxFrame bounds a frame of a client, in bytes.
	maxFrame = 8 << 20
)

// Set are the open WebSockets.
type Set struct {
	// AuthTime is how long a client may take to send its key.
	AuthTime time.Duration

	keyFits func(key string) bool
	touch   func()

	mu     sync.Mutex
	open   map[*Socket]struct{}
	closed bool
	group  sync.WaitGroup
}

// New has none open. keyFits checks a client's key; touch is called for each frame of a client.
func New(keyFits func(key string) bool, touch func()) *Set {
	return &Set{keyFits: keyFits, touch: touch, AuthTime: defaultAuthTime, open: map[*Socket]struct{}{}}
}

// Socket is one open WebSocket.
type Socket struct {
	conn  *websocket.Conn
	touch func()
	// Cancel ends its reads and writes.
	Cancel context.CancelFunc
}

// add registers a subscriber; false if there are too many.
func (s *Set) add(one *Socket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.open) >= maxSubscribers {
		return false
	}
	s.open[one] = struct{}{}
	s.group.Add(1)
	return true
}

func (s *Set) remove(one *Socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, one)
	s.group.Done()
}

// Close ends all of them and waits.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	for one := range s.open {
		one.Cancel()
	}
	s.mu.Unlock()
	s.group.Wait()
}

// Accept upgrades a request and checks the key, which is in a header, the query or the first frame. If
// ok is false it has responded. ctx outlives the request and ends with the socket, which the caller
// passes to leave.
func (s *Set) Accept(w http.ResponseWriter, r *http.Request) (ctx context.Context, one *Socket, ok bool) {
	// Any origin is allowed: access needs the key.
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil, nil, false // Accept has responded
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	one = &Socket{conn: conn, touch: s.touch, Cancel: cancel}
	if !s.add(one) {
		one.Close(websocket.StatusTryAgainLater, "Too many subscribers")
		one.drop()
		return nil, nil, false
	}
	if !s.introduced(ctx, conn, r) {
		s.Leave(one)
		return nil, nil, false
	}
	return ctx, one, true
}

// Leave closes a socket that Accept has returned.
func (s *Set) Leave(one *Socket) {
	s.remove(one)
	one.drop()
}

// drop closes the connection without a code, unless it is closed.
func (o *Socket) drop() {
	_ = o.conn.CloseNow() // the client may have left
	o.Cancel()
}

// Close closes the connection with a code.
func (o *Socket) Close(code websocket.StatusCode, reason string) {
	_ = o.conn.Close(code, reason) // the client may have left
}

// Read reads a frame of the client, which is activity.
func (o *Socket) Read(ctx context.Context) ([]byte, error) {
	o.conn.SetReadLimit(maxFrame)
	_, frame, err := o.conn.Read(ctx)
	if err == nil {
		o.touch()
	}
	return frame, err
}

// Send sends a text frame.
func (o *Socket) Send(ctx context.Context, frame []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return o.conn.Write(ctx, websocket.MessageText, frame)
}
