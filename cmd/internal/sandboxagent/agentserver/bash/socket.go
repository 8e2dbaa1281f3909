package bash

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/socket"
	"bivouac.dev/bivouac/httpapi/decode"
)

// pause is how long a subscriber waits for more output, so that output in small writes makes
// few events.
const pause = 50 * time.Millisecond

// HandleSocket handles GET /sockets/bash-events. It authenticates as the events' socket. The
// server sends bash events; each frame of the client is a command to start.
func (b *Runner) HandleSocket(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	all := q.Get("resend_mode") == "all"
	ctx, one, ok := b.sockets.Accept(w, r)
	if !ok {
		return
	}
	defer b.sockets.Leave(one)
	feed := feed{bash: b, sent: map[string]int{}}
	if !all {
		feed.next()
	}
	go func() {
		defer one.Cancel()
		b.receiveCommands(ctx, one)
	}()
	feed.publish(ctx, one)
}

// feed finds the events that a subscriber does not have yet.
type feed struct {
	bash *Runner
	// sent is how many events of a command the subscriber has.
	sent map[string]int
}

// next returns the new events, a command's in their order.
func (f feed) next() []entry {
	var out []entry
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
func (f feed) publish(ctx context.Context, one *socket.Socket) {
	for {
		more := f.bash.grown.wait()
		for _, e := range f.next() {
			b, err := json.Marshal(e.body)
			if err != nil || one.Send(ctx, b) != nil {
				return
			}
		}
		select {
		case <-more:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// receiveCommands starts the client's commands until it leaves. A frame that is none is answered
// with a BashError.
func (b *Runner) receiveCommands(ctx context.Context, one *socket.Socket) {
	for {
		frame, err := one.Read(ctx)
		if err != nil {
			return
		}
		code, detail := b.commandFrame(frame)
		if code == "" {
			continue
		}
		b, err := json.Marshal(map[string]string{
			"id":        newHexID(),
			"timestamp": time.Now().UTC().Format(timeFormat),
			"kind":      "BashError",
			"code":      code,
			"detail":    detail,
		})
		if err != nil || one.Send(ctx, b) != nil {
			return
		}
	}
}

// commandFrame starts the command of a frame. A code says why it did not.
func (b *Runner) commandFrame(frame []byte) (code, detail string) {
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
	if _, err := b.start(req.text, req.dir, req.timeout, req.env); err != nil {
		return "TooManyCommands", err.Error()
	}
	return "", ""
}
