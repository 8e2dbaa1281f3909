package agentserver

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/httpapi/decode"
)

// bashPause is how long a subscriber waits for more output, so that output in small writes makes
// few events.
const bashPause = 50 * time.Millisecond

// handleBashSocket handles GET /sockets/bash-events. It authenticates as the events' socket. The
// server sends bash events; each frame of the client is a command to start.
func (s *Server) handleBashSocket(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	all := q.Get("resend_mode") == "all"
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
	feed := bashFeed{bash: s.bash, sent: map[string]int{}}
	if !all {
		feed.next()
	}
	go func() {
		defer cancel()
		s.receiveCommands(ctx, conn)
	}()
	feed.publish(ctx, conn)
}

// bashFeed finds the events that a subscriber does not have yet.
type bashFeed struct {
	bash *bash
	// sent is how many events of a command the subscriber has.
	sent map[string]int
}

// next returns the new events, a command's in their order.
func (f bashFeed) next() []bashEvent {
	var out []bashEvent
	known := make(map[string]int, len(f.sent))
	for _, c := range f.bash.list() {
		n := f.sent[c.info.ID]
		events := c.events(n)
		if n == 0 && c.info.Kind == "" {
			n = 1 // a command of an earlier process has no BashCommand
		}
		out = append(out, events...)
		known[c.info.ID] = n + len(events)
	}
	clear(f.sent)
	maps.Copy(f.sent, known)
	return out
}

// publish sends new events until ctx ends.
func (f bashFeed) publish(ctx context.Context, conn *websocket.Conn) {
	for {
		more := f.bash.grown.wait()
		for _, e := range f.next() {
			b, err := json.Marshal(e.body)
			if err != nil || send(ctx, conn, b) != nil {
				return
			}
		}
		select {
		case <-more:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(bashPause):
		case <-ctx.Done():
			return
		}
	}
}

// receiveCommands starts the client's commands until it leaves. A frame that is none is answered
// with a BashError.
func (s *Server) receiveCommands(ctx context.Context, conn *websocket.Conn) {
	conn.SetReadLimit(maxBody)
	for {
		_, frame, err := conn.Read(ctx)
		if err != nil {
			return
		}
		s.touch()
		code, detail := s.commandFrame(frame)
		if code == "" {
			continue
		}
		b, err := json.Marshal(map[string]string{
			"id": newHexID(), "timestamp": now().Format(bashTime), "kind": "BashError", "code": code, "detail": detail,
		})
		if err != nil || send(ctx, conn, b) != nil {
			return
		}
	}
}

// commandFrame starts the command of a frame. A code says why it did not.
func (s *Server) commandFrame(frame []byte) (code, detail string) {
	d := json.NewDecoder(bytes.NewReader(frame))
	d.UseNumber()
	var m map[string]any
	if d.Decode(&m) != nil || m == nil {
		return "ValidationError", "a frame must be a JSON object with the member command"
	}
	if m["type"] == "auth" {
		return "", "" // a repeated auth frame
	}
	o := decode.Object{Members: m, Loc: []string{"body"}, Problems: &decode.Problems{}}
	req := readCommand(o)
	if err := o.Problems.Err(); err != nil {
		return "ValidationError", err.Error()
	}
	if _, err := s.bash.start(req.text, req.dir, req.timeout, req.env); err != nil {
		return "TooManyCommands", err.Error()
	}
	return "", ""
}
