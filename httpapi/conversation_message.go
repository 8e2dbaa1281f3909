package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// sentBody is the answer of POST …/{id}/send-message (api-contract.md B.2).
type sentBody struct {
	Success       bool             `json:"success"`
	SandboxStatus fsm.SandboxState `json:"sandbox_status"`
	Message       *string          `json:"message"`
}

func sent() (answer, error) {
	return ok(sentBody{Success: true, SandboxStatus: fsm.SandboxRunning})
}

// handleSendMessage handles POST
// /api/v1/app-conversations/{conversation_id}/send-message. A message wakes a
// paused sandbox. With an Idempotency-Key the message, once it was delivered and
// that was answered, is not delivered again.
func (s *Server) handleSendMessage(c *call) (answer, error) {
	id := c.conversationID()
	msg := readSentMessage(c.object().masked())
	if err := c.check(); err != nil {
		return answer{}, err
	}
	if c.key != "" {
		if _, found, err := c.recorded(); found || err != nil {
			if err != nil {
				return answer{}, err
			}
			return sent()
		}
	}
	v, err := c.viewWith(cluster.Linearizable)
	if err != nil {
		return answer{}, err
	}
	row := v.Conversation(c.who.user, id)
	if row == nil {
		return answer{}, errNoConversation()
	}
	box := v.Sandbox(c.who.user, row.SandboxID)
	if err := s.canReceive(box); err != nil {
		return answer{}, err
	}
	exchangeOf(c.r.Context()).sandbox = box.ID
	if err := s.deliver(c, box, id, msg); err != nil {
		return answer{}, err
	}
	// What moves the conversation's time and remembers the key. Neither a client
	// that has gone nor a wake that took the request's time may keep it from being
	// remembered, or the message would be delivered again. Nor may a key that was
	// revoked meanwhile.
	c.renew()
	c.who.credential = fsm.Credential{}
	_, err = c.propose(&fsm.SandboxTouchBody{Touches: []fsm.Touch{{ID: box.ID, At: c.now, Conversation: id}}})
	switch {
	case err == nil:
	case c.key != "":
		return answer{}, errors.Join(fsm.Errorf(fsm.CodeOutcomeUnknown, "remembering the Idempotency-Key"), err)
	default:
		// The message was delivered: an error would have it sent again.
		s.log.Info("a message was delivered and its time is not noted", "conversation", id, "error", err)
	}
	return sent()
}

// readSentMessage reads the body of send-message.
func readSentMessage(o object) fsm.Message {
	msg := fsm.Message{Role: "user", Run: o.booleanOr("run", true), Content: []fsm.ContentBlock{}}
	roles := []string{msg.Role}
	if f := enumFault(roles); o.notNull("role", kind{f.typ, f.msg}) {
		o.enum("role", roles)
	}
	if !o.require("content") {
		return msg
	}
	blocks := o.elements("content", false)
	for _, e := range blocks {
		msg.Content = append(msg.Content, readBlock(e, maxAnyText))
	}
	if list, isList := o.value("content").([]any); isList && len(list) == 0 {
		o.fail("content", list, &fault{
			typ: "too_short", msg: "List should have at least 1 item after validation, not 0",
			ctx: map[string]any{"field_type": "List", "min_length": 1, "actual_length": 0},
		})
	}
	return msg
}

// canReceive says why a message to a sandbox is not even tried, in the
// contract's words; nil when the sandbox serves, or will.
func (s *Server) canReceive(box *fsm.Sandbox) error {
	if box == nil || box.State() == fsm.SandboxMissing {
		return errArchived()
	}
	if state := box.State(); state == fsm.SandboxPaused && box.Desired == fsm.DesiredPaused && !s.cfg.Door.Wake {
		return refuse(http.StatusConflict,
			fmt.Sprintf("Sandbox is %s. Use POST %s/%s/resume to resume it first.", state, pathSandboxes, box.ID))
	}
	return nil
}

// deliver waits until the sandbox serves, waking it if need be, and gives its
// agent server the message.
func (s *Server) deliver(c *call, box *fsm.Sandbox, id string, msg fsm.Message) error {
	// A wake has its own time, so that there is some left for the message.
	ctx, cancel := context.WithTimeout(c.r.Context(), s.cfg.Door.StartWait+s.cfg.RequestTimeout)
	defer cancel()
	up, err := s.door.serving(ctx, grant{row: box, credential: c.who.credential}, s.cfg.Door.Wake)
	var refused *refusal
	switch {
	case errors.As(err, &refused) && refused.status == http.StatusUnauthorized:
		return errArchived() // it was deleted while it was waited for
	case err != nil:
		return err
	}
	box = up.row
	key, err := s.readSecret(ctx, box.KeyRef, "key")
	if err != nil {
		return err
	}
	// From here on it can't be taken back: a client that leaves changes nothing.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), s.cfg.RequestTimeout)
	defer cancel()
	err = s.agents.SendMessage(ctx, agentURL(box.Status.Placement), key, id, msg)
	var failed *AgentError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &failed) && failed.Status != 0:
		return &refusal{status: http.StatusBadGateway, text: fmt.Sprintf("Agent server error: %d", failed.Status), cause: err}
	}
	return &refusal{status: http.StatusBadGateway, text: "Failed to reach agent server.", cause: err}
}

// conversationID reads the id in the path.
func (c *call) conversationID() string {
	text := c.params.ByName("conversation_id")
	hex, f := toUUID(text)
	if f != nil {
		c.errs.add(f.typ, []string{"path", "conversation_id"}, f.msg, echo(text, false), f.ctx)
	}
	return hex
}

func errArchived() *refusal {
	return refuse(http.StatusGone, "Conversation is archived. The sandbox no longer exists.")
}

func errNoConversation() *refusal { return refuse(http.StatusNotFound, "Conversation not found") }
