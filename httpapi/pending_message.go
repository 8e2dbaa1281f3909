package httpapi

import (
	"net/http"
	"strings"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

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
