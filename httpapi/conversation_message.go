package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// sentBody is the response of POST …/{id}/send-message (API.md, "Conversations: send a message").
type sentBody struct {
	Success       bool             `json:"success"`
	SandboxStatus fsm.SandboxState `json:"sandbox_status"`
	Message       *string          `json:"message"`
}

func sent() (response.Response, error) {
	return response.OK(sentBody{Success: true, SandboxStatus: fsm.SandboxRunning})
}

// handleSendMessage handles POST /api/v1/app-conversations/{conversation_id}/send-message. A
// message wakes a paused sandbox. A repeated Idempotency-Key does not deliver a message again that
// was reported as delivered.
func (s *Server) handleSendMessage(c *call) (response.Response, error) {
	id := c.conversationID()
	msg := readSentMessage(c.Object().Masked())
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if c.Key != "" {
		if _, found, err := c.Recorded(); found || err != nil {
			if err != nil {
				return response.Response{}, err
			}
			return sent()
		}
	}
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return response.Response{}, err
	}
	row := v.Conversation(c.Caller.User, id)
	if row == nil {
		return response.Response{}, errNoConversation()
	}
	sb := v.Sandbox(c.Caller.User, row.SandboxID)
	if err := s.canReceive(sb); err != nil {
		return response.Response{}, err
	}
	request.InfoOf(c.Request.Context()).Sandbox = sb.ID
	if err := s.deliver(c, sb, id, msg); err != nil {
		return response.Response{}, err
	}
	if err := s.noteContact(c, sb.ID, id); err != nil {
		return response.Response{}, err
	}
	return sent()
}

// noteContact updates the conversation's time and records the Idempotency-Key after an agent server
// did what was asked. It must not fail because the client has left, the wake used up the deadline or
// the API key was revoked: a retry would deliver the message again.
func (s *Server) noteContact(c *call, sandbox, id string) error {
	c.Renew()
	c.Caller.Credential = fsm.Credential{}
	_, err := c.Propose(&fsm.SandboxTouchBody{Touches: []fsm.Touch{{ID: sandbox, At: c.Now, Conversation: id}}})
	switch {
	case err == nil:
	case c.Key != "":
		return errors.Join(fsm.Errorf(fsm.CodeOutcomeUnknown, "remembering the Idempotency-Key"), err)
	default:
		// It was delivered: after an error the client would send it again.
		s.log.Info("a message was delivered and its time is not noted", "conversation", id, "error", err)
	}
	return nil
}

func readSentMessage(o decode.Object) fsm.Message {
	msg := fsm.Message{Role: "user", Run: o.BooleanOr("run", true), Content: []fsm.ContentBlock{}}
	roles := []string{msg.Role}
	if f := decode.NotOneOf(roles); o.NotNull("role", f.Kind()) {
		o.Enum("role", roles)
	}
	if !o.Require("content") {
		return msg
	}
	blocks := o.Elements("content", false)
	for _, e := range blocks {
		msg.Content = append(msg.Content, readBlock(e))
	}
	if list, isList := o.Value("content").([]any); isList && len(list) == 0 {
		o.Fail("content", list, &decode.Fault{
			Type: "too_short", Message: "List should have at least 1 item after validation, not 0",
			Context: map[string]any{"field_type": "List", "min_length": 1, "actual_length": 0},
		})
	}
	return msg
}

// canReceive returns upstream's error for a sandbox that can't take a message, nil if it serves or
// will.
func (s *Server) canReceive(sb *fsm.Sandbox) error {
	if sb == nil || sb.State() == fsm.SandboxMissing {
		return errArchived()
	}
	if state := sb.State(); state == fsm.SandboxPaused && sb.Desired == fsm.DesiredPaused && !s.cfg.Proxy.Wake {
		return response.Error(http.StatusConflict,
			fmt.Sprintf("Sandbox is %s. Use POST %s/%s/resume to resume it first.", state, pathSandboxes, sb.ID))
	}
	return nil
}

