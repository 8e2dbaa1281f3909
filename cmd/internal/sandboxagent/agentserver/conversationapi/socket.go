package conversationapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/socket"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/httpapi/decode"
)

// eventBatch is how many events are read from disk at a time.
const eventBatch = 100

// HandleEventSocket handles GET /sockets/events/{id}. The key is in a header, the query or the
// first frame. The server sends events and receives messages; each message requests a run.
func (a *API) HandleEventSocket(w http.ResponseWriter, r *http.Request) {
	since, mode := "", r.URL.Query().Get("resend_mode")
	if mode == "since" {
		at, fault := decode.ToTime(r.URL.Query().Get("after_timestamp"))
		if fault != nil {
			wire.WriteDetail(w, http.StatusBadRequest, "after_timestamp must be a time")
			return
		}
		since = at.Format(event.TimeFormat)
	}
	ctx, one, ok := a.sockets.Accept(w, r)
	if !ok {
		return
	}
	defer a.sockets.Leave(one)
	c := a.lookup(r)
	if c == nil {
		one.Close(socket.Unknown, "Conversation not found")
		return
	}
	sub, err := c.Subscribe(mode, since) // before its own messages arrive
	if err != nil {
		one.Close(socket.Unknown, "Conversation not found")
		return
	}
	defer c.Unsubscribe(sub)
	go func() {
		defer one.Cancel()
		a.receive(ctx, one, c)
	}()
	a.publish(ctx, one, c, sub)
}

// receive reads messages until the client leaves. It ignores other frames.
func (a *API) receive(ctx context.Context, one *socket.Socket, c *conversation.Conversation) {
	for {
		frame, err := one.Read(ctx)
		if err != nil {
			return
		}
		d := json.NewDecoder(bytes.NewReader(frame))
		d.UseNumber()
		var m map[string]any
		if err := d.Decode(&m); err != nil {
			a.refuse(ctx, one, "InvalidFrame", "The frame is not a JSON object.")
			continue
		}
		if m["type"] == "auth" {
			continue // a repeated first frame
		}
		o := decode.Object{Members: m, Problems: &decode.Problems{}}
		msg := readMessage(o)
		if o.Value("content") == nil || o.Problems.Err() != nil {
			a.refuse(ctx, one, "InvalidFrame", "The frame is not a message with a role and a content.")
			continue
		}
		msg.Run = true
		switch err := a.conversations.Message(c, msg); {
		case errors.Is(err, conversation.ErrNoMessage):
			a.refuse(ctx, one, "InvalidFrame", otherEvent+".")
		case conversation.IsGone(err):
			return
		case conversation.IsFull(err):
			a.refuse(ctx, one, "MessageNotStored", diskFull+".")
		case err != nil:
			a.logger.Error("a message over a socket was not stored", "conversation", c.Id, "error", err)
			a.refuse(ctx, one, "MessageNotStored", "The message could not be stored. Send it again.")
		}
	}
}

// publish sends the subscriber's events, and each new one, until ctx ends or the conversation is
// deleted.
func (a *API) publish(
	ctx context.Context,
	one *socket.Socket,
	c *conversation.Conversation,
	sub *conversation.Subscription,
) {
	for {
		frames, more, err := c.Next(sub, eventBatch)
		if err != nil {
			one.Close(socket.Unknown, "Conversation not found")
			return
		}
		for _, f := range frames {
			if one.Send(ctx, f) != nil {
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
func (a *API) refuse(ctx context.Context, one *socket.Socket, code, detail string) {
	b, err := conversation.ErrorFrame(code, detail)
	if err == nil {
		_ = one.Send(ctx, b) // the client may have left
	}
}