// deliver waits until the sandbox serves, waking it if necessary, and sends the message to its
// agent server.
func (s *Server) deliver(c *call, sb *fsm.Sandbox, id string, msg fsm.Message) error {
	// A wake has its own timeout, so that the message still has time.
	ctx, cancel := context.WithTimeout(c.Request.Context(), s.cfg.Proxy.StartWait+s.cfg.RequestTimeout)
	defer cancel()
	up, err := s.proxy.Serving(ctx, sb, c.Caller.Credential, s.cfg.Proxy.Wake)
	var refused *response.HTTPError
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusUnauthorized:
		return errArchived() // it was deleted during the wait
	case err != nil:
		return err
	}
	sb = up
	entry, err := s.sandboxEntry(ctx, sb)
	if err != nil {
		return err
	}
	// Delivery can't be rolled back, so it no longer depends on the client.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), s.cfg.RequestTimeout)
	defer cancel()
	err = s.agents.SendMessage(ctx, agentURL(sb.Status.Placement), entry[fsm.MemberKey], id,
		AgentMessage{msg, c.eventID()})
	var failed *AgentError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &failed) && failed.Status != 0:
		return &response.HTTPError{
			Status: http.StatusBadGateway,
			Text:   fmt.Sprintf("Agent server error: %d", failed.Status),
			Cause:  err,
		}
	}
	return &response.HTTPError{Status: http.StatusBadGateway, Text: "Failed to reach agent server.", Cause: err}
}

// eventID returns the id of the event that the request's message becomes, "" without an
// Idempotency-Key. It is a function of the user, the key and the request: requests that are sent
// twice at once, and one that is repeated after its record was lost, deliver one message.
func (c *call) eventID() string {
	if c.Key == "" {
		return ""
	}
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(c.CommandID()+"\n"+c.Fingerprint())).String()
}

func (c *call) conversationID() string {
	text := c.Params.ByName("conversation_id")
	hex, f := decode.ToUUID(text)
	if f != nil {
		c.Problems.Add(f.Type, []string{"path", "conversation_id"}, f.Message, decode.Echo(text, false), f.Context)
	}
	return hex
}

func errArchived() *response.HTTPError {
	return response.Error(http.StatusGone, "Conversation is archived. The sandbox no longer exists.")
}

func errNoConversation() *response.HTTPError {
	return response.Error(http.StatusNotFound, "Conversation not found")
}

// pathPending is the route of the messages that wait for a conversation.
const pathPending = "/api/v1/conversations/:conversation_id/pending-messages"

// queuedBody is the response of POST …/pending-messages (API.md, "Conversations: messages before the
// start").
type queuedBody struct {
	ID       string `json:"id"`
	Queued   bool   `json:"queued"`
	Position int    `json:"position"`
}

// handlePendingMessage handles POST /api/v1/conversations/{conversation_id}/pending-messages. The
// conversation is that of an unfinished start; its task is named as task-<id>.
func (s *Server) handlePendingMessage(c *call) (response.Response, error) {
	text, ofTask := strings.CutPrefix(c.Params.ByName("conversation_id"), "task-")
	id, f := decode.ToUUID(text)
	if f != nil {
		c.Problems.Add(f.Type, []string{"path", "conversation_id"}, f.Message, decode.Echo(text, false), f.Context)
	}
	o := c.Object().Masked()
	if list, isList := o.Value("content").([]any); o.Has("content") && (!isList || len(list) == 0) {
		return response.Response{}, response.Error(http.StatusBadRequest, "content must be a non-empty list")
	}
	msg := readSentMessage(o)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	msg.Run = true
	// A repeated request queues the same message.
	made := uuid.NewSHA1(uuid.NameSpaceOID, []byte(c.CommandID()))
	message := strings.ReplaceAll(made.String(), "-", "")
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		v, err := c.ViewWith(cluster.Linearizable)
		if err != nil {
			return nil, request.SecretWrites{}, err
		}
		task := v.StartTask(c.Caller.User, id)
		if !ofTask {
			if v.Conversation(c.Caller.User, id) != nil {
				return nil, request.SecretWrites{}, errReady()
			}
			task = v.StartTaskByConversation(c.Caller.User, id)
		}
		if task == nil {
			return nil, request.SecretWrites{}, errNoConversation()
		}
		return &fsm.StartTaskQueueBody{
			ID:      task.ID,
			Message: fsm.PendingMessage{ID: message, Message: msg},
		}, request.SecretWrites{}, nil
	}, func(res fsm.Result) (response.Response, error) {
		if res.StartTask == nil {
			return response.Response{}, request.ErrEmptyResult(fsm.StartTaskQueue)
		}
		n := len(res.StartTask.Pending)
		if n == 0 {
			return response.Response{}, request.ErrEmptyResult(fsm.StartTaskQueue)
		}
		return response.Response{
			Status: http.StatusCreated,
			Body:   queuedBody{ID: res.StartTask.Pending[n-1].ID, Queued: true, Position: n},
		}, nil
	})
}
